"""How numbers, moments and durations are written on pages. Pure; amounts are micro-credits, never floats."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

MICRO = 1_000_000
MINUS = "−"
NOTHING = "–"


def credits(micro: int | None) -> str:
    """Rounded half up: from 100 none, from 1 two, from 0.01 four decimals, below that all six; zero is `0`, None is `–`."""
    if micro is None:
        return NOTHING
    sign, size = (MINUS if micro < 0 else ""), abs(micro)
    if size == 0:
        return "0"
    if size < 10_000:
        return f"{sign}0.{size:06d}".rstrip("0")
    for places, least in ((4, 10_000), (2, MICRO), (0, 100 * MICRO)):
        text = _rounded(size, places)
        # 0.99996 rounds to 1.0000, which is written as 1.00.
        following = {4: MICRO, 2: 100 * MICRO}.get(places)
        if size >= least and (following is None or _value(size, places) < following):
            return sign + text
    raise AssertionError(size)


def _value(size: int, places: int) -> int:
    step = 10 ** (6 - places)
    return (size + step // 2) // step * step


def _rounded(size: int, places: int) -> str:
    whole, micro = divmod(_value(size, places), MICRO)
    return f"{whole:,}" if places == 0 else f"{whole:,}.{micro // 10 ** (6 - places):0{places}d}"


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
    """`out` to 5 % left, `low` to 20 %, else nothing; compared exactly."""
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


def moment(at: datetime, zone: ZoneInfo, now: datetime) -> str:
    """In the zone: `14:20` today, `Fri 18:34` within six days, else `Wed 18 Nov, 14:20` (with the year if it is another)."""
    local, today = at.astimezone(zone), now.astimezone(zone)
    clock = f"{local:%H:%M}"
    if local.date() == today.date():
        return clock
    if abs((local.date() - today.date()).days) < 7:
        return f"{local:%a} {clock}"
    year = f" {local.year}" if local.year != today.year else ""
    return f"{local:%a} {local.day} {local:%b}{year}, {clock}"


def tokens(count: int | None) -> str:
    """In full, with commas."""
    return NOTHING if count is None else f"{count:,}"
