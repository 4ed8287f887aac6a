"""The drawing of what comes back when."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from routing import timeline
from routing.outlook import Week

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 18, 13, 0, tzinfo=UTC)


def week(label: str, left: float, hours: float) -> Week:
    return Week(label, left, 1500.0, NOW + timedelta(hours=hours))


def test_rows_stand_by_their_reset_with_what_it_brings_back() -> None:
    drawn = timeline.draw(
        [week("late", 300, 150), week("soon", 75, 16.8), week("over", 5, 200), week("full", 1500, 3)], BERLIN, NOW
    )
    told = [(row.label, row.x, row.percent, row.level, row.back, row.is_late) for row in drawn.rows]
    assert told == [("soon", "10.0%", 5, "out", 1_425_000_000, False), ("late", "89.3%", 20, "low", 1_200_000_000, True)]
    assert [row.y for row in drawn.rows] == [50, 106]
    assert drawn.height == 158


def test_days_begin_at_the_organizations_midnight() -> None:
    # 13:00 UTC is 14:00 in Berlin: Thursday begins in ten hours.
    assert timeline.draw([], BERLIN, NOW).marks[:2] == [("6.0%", "Thu"), ("20.2%", "Fri")]


def test_many_accounts_are_cut() -> None:
    assert len(timeline.draw([week(f"a{n}", 1, n + 1) for n in range(40)], BERLIN, NOW).rows) == timeline.MOST_ROWS
