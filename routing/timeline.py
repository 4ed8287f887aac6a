"""When what comes back: the weekly resets of the next seven days as the places of a drawing. Pure; lengths as SVG writes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from accounts import display, locales
from routing.outlook import HORIZON, Week

ROW_HEIGHT, TOP, MOST_ROWS = 56, 30, 12
LATE = 78
"""From here on, in percent, what comes back is written to the left of its dot."""


@dataclass(frozen=True, slots=True)
class Row:
    """One reset: `x` of its dot, `y` of its rail; `back`: micro-credits that come back with it."""

    label: str
    resets_at: datetime
    percent: int
    level: str
    back: int
    x: str
    y: int
    is_late: bool

    @property
    def name_y(self) -> int:
        return self.y - 12

    @property
    def text_y(self) -> int:
        return self.y + 18


@dataclass(frozen=True, slots=True)
class Timeline:
    rows: Sequence[Row]
    marks: Sequence[tuple[str, str]]
    """Midnights of the organization's zone: where, and which day begins."""

    @property
    def height(self) -> int:
        return TOP + ROW_HEIGHT * len(self.rows) + 16

    @property
    def foot(self) -> int:
        return self.height - 8


def draw(weeks: Sequence[Week], zone: ZoneInfo, now: datetime) -> Timeline:
    """The next HORIZON, the soonest first; at most MOST_ROWS. A reset that brings nothing back is left out."""
    ahead = [
        (week.resets_at, week)
        for week in weeks
        if week.resets_at is not None and now < week.resets_at <= now + HORIZON and week.left < week.size
    ]
    rows = []
    for index, (resets_at, week) in enumerate(sorted(ahead, key=lambda pair: (pair[0], pair[1].label))[:MOST_ROWS]):
        left, size = int(week.left * 1000), max(1, int(week.size * 1000))
        share = (resets_at - now) / HORIZON * 100
        rows.append(
            Row(
                label=week.label,
                resets_at=resets_at,
                percent=display.percent_left(left, size),
                level=display.level(left, size),
                back=int(max(0.0, week.size - week.left) * 1_000_000),
                x=f"{share:.1f}%",
                y=TOP + ROW_HEIGHT * index + 20,
                is_late=share > LATE,
            )
        )
    return Timeline(rows, _marks(zone, now))


def _marks(zone: ZoneInfo, now: datetime) -> list[tuple[str, str]]:
    day = now.astimezone(zone).date()
    found = []
    for _ in range(7):
        day += timedelta(days=1)
        at = datetime(day.year, day.month, day.day, tzinfo=zone)
        share = (at - now) / HORIZON * 100
        if 0 <= share < 96:
            found.append((f"{share:.1f}%", locales.current().weekdays[at.weekday()]))
    return found
