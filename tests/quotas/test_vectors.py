"""The engine's worked vectors, exactly: T = 1800000000, day 740000, period start T - 1000."""

from collections.abc import Iterator

import pytest

from quotas import engine, records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import DAY, ONE, Probe, T, five_hours

FIVE_HOURS = records.code(records.FIVE_HOURS)


@pytest.fixture
def probe() -> Iterator[Probe]:
    made = Probe()
    made.warm()
    yield made
    made.wipe()


def test_v1_a_hold_is_counted_renewed_settled_once(probe: Probe) -> None:
    view = probe.view((five_hours(1000),))
    assert probe.admit("a", T, view, 600, 50) == ["OK", 1]
    record = probe.record()
    assert (record.used[FIVE_HOURS], record.held_c) == ((600, 50, 1), 600)
    assert probe.admit("a", T, view, 600, 50) == ["DUP", "L"]
    assert probe.admit("b", T, view, 401) == ["NO", "o", 1, 2, 1000, 600, 600, 1800018300]
    assert probe.renew("a", T + 9, 700, 20, ack=T) == ["OK"]
    assert probe.record().used[FIVE_HOURS] == (700, 50, 1)
    assert probe.admit("b", T + 9, view, 301) == ["NO", "o", 1, 2, 1000, 700, 700, 1800018300]
    assert probe.settle("a", T + 10, 450, 40, ack=T + 9) == ["OK", 450, 0, 0, 0]
    record = probe.record()
    assert (record.used[FIVE_HOURS], record.live, record.held_c, record.held_t) == ((450, 40, 1), 0, 0, 0)
    assert probe.settle("a", T + 11, 450, 40, ack=T + 9) == ["DUP", "S", 450, 450, 0, 0, 0]
    (event,) = probe.events()
    assert (event.request_id, event.part, event.state, event.credits, event.tokens, event.requests) == ("a", 0, "S", 450, 40, 1)
    assert (event.admitted_s, event.ended_ms, event.source, event.records) == (T, (T + 10) * 1000, "o", ("o",))


def test_v2_the_bucket_at_the_window_edge_still_counts(probe: Probe) -> None:
    view = probe.view((five_hours(100),))
    t0 = T + 299
    assert probe.admit("a", t0, view, 100) == ["OK", 1]
    assert probe.settle("a", t0, 100, ack=t0) == ["OK", 100, 0, 0, 0]
    assert probe.admit("b", t0 + 17999, view, 1) == ["NO", "o", 1, 2, 100, 100, 0, 1800018300]
    assert probe.admit("b", t0 + 18000, view, 1) == ["NO", "o", 1, 2, 100, 100, 0, 1800018300]
    assert probe.admit("b", t0 + 18001, view, 1) == ["OK", 1]


def test_v3_allowance_then_purchased_then_overage_then_overdraft(probe: Probe) -> None:
    probe.warm(granted=300)
    view = probe.view(quota=1000, allowed=True, cap=50)
    assert probe.admit("a", T, view, 900) == ["OK", 1]
    assert probe.admit("b", T, view, 450) == ["OK", 1]
    assert (probe.funding()["held"], probe.funding()["reserved"], probe.meta()[4]) == (1350, 300, 300)
    assert probe.admit("c", T, view, 1) == ["NO", "plan", 1, 9, 1000, 1350, 1350, 0]
    assert probe.settle("a", T, 700, ack=T) == ["OK", 700, 0, 0, 0]
    assert (probe.funding()["reserved"], probe.meta()[4]) == (150, 150)
    assert probe.settle("b", T, 800, ack=T) == ["OK", 300, 300, 50, 150]
    funding = probe.funding()
    assert [funding[name] for name in ("used", "purchased", "overage", "overdraft", "reserved", "held")] == [
        1000,
        300,
        50,
        150,
        0,
        0,
    ]
    assert probe.meta()[3:5] == [300, 0]
    assert probe.admit("c", T, view, 1) == ["NO", "plan", 1, 9, 1000, 1000, 0, 0]
    assert probe.admit("free", T, view, 0) == ["OK", 1]


def test_v4_the_sweeper_books_what_was_observed_and_a_late_settlement_amends_it_once(probe: Probe) -> None:
    view = probe.view((five_hours(10**9),))
    assert probe.admit("a", T, view, 500, 10, lease=60, about=b'{"about":1}') == ["OK", 1]
    assert probe.renew("a", T + 5, 120, 3, ack=T, lease=60) == ["OK"]
    assert probe.sweep(T + 64.999) == ["OK", 0, 0, 0]
    assert probe.sweep(T + 65) == ["OK", 1, 0, 0]
    assert probe.record().used[FIVE_HOURS] == (120, 3, 1)
    assert probe.renew("a", T + 66, 130, 3, ack=T + 5) == ["ORPHANED"]
    assert probe.record().used[FIVE_HOURS] == (120, 3, 1)
    assert probe.settle("a", T + 70, 410, 9, ack=T + 5, body=b'{"real":1}') == ["AMENDED", 410, 0, 0, 0]
    record = probe.record()
    assert (record.used[FIVE_HOURS], record.live, record.held_c) == ((410, 9, 1), 0, 0)
    assert probe.settle("a", T + 71, 410, 9, ack=T + 5) == ["DUP", "S", 410, 410, 0, 0, 0]
    first, second = probe.events()
    assert (first.part, first.state, first.credits, first.tokens, first.requests, first.body) == (0, "O", 120, 3, 1, b'{"about":1}')
    assert (second.part, second.state, second.credits, second.tokens, second.requests) == (1, "S", 290, 6, 0)
    assert second.body == b'{"real":1}'


def test_v5_a_day_and_a_period_end_inside_a_bucket(probe: Probe) -> None:
    def day(ordinal: int) -> tuple[RecordView, ...]:
        return (RecordView("o", (records.code(records.DAY, ordinal),), (Question(records.CREDITS, 1, 1000),)),)

    old = probe.view(day(DAY), until=T + 60)
    new = probe.view(day(DAY + 1), day=DAY + 1, since=T + 60, period=T + 60)
    assert probe.admit("a", T, old, 500) == ["OK", 1]
    assert probe.admit("b", T + 60, old, 1000) == ["ROLL", 1800000060]
    assert probe.admit("b", T + 60, new, 1000) == ["OK", 1]
    assert probe.settle("a", T + 70, 400, ack=T) == ["OK", 400, 0, 0, 0]
    record = probe.record()
    assert record.used[records.code(records.DAY, DAY + 1)] == (1000, 0, 1)
    assert record.used[0] == (1000, 0, 1)
    assert (probe.funding(previous=True)["used"], probe.funding(previous=True)["held"]) == (400, 0)
    assert [probe.cell(f"o|{cell}") for cell in ("f6000000", "c166666", "d740000")] == ["400 0 1"] * 3


def test_v6_a_new_limit_counts_what_its_window_already_used(probe: Probe) -> None:
    """E4 and A23 at the engine: limits are questions put to records that always count."""
    plain = probe.view((RecordView("o"), RecordView("k1")))
    for i, at in enumerate((T, T + 4000, T + 8000)):
        assert probe.admit(f"r{i}", at, plain, 100) == ["OK", 1]
        assert probe.settle(f"r{i}", at, 100, ack=at) == ["OK", 100, 0, 0, 0]
    codes = (records.code(records.FIVE_HOURS), records.code(records.SEVEN_DAYS), records.code(records.DAY, DAY))
    limits = (Question(records.CREDITS, 1, 250), Question(records.CREDITS, 2, 300), Question(records.CREDITS, 3, 350))
    limited = probe.view((RecordView("o"), RecordView("k1", codes, limits)), version=2)
    assert probe.admit("x", T + 20000, limited, 51) == ["NO", "k1", 1, 2, 250, 200, 0, 1800022200]
    assert [probe.record("k1").used[code][0] for code in codes] == [200, 300, 300]
    assert probe.admit("y", T + 20000, plain, 1) == ["STALE", 2]


def test_v7_a_release_stops_an_admit_that_is_still_on_its_way(probe: Probe) -> None:
    assert probe.release("late", T) == ["LATE", 0, 0, 0, 0]
    assert probe.admit("late", T + 1, probe.view(), 5) == ["DUP", "R"]
    assert probe.field("o") is None
    assert probe.events() == []


def test_v8_a_live_hold_comes_back_after_everything_was_deleted(probe: Probe) -> None:
    view = probe.view((five_hours(10**9),))
    assert probe.admit("a", T, view, 300, 7) == ["OK", 1]
    probe.wipe()
    assert probe.admit("b", T + 1, view, 1) == ["COLD"]
    assert probe.renew("a", T + 1, ack=T) == ["COLD"]
    terms = [T - 1000, 10**15, 0, 0, 0, 0, 0, 0, 0, 0]
    probe.redis.hset(probe.keys[3], mapping={"$": records.pack([2, 1, 0, 0, 0, 0, 0]), "f:o": records.pack(terms)})
    assert probe.run(engine.REBUILD, (T + 2) * 1000, "", "0-0", 0) == ["OK"]
    assert probe.renew("a", T + 3, ack=T) == ["RESTORED"]
    record = probe.record()
    assert (record.used[0], record.live, probe.funding()["held"]) == ((300, 7, 1), 1, 300)
    assert probe.settle("a", T + 4, 200, 7, ack=T + 3) == ["OK", 200, 0, 0, 0]
    assert probe.record().used[0] == (200, 7, 1)


def test_v9_requests_per_minute(probe: Probe) -> None:
    view = probe.view((RecordView("o", (), (Question(records.PER_MINUTE, 0, 3),)),))
    for i, at in enumerate((T, T + 5, T + 9)):
        assert probe.admit(f"r{i}", at, view) == ["OK", 1]
    for at in (T + 10, T + 59, T + 60, T + 69):
        assert probe.admit("r9", at, view) == ["NO", "o", 4, 0, 3, 3, 0, 1800000070]
    assert probe.admit("r9", T + 70, view) == ["OK", 1]


def test_v10_zero_blocks_what_needs_any_and_postpaid_settles_what_it_cost(probe: Probe) -> None:
    """A20 and A23 at the engine."""
    blocked = probe.view((RecordView("o", (), (Question(records.CREDITS, 0, 0),)),))
    assert probe.admit("a", T, blocked, 1) == ["NO", "o", 1, (T - 1000) * 16 + 1, 0, 0, 0, -1]
    assert probe.admit("a", T, blocked, 0) == ["OK", 1]
    probe.warm()
    view = probe.view(ONE, quota=100)
    assert probe.admit("p", T, view, 1, hold=0) == ["OK", 1]
    assert probe.funding()["held"] == 0
    assert probe.settle("p", T, 130, ack=T) == ["OK", 100, 0, 0, 30]
    assert probe.admit("q", T, view, 1, hold=0) == ["NO", "plan", 1, 9, 100, 100, 0, 0]
