"""How numbers, moments and durations are written on pages, in the language that is active (`accounts.locales`; the examples are
English). Amounts are micro-credits, never floats.
"""

from datetime import date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from accounts import locales

MICRO = 1_000_000
MINUS = "−"
NOTHING = "–"


def credits(micro: int | None) -> str:
    """Rounded half up: from 100 none, from 1 two, from 0.01 four decimals, below that all six; zero is `0`, None is `–`.

    What rounds up to a border is written as the border is: 0.99996 is `1.00`, 99.996 is `100`.
    """
    if micro is None:
        return NOTHING
    sign, size = (MINUS if micro < 0 else ""), abs(micro)
    if size == 0:
        return "0"
    if size < MICRO // 100:
        return sign + _decimals(size, 6)
    if _rounded(size, 4) < MICRO:
        return sign + _decimals(size, 4)
    if _rounded(size, 2) < 100 * MICRO:
        return sign + _decimals(size, 2)
    return f"{sign}{locales.current().whole(_rounded(size, 0) // MICRO)}"


def _rounded(size: int, places: int) -> int:
    step: int = 10 ** (6 - places)
    return (size + step // 2) // step * step


def _decimals(size: int, places: int) -> str:
    whole, micro = divmod(_rounded(size, places), MICRO)
    locale = locales.current()
    return f"{locale.whole(whole)}{locale.decimal}{micro // 10 ** (6 - places):0{places}d}"


def exact(micro: int) -> tuple[str, str]:
    """Always six decimals: the whole part with commas, and the fraction to be set back (`.micro`)."""
    whole, part = divmod(abs(micro), MICRO)
    locale = locales.current()
    return f"{MINUS if micro < 0 else ''}{locale.whole(whole)}", f"{locale.decimal}{part:06d}"


def money(amount: Decimal | None) -> str:
    """Of a currency, with the decimals that it has: `12,345.67`; None is `–`."""
    if amount is None:
        return NOTHING
    whole, _, part = f"{abs(amount):f}".partition(".")
    locale = locales.current()
    return f"{MINUS if amount < 0 else ''}{locale.whole(int(whole))}{locale.decimal + part if part else ''}"


def price(amount: Decimal | None) -> str:
    """Of one of something: as many decimals as it needs, and at least two: `0.0125`, `4.00`."""
    if amount is None:
        return NOTHING
    exponent = amount.normalize().as_tuple().exponent
    places = max(2, -exponent if isinstance(exponent, int) else 0)
    return money(amount.quantize(Decimal(1).scaleb(-places)))


def percent_left(left: int, limit: int) -> int:
    """Whole percent, rounded down, 0 to 100: never flattering."""
    if limit <= 0:
        return 0
    return max(0, min(100, left * 100 // limit))


def share(part: int, whole: int) -> str:
    """A length for SVG, like `41.2%`: truncated, 0 to 100."""
    if whole <= 0:
        return "0%"
    tenths = max(0, min(1000, part * 1000 // whole))
    return f"{tenths // 10}.{tenths % 10}%"


def level(left: int, limit: int) -> str:
    """`out` to 5 % left, `low` to 20 %, else nothing; the exact values are compared."""
    if left * 100 <= limit * 5:
        return "out"
    return "low" if left * 100 <= limit * 20 else ""


def duration(span: timedelta | float) -> str:
    """Two units: `2 d 4 h`, `18 h 50 min`, `48 min`, `22 s`; at least 1 s."""
    locale = locales.current()
    seconds = max(1, int(span.total_seconds() if isinstance(span, timedelta) else span))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    for big, unit, small, below in (
        (days, locale.days_unit, hours, locale.hours),
        (hours, locale.hours, minutes, locale.minutes),
        (minutes, locale.minutes, 0, ""),
    ):
        if big:
            return f"{big} {unit} {small} {below}" if small else f"{big} {unit}"
    return f"{seconds} {locale.seconds}"


def elapsed(milliseconds: int | None) -> str:
    """How long a request took: `409 ms`, `18.4 s`, from two minutes on `2 min 5 s`; None is `–`."""
    if milliseconds is None:
        return NOTHING
    locale = locales.current()
    if milliseconds < 1000:
        return f"{milliseconds} {locale.milliseconds}"
    if milliseconds < 120_000:
        return seconds(milliseconds)
    return f"{milliseconds // 60_000} {locale.minutes} {milliseconds % 60_000 // 1000} {locale.seconds}"


def seconds(milliseconds: int | None) -> str:
    """Always in seconds with one decimal, half up, for a column: `0.9 s`; None is `–`."""
    if milliseconds is None:
        return NOTHING
    locale, tenths = locales.current(), (milliseconds + 50) // 100
    return f"{locale.whole(tenths // 10)}{locale.decimal}{tenths % 10} {locale.seconds}"


def moment(at: datetime, zone: ZoneInfo, now: datetime) -> str:
    """In the zone: `14:20` today, `Fri 18:34` within six days, else with its date."""
    local = at.astimezone(zone)
    away = abs((local.date() - now.astimezone(zone).date()).days)
    if away == 0:
        return f"{local:%H:%M}"
    return f"{locales.current().weekdays[local.weekday()]} {local:%H:%M}" if away < 7 else full_moment(at, zone, now)


def full_moment(at: datetime, zone: ZoneInfo, now: datetime) -> str:
    """With weekday and date: `Wed 18 Nov, 14:20`; the year stands there if it is another one."""
    local = at.astimezone(zone)
    return f"{day(local.date(), now.astimezone(zone).date())}, {local:%H:%M}"


def clock(at: datetime, zone: ZoneInfo, now: datetime) -> str:
    """When something happened, to the second while it was today: `14:18:27`; else `Tue 17 Nov, 14:18`."""
    local = at.astimezone(zone)
    return f"{local:%H:%M:%S}" if local.date() == now.astimezone(zone).date() else full_moment(at, zone, now)


def day(on: date, today: date) -> str:
    """`Wed 18 Nov`, with the year if it is not this one."""
    locale = locales.current()
    form = locale.day if on.year == today.year else locale.day_and_year
    return form.format(
        weekday=locale.weekdays[on.weekday()], day=on.day, month=locale.months[on.month - 1], number=on.month, year=on.year
    )


def day_alone(on: date) -> str:
    """Always with its year: `18 Nov 2026`, `08 Nov 2026`."""
    locale = locales.current()
    found = locale.day_and_year.format(
        weekday="", day=f"{on.day:02d}", month=locale.months[on.month - 1], number=on.month, year=on.year
    )
    return found.strip()


def long_day(on: date) -> str:
    """For papers: `18 November 2026`."""
    locale = locales.current()
    return locale.long_day.format(day=on.day, month=locale.long_months[on.month - 1], year=on.year)


def month(of: date, today: date) -> str:
    """`November`, with the year if it is not this one."""
    locale = locales.current()
    name = locale.months_alone[of.month - 1]
    return name if of.year == today.year else locale.month_and_year.format(month=name, year=of.year)


def count(number: int) -> str:
    """A whole number with its thousands set apart."""
    return f"{MINUS if number < 0 else ''}{locales.current().whole(abs(number))}"


def tokens(number: int | None) -> str:
    """In full, with commas."""
    return NOTHING if number is None else count(number)


def initials(name: str) -> str:
    """One or two capitals for an avatar: `TW` of Tomasz Wrona and of tomasz.wrona@…, `R` of release."""
    words = [word for word in name.partition("@")[0].replace(".", " ").replace("-", " ").replace("_", " ").split() if word]
    if not words:
        return "?"
    return (words[0][0] + (words[-1][0] if len(words) > 1 else "")).upper()
