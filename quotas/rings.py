"""Which cells the counters of a moment keep (quotas.md section 2). Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

from config.snapshot import Snapshot
from quotas import records, views, windows

FINE, COARSE, DAYS = 288, 240, 40
"""How many cells besides the newest any window still needs."""
FINE_SECONDS, COARSE_SECONDS = 300, 10800

Place = tuple[str, int]
"""The tag of a cell, f, c, d or s, and its bucket, day or second."""


@dataclass(frozen=True, slots=True)
class Rings:
    """`newest`: the moment, in unix seconds. `today`: its local day's ordinal. `code`: of the plan period that records total.

    `low`: the oldest cell that is kept, by tag.
    """

    newest: int
    today: int
    code: int
    zone: ZoneInfo
    low: Mapping[str, int]

    @property
    def period(self) -> int:
        """The start of the plan period."""
        return self.code // 16

    @property
    def first_fine(self) -> int:
        """The second from which on fine cells are kept."""
        return self.low["f"] * FINE_SECONDS

    @property
    def since(self) -> int:
        """The second from which on any request is in a cell or in the total."""
        return min(windows.midnight(self.low["d"], self.zone), self.low["s"], self.period)

    @property
    def midnights(self) -> list[int]:
        """The seconds at which the days that are kept begin, and two more."""
        return [windows.midnight(self.low["d"] + number, self.zone) for number in range(DAYS + 3)]

    def day_of(self, second: int) -> int:
        """The ordinal of the local day of a second."""
        return windows.day_of(second, self.zone)

    def places(self, second: int, day: int) -> Iterator[Place]:
        """The cells of a second, but for its own."""
        for place in (("f", second // FINE_SECONDS), ("c", second // COARSE_SECONDS), ("d", day)):
            if place[1] >= self.low[place[0]]:
                yield place


def at(snapshot: Snapshot, newest: int, *, code: int = 0) -> Rings:
    """The rings at a moment; `code`: of a newer period that the counters have got to."""
    zone = ZoneInfo(snapshot.accounts.timezone)
    today = windows.day_of(newest, zone)
    period, _ = views.organization_period(snapshot, newest)
    coarse = newest // COARSE_SECONDS - COARSE
    return Rings(
        newest=newest,
        today=today,
        code=max(records.code(records.PERIOD, period), code),
        zone=zone,
        low={"f": newest // FINE_SECONDS - FINE, "c": coarse, "d": today - DAYS, "s": coarse * COARSE_SECONDS},
    )
