"""How numbers, moments and durations are written on pages. Pure; amounts are micro-credits, never floats."""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

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
    return f"{sign}{_rounded(size, 0) // MICRO:,}"


def _rounded(size: int, places: int) -> int:
    step: int = 10 ** (6 - places)
    return (size + step // 2) // step * step


def _decimals(size: int, places: int) -> str:
    whole, micro = divmod(_rounded(size, places), MICRO)
    return f"{whole:,}.{micro // 10 ** (6 - places):0{places}d}"


def exact(micro: int) -> tuple[str, str]:
    """Always six decimals: the whole part with commas, and the fraction to be set back (`.micro`)."""
    whole, part = divmod(abs(micro), MICRO)
    return f"{MINUS if micro < 0 else ''}{whole:,}", f".{part:06d}"


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
    seconds = max(1, int(span.total_seconds() if isinstance(span, timedelta) else span))
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes else f"{seconds} s"


def elapsed(milliseconds: int | None) -> str:
    """How long a request took: `409 ms`, `18.4 s`, from two minutes on `2 min 5 s`; None is `–`."""
    if milliseconds is None:
        return NOTHING
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return seconds(milliseconds) if milliseconds < 120_000 else f"{milliseconds // 60_000} min {milliseconds % 60_000 // 1000} s"


def seconds(milliseconds: int | None) -> str:
    """Always in seconds with one decimal, half up, for a column: `0.9 s`; None is `–`."""
    if milliseconds is None:
        return NOTHING
    tenths = (milliseconds + 50) // 100
    return f"{tenths // 10:,}.{tenths % 10} s"


def moment(at: datetime, zone: ZoneInfo, now: datetime) -> str:
    """In the zone: `14:20` today, `Fri 18:34` within six days, else with its date."""
    local = at.astimezone(zone)
    away = abs((local.date() - now.astimezone(zone).date()).days)
    if away == 0:
        return f"{local:%H:%M}"
    return f"{local:%a %H:%M}" if away < 7 else full_moment(at, zone, now)


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
    return f"{on:%a} {on.day} {on:%b}" + (f" {on.year}" if on.year != today.year else "")


def tokens(count: int | None) -> str:
    """In full, with commas."""
    return NOTHING if count is None else f"{count:,}"


def initials(name: str) -> str:
    """One or two capitals for an avatar: `TW` of Tomasz Wrona and of tomasz.wrona@…, `R` of release."""
    words = [word for word in name.partition("@")[0].replace(".", " ").replace("-", " ").replace("_", " ").split() if word]
    if not words:
        return "?"
    return (words[0][0] + (words[-1][0] if len(words) > 1 else "")).upper()
