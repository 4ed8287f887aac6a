"""The edges of windows, of what is kept, and of funding two periods old."""

from collections.abc import Iterator
from typing import Any

import pytest

from config.redis import sync_client
from quotas import engine, records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import DAY, Probe, T, ms

ROLLING = [
    (records.FIVE_HOURS, 300, 60),
    (records.ONE_DAY, 300, 288),
    (records.SEVEN_DAYS, 10800, 56),
    (records.THIRTY_DAYS, 10800, 240),
]


@pytest.fixture
def probe() -> Iterator[Probe]:
    made = Probe()
    made.warm()
    yield made
    made.wipe()


def windowed(*kinds: int) -> tuple[RecordView, ...]:
    codes = tuple(records.code(kind) for kind in kinds)
    return (RecordView("o", codes, tuple(Question(records.CREDITS, i + 1, 10**9) for i in range(len(codes)))),)


def used(probe: Probe, at: float, view: bytes) -> int:
    """What the record's first window counts."""
    value: int = probe.peek(at, view)[5][8]
    return value


@pytest.mark.parametrize(("kind", "bucket", "span"), ROLLING)
def test_a_rolling_window_counts_its_oldest_bucket_to_that_bucket_s_last_second(
    probe: Probe, kind: int, bucket: int, span: int
) -> None:
    """Rolled step by step, summed anew from the cells, and added to late: all three the same."""
    first = T // bucket
    leaves = (first + span + 1) * bucket
    view, plain = probe.view(windowed(kind)), probe.view()
    assert probe.admit("a", T, view, 5, lease=10**7) == ["OK", 1]
    # By a roll.
    assert (used(probe, leaves - 1, view), used(probe, leaves, view)) == (5, 0)
    # By the sum of a window that is new.
    assert probe.admit("b", T + bucket, plain, 0) == ["OK", 1]
    assert (used(probe, leaves - 1, view), used(probe, leaves, view)) == (5, 0)
    # By a settlement that comes when the cell is the oldest one kept in the window, and when it has just left.
    assert probe.admit("c", leaves - 1, view, 0) == ["OK", 1]
    assert probe.renew("a", leaves - 1, 7, ack=T, lease=10**7) == ["OK"]
    assert used(probe, leaves - 1, view) == 7
    assert probe.admit("d", leaves, view, 0) == ["OK", 1]
    assert probe.settle("a", leaves, 9, ack=T)[0] == "OK"
    assert used(probe, leaves, view) == 0


@pytest.mark.parametrize(("tag", "seconds", "kept"), [("f", 300, 288), ("c", 10800, 240), ("d", 86400, 40)])
def test_cells_are_kept_exactly_as_long_as_a_window_needs_them(probe: Probe, tag: str, seconds: int, kept: int) -> None:
    def view(at: int) -> bytes:
        return probe.view(day=DAY + (at - T) // 86400)

    start = T - T % 10800
    cell = f"o|{tag}" + str({"f": start // 300, "c": start // 10800, "d": DAY + (start - T) // 86400}[tag])
    assert probe.admit("a", start, view(start), 5, lease=10**8) == ["OK", 1]
    last = start + kept * seconds
    assert probe.admit("b", last, view(last), 0) == ["OK", 1]
    assert probe.cell(cell) == "5 0 1"
    # Written late, it is still kept; one bucket on it is gone, and a late settlement does not bring it back.
    assert probe.renew("a", last, 6, ack=start, lease=10**8) == ["OK"]
    assert probe.cell(cell) == "6 0 1"
    assert probe.admit("c", last + seconds, view(last + seconds), 0) == ["OK", 1]
    assert probe.cell(cell) is None
    assert probe.settle("a", last + seconds, 7, ack=start)[0] == "OK"
    assert probe.cell(cell) is None


def test_a_record_that_slept_for_a_year_wakes_up_empty_and_clean(probe: Probe) -> None:
    kinds = [kind for kind, _, _ in ROLLING]
    view = probe.view(windowed(*kinds), until=T + 10**9)
    assert probe.admit("a", T, view, 5) == ["OK", 1]
    assert probe.settle("a", T, 5, ack=T)[0] == "OK"
    later = T + 366 * 86400
    assert probe.sweep(later)[0] == "OK"
    assert probe.admit("b", later, probe.view(windowed(*kinds), day=DAY + 366, until=T + 10**9), 1) == ["OK", 1]
    assert [probe.record().used[records.code(kind)] for kind in kinds] == [(1, 0, 1)] * 4
    assert {name for name in probe.dump() if b"|" in name} == set()


def test_what_a_dropped_period_had_reserved_goes_with_it(probe: Probe) -> None:
    """Invariant 9, with a hold that lives through two periods' ends; it settles on terms that nobody keeps any more."""
    probe.warm(granted=100)

    def view(start: int) -> bytes:
        return probe.view(quota=10, allowed=True, since=start, until=start + 60, period=T - 1000, fund=start)

    assert probe.admit("a", T, view(T), 40, lease=10**6) == ["OK", 1]
    assert probe.meta()[4] == 30
    assert probe.admit("b", T + 60, view(T + 60), 20, lease=10**6) == ["OK", 1]
    assert probe.meta()[4] == 40
    assert probe.admit("c", T + 120, view(T + 120), 15) == ["OK", 1]
    assert probe.meta()[4] == 10 + 5
    assert probe.settle("a", T + 121, 40, ack=T) == ["OK", 10, 30, 0, 0]
    assert probe.meta()[3:5] == [30, 15]
    assert (probe.funding()["held"], probe.funding(previous=True)["held"]) == (15, 20)
    assert probe.settle("b", T + 122, 20, ack=T) == ["OK", 10, 10, 0, 0]
    assert probe.settle("c", T + 123, 15, ack=T) == ["OK", 10, 5, 0, 0]
    assert probe.meta()[3:5] == [45, 0]


def test_a_restored_hold_two_periods_ahead_drops_what_the_oldest_had_reserved(probe: Probe) -> None:
    probe.warm(granted=100)

    def view(start: int) -> bytes:
        return probe.view(quota=10, allowed=True, since=start, until=start + 60, period=T - 1000, fund=start)

    assert probe.admit("a", T, view(T), 40, lease=10**6) == ["OK", 1]
    assert probe.admit("b", T + 60, view(T + 60), 20, lease=10**6) == ["OK", 1]
    copy, leases = probe.dump(), probe.redis.zrange(probe.keys[1], 0, -1, withscores=True)
    assert probe.admit("c", T + 120, view(T + 120), 15, lease=10**6) == ["OK", 1]
    probe.redis.delete(*probe.keys[:2])
    probe.redis.hset(probe.keys[0], mapping=copy)
    probe.redis.zadd(probe.keys[1], dict(leases))  # type: ignore[arg-type]
    assert probe.renew("c", T + 121, ack=T + 120) == ["RESTORED"]
    assert probe.meta()[4] == 10 + 5
    assert (probe.funding()["start"], probe.funding()["held"], probe.funding()["quota"]) == (T + 120, 15, 10)
    assert probe.funding(previous=True)["start"] == T + 60


def test_a_renewed_orphan_keeps_the_longer_tombstone_when_the_clock_steps_back(probe: Probe) -> None:
    assert probe.admit("a", T, probe.view(), 5, lease=1) == ["OK", 1]
    assert probe.sweep(T + 10) == ["OK", 1, 0, 0]
    assert probe.renew("a", T + 60, ack=T) == ["ORPHANED"]
    assert probe.renew("a", T - 4000, ack=T) == ["ORPHANED"]
    assert probe.redis.zscore(probe.keys[1], "a") == ms(T + 960)


def test_a_restored_hold_moves_the_organization_s_newest_second(probe: Probe) -> None:
    """Invariant 10: an open bucket is never later than the newest second, nor the second than any admission in it."""
    assert probe.admit("a", T, probe.view(), 1) == ["OK", 1]
    copy = probe.dump()
    assert probe.admit("b", T + 100, probe.view(), 1) == ["OK", 1]
    probe.redis.delete(probe.keys[0])
    probe.redis.hset(probe.keys[0], mapping=copy)
    assert probe.renew("b", T + 101, ack=T + 100) == ["RESTORED"]
    assert probe.admit("c", T + 50, probe.view(until=T + 60), 1) == ["ROLL", T + 100]


def test_the_server_s_own_clock_is_used_where_no_time_is_given(probe: Probe) -> None:
    """Moved by the key of the test settings, and by nothing else."""
    seconds, _ = sync_client().time()  # type: ignore[misc]
    view = probe.view(since=0, until=10**11, day=740_000, period=seconds - 1000)

    def now(*arguments: Any) -> int:
        answer: int = engine.PUBLISH.run(probe.redis, probe.keys, ("", *arguments))[1]
        return answer

    assert abs(now("", "", 0) - seconds * 1000) < 5000
    key = "quotas:test:clock-offset"
    try:
        sync_client().set(key, 86_400_000)
        assert abs(now("", "", 0) - seconds * 1000 - 86_400_000) < 5000
        assert probe.admit("a", seconds + 5, view, 1)[0] == "OK"
        ticket = probe.redis.hget(probe.keys[0], "h:a")
        assert isinstance(ticket, bytes)
        assert records.read_ticket(ticket).second == seconds + 5
    finally:
        sync_client().delete(key)
