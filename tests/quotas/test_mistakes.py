"""What went wrong on the way, here or in drafts: each mistake has its test.

1 is V2 and the real-window test too; 6 and 8 are in the rebuild's tests too, 4 in the Renewer's. 10 and 11 are about repairs: in
test_adjusting. Where a mistake has two places (quotas.md says that putting one back alone is not caught), each has its own test.
"""

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from config.redis import ReplyError
from quotas import engine, records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import DAY, Probe, T, five_hours, ms

MEMBER = (RecordView("o"), RecordView("m1"))


@pytest.fixture
def probe() -> Iterator[Probe]:
    made = Probe()
    made.warm()
    yield made
    made.wipe()


def test_1_a_window_counts_one_bucket_more_than_it_is_long(probe: Probe) -> None:
    """7 days are 57 coarse buckets: what was used 7 days less a second ago still counts."""
    view = probe.view((RecordView("o", (records.code(records.SEVEN_DAYS),), (Question(records.CREDITS, 1, 10),)),))
    at = T - T % 10800 + 10799
    assert probe.admit("a", at, view, 10) == ["OK", 1]
    assert probe.admit("b", at + 7 * 86400 - 1, view, 1)[0] == "NO"
    assert probe.admit("b", at + 7 * 86400 + 1, view, 1) == ["OK", 1]


def test_2_an_ended_hold_is_not_counted_again_after_the_clock_stepped_back(probe: Probe) -> None:
    """By the age of its ack it could not have ended; the sweep mark knows that tombstones were dropped since."""
    view = probe.view()
    assert probe.admit("a", T, view, 5) == ["OK", 1]
    assert probe.settle("a", T + 1, 5, ack=T) == ["OK", 5, 0, 0, 0]
    assert probe.sweep(T + 902) == ["OK", 0, 1, 0]
    before = probe.dump()
    back = T + 902 - 7200
    assert probe.renew("a", back, ack=T) == ["UNKNOWN"]
    assert probe.settle("a", back, 5, ack=T) == ["LOGGED"]
    assert probe.release("a", back, ack=T) == ["GONE"]
    assert probe.dump() == before


def test_3_a_tombstone_lasts_from_when_its_hold_was_last_seen_alive(probe: Probe) -> None:
    view = probe.view()
    assert probe.admit("a", T, view, 5, lease=10_000) == ["OK", 1]
    assert probe.renew("a", T + 50, ack=T, lease=10_000) == ["OK"]
    assert probe.settle("a", T - 7200, 5, ack=T + 50) == ["OK", 5, 0, 0, 0]
    assert probe.redis.zscore(probe.keys[1], "a") == ms(T + 50 + 900)
    assert probe.events()[0].ended_ms == ms(T + 50)
    assert probe.sweep(T + 949) == ["OK", 0, 0, 0]
    assert probe.settle("a", T + 949, 5, ack=T + 50)[0] == "DUP"


def test_4_a_settlement_with_the_ack_from_before_its_orphan_is_not_booked_on_top(probe: Probe) -> None:
    """`ORPHANED` does not move the ack (the Renewer's test shows that), so after the tombstone has gone it is only logged."""
    view = probe.view()
    assert probe.admit("a", T, view, 5, lease=1) == ["OK", 1]
    assert probe.sweep(T + 2) == ["OK", 1, 0, 0]
    assert probe.sweep(T + 902) == ["OK", 0, 1, 0]
    assert probe.settle("a", T + 950, 5, ack=T) == ["LOGGED"]
    assert probe.record().used[0] == (0, 0, 1)


def test_5_a_newer_period_resets_the_total_and_an_older_one_does_not_touch_it(probe: Probe) -> None:
    """The record of `m1` is lost; a late settlement of the old period makes it anew, a restored hold is of the new one."""
    old = probe.view(MEMBER, until=T + 60)
    new = probe.view(MEMBER, since=T + 60, period=T + 60)
    assert probe.admit("old", T, old, 7) == ["OK", 1]
    copy = probe.dump()
    assert probe.admit("new", T + 60, new, 9) == ["OK", 1]
    probe.redis.delete(probe.keys[0], probe.keys[1])
    probe.redis.hset(probe.keys[0], mapping={name: raw for name, raw in copy.items() if name in (b"$", b"f:o")})
    assert probe.settle("old", T + 70, 7, ack=T)[0] == "LATE"
    assert probe.record("m1").used[0] == (7, 0, 1)
    assert probe.renew("new", T + 71, ack=T + 60) == ["RESTORED"]
    assert (probe.record("m1").used[0], probe.record("m1").live) == ((9, 0, 1), 1)
    assert probe.release("x", T + 72) == ["LATE", 0, 0, 0, 0]
    # And the other way round: the old one comes after the new one.
    assert probe.settle("new", T + 73, 9, ack=T + 71)[0] == "OK"
    probe.redis.hdel(probe.keys[0], "h:old")
    assert probe.settle("old", T + 74, 7, ack=T)[0] == "LATE"
    assert probe.record("m1").used[0] == (9, 0, 1)


def test_6_a_record_rolled_by_a_refused_admission_carries_the_newest_second(probe: Probe) -> None:
    """A step back before the period's start must not roll it again."""

    def limited(amount: int) -> tuple[RecordView, ...]:
        return (RecordView("o", (), (Question(records.CREDITS, 0, amount),)),)

    old = probe.view(limited(10), until=T + 60)
    assert probe.admit("a", T, old, 5) == ["OK", 1]
    new = probe.view(limited(10), since=T + 60, period=T + 60)
    assert probe.admit("b", T + 61, new, 11)[0] == "NO"
    assert probe.admit("c", T + 62, new, 4) == ["OK", 1]
    assert probe.admit("d", T + 30, old, 1) == ["ROLL", T + 62]
    assert probe.admit("d", T + 30, new, 7)[:6] == ["NO", "o", 1, (T + 60) * 16 + 1, 10, 4]
    # The refusal alone is enough to move the organization's newest second.
    probe.warm()
    assert probe.admit("a", T, old, 5) == ["OK", 1]
    assert probe.admit("b", T + 61, new, 11)[0] == "NO"
    assert probe.admit("c", T + 30, old, 1) == ["ROLL", T + 61]


def test_7_a_refused_admission_raises_the_version_it_has_proved_old(probe: Probe) -> None:
    refusing = (RecordView("o", (), (Question(records.CREDITS, 0, 0),)),)
    assert probe.admit("a", T, probe.view(refusing, version=5), 1)[0] == "NO"
    assert probe.meta()[1] == 5
    assert probe.admit("b", T, probe.view(version=4), 1) == ["STALE", 5]
    # The plan's refusal and a roll say so too.
    assert probe.admit("c", T, probe.view(version=6, quota=0), 1)[:2] == ["NO", "plan"]
    assert probe.admit("d", T, probe.view(version=7, until=T), 1)[0] == "ROLL"
    assert probe.meta()[1] == 7


def test_8_restoring_a_hold_of_a_source_without_an_entry_keeps_what_it_holds(probe: Probe) -> None:
    view = probe.view(source="m2")
    assert probe.admit("a", T, view, 300) == ["OK", 1]
    probe.redis.hdel(probe.keys[0], "h:a", "f:m2", "o")
    probe.redis.delete(probe.keys[1])
    assert probe.renew("a", T + 1, ack=T) == ["RESTORED"]
    assert probe.funding("m2")["held"] == 300
    assert probe.settle("a", T + 2, 200, ack=T + 1) == ["OK", 200, 0, 0, 0]
    assert (probe.funding("m2")["held"], probe.funding("m2")["used"]) == (0, 200)


def test_9_a_hold_newer_than_its_record_advances_it_first(probe: Probe) -> None:
    """Else its amount would stand in the total of a window from which no roll ever takes it."""
    view = probe.view((five_hours(1000),))
    assert probe.admit("a", T, view, 1) == ["OK", 1]
    copy, leases = probe.dump(), probe.redis.zrange(probe.keys[1], 0, -1, withscores=True)
    assert probe.admit("b", T + 4000, view, 100) == ["OK", 1]
    probe.redis.delete(*probe.keys[:2])
    probe.redis.hset(probe.keys[0], mapping=copy)
    probe.redis.zadd(probe.keys[1], dict(leases))  # type: ignore[arg-type]
    assert probe.settle("b", T + 4001, 100, ack=T + 4000)[0] == "LATE"
    assert probe.record().used[2] == (101, 0, 2)
    code = probe.peek(T + 4000 + 18300, view)[5][7:]
    assert code == [2, 0, 0, 0]


def test_12_a_hold_that_takes_the_allowance_first_does_not_strand_another(probe: Probe) -> None:
    """Reservations are a function of a source's sums, not shares kept in holds."""
    probe.warm(granted=100)
    view = probe.view(quota=100, allowed=True)
    assert probe.admit("a", T, view, 100) == ["OK", 1]
    assert probe.admit("b", T, view, 100) == ["OK", 1]
    # b was admitted on purchased credits, and ends first: it takes the allowance; a then finds the purchased ones.
    assert probe.settle("b", T, 100, ack=T) == ["OK", 100, 0, 0, 0]
    assert probe.funding()["reserved"] == 100
    assert probe.settle("a", T, 100, ack=T) == ["OK", 0, 100, 0, 0]
    assert probe.meta()[3:5] == [100, 0]


def test_13_what_python_packs_the_engine_can_read(probe: Probe) -> None:
    packed = records.pack(["text", b"bytes", 0, 127, 128, 2**50, -1, -(2**40)])
    assert records.unpack(packed) == ["text", "bytes", 0, 127, 128, 2**50, -1, -(2**40)]
    read = "local v = {cmsgpack.unpack(ARGV[1])}; return cmsgpack.pack(unpack(v))"
    assert probe.redis.eval(read, 0, packed) == packed
    for value in (1.5, None, True, [1], {"a": 1}):
        with pytest.raises(TypeError):
            records.pack([value])
    with pytest.raises(Exception, match=r"[Bb]ad data|format"):
        probe.redis.eval(read, 0, msgpack.packb(b"bin", use_bin_type=True))


WRONG = (-1, "x", "", "nan", engine.MOST + 1)
ADMIT = ["a", 1, 1, 1, 1, 0, 0, 1000, "{}"]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        *[(engine.ADMIT, [*ADMIT[:i], bad, *ADMIT[i + 1 :], "VIEW"]) for i in range(1, 7) for bad in WRONG],
        (engine.ADMIT, [*ADMIT[:7], "x", "{}", "VIEW"]),
        (engine.ADMIT, ["", *ADMIT[1:], "VIEW"]),
        (engine.ADMIT, [*ADMIT[:8], "x" * 513, "VIEW"]),
        (engine.ADMIT, [*ADMIT, b""]),
        (engine.ADMIT, [*ADMIT, b"\xc1"]),
        (engine.ADMIT, [*ADMIT, records.pack([1, 2, 3])]),
        (engine.ADMIT, []),
        (engine.RENEW, ["live", -1, 0, 1000, T * 1000, ""]),
        (engine.RENEW, ["live", "x", 0, 1000, T * 1000, ""]),
        (engine.RENEW, ["unknown", 0, 0, 1000, T * 1000, "nonsense"]),
        (engine.RENEW, ["unknown", 0, 0, 1000, T * 1000, ""]),
        (engine.RENEW, ["unknown", 0, 0, 1000, "x", ""]),
        (engine.SETTLE, ["live", "S", -1, 0, T * 1000, "", "{}", "", "", ""]),
        (engine.SETTLE, ["live", "S", engine.MOST + 1, 0, T * 1000, "", "{}", "", "", ""]),
        (engine.SETTLE, ["live", "X", 1, 0, T * 1000, "", "{}", "", "", ""]),
        (engine.SETTLE, ["live", "S", 1, 0, T * 1000, "", "{}", "x", "", ""]),
        (engine.SETTLE, ["live", "S", 1, 0, T * 1000, "nonsense", "{}", "", "", ""]),
        (engine.SETTLE, ["unknown", "S", 1, 0, T * 1000, "", "{}", "", "", ""]),
        (engine.SETTLE, ["", "S", 1, 0, T * 1000, "", "{}", "", "", ""]),
        (engine.SWEEP, ["x"]),
        (engine.SWEEP, [0]),
        (engine.PUBLISH, ["x", "", 0]),
        (engine.REBUILD, ["1", "0-0", 0]),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(probe: Probe, script: Any, arguments: list[Any]) -> None:
    view = probe.view((five_hours(1000),))
    assert probe.admit("live", T, view, 10, 1) == ["OK", 1]
    before, leases = probe.dump(), probe.lease_ids()
    arguments = [view if argument == "VIEW" else argument for argument in arguments]
    with pytest.raises(ReplyError):
        probe.run(script, ms(T + 1), *arguments)
    assert probe.dump() == before
    assert probe.lease_ids() == leases
    assert probe.redis.exists(probe.keys[2]) == 0
    with pytest.raises(ReplyError):
        probe.run(script, "yesterday", *arguments)


def test_a_refused_admission_changes_no_sum(probe: Probe) -> None:
    """Invariant 14, across a bucket's and a day's end: cells move, sums do not."""
    day = (RecordView("o", (2, records.code(records.DAY, DAY)), (Question(1, 1, 100), Question(1, 2, 100))), RecordView("k1"))
    assert probe.admit("a", T, probe.view(day), 100) == ["OK", 1]
    for at in (T, T + 300, T + 4000):
        assert probe.admit("b", at, probe.view(day), 1)[0] == "NO"
        assert (probe.record().used[0], probe.record().live, probe.record().held_c) == ((100, 0, 1), 1, 100)
        assert probe.record("k1").used[0] == (100, 0, 1)
        assert probe.funding()["held"] == 100
    assert probe.hold_ids() == probe.lease_ids() == {"a"}


def test_publishing_is_monotone(probe: Probe) -> None:
    """Invariant 12: repeats and reorderings do no harm."""
    assert probe.publish(T, 5) == ["OK", 5]
    assert probe.publish(T, 3) == ["OK", 5]
    assert probe.publish(T, "", 2, 700) == ["OK", 5]
    assert probe.publish(T, "", 1, 300) == ["OK", 5]
    assert probe.meta()[5:] == [700, 2]
    probe.wipe()
    assert probe.publish(T, 9) == ["COLD"]
    assert probe.sweep(T) == ["COLD"]
    assert probe.peek(T, probe.view()) == ["COLD"]


def test_peek_answers_as_admit_would_and_writes_nothing(probe: Probe) -> None:
    view = probe.view((five_hours(1000),), quota=500)
    assert probe.admit("a", T, view, 200, 20) == ["OK", 1]
    before = probe.dump()
    _, epoch, second, funding, purchased, record = probe.peek(T + 4000, view)
    assert (epoch, second, purchased) == (1, T + 4000, [0, 0, 0])
    assert funding == [T - 1000, 500, 0, 0, 0, 200, 0, 0, 0, 0]
    assert record == [1, 200, 20, 0, 200, 20, 1, 2, 200, 20, 1]
    assert probe.peek(T, probe.view(version=0)) == ["STALE", 1]
    assert probe.peek(T + 4000, probe.view(until=T + 1)) == ["ROLL", T + 4000]
    # A period that has begun, and a record that nobody has used, read as 0.
    _, _, _, funding, _, record, unused = probe.peek(T + 70, probe.view((RecordView("o"), RecordView("k9", (2,))), period=T + 60))
    assert (funding[4:], record[4:7], unused) == ([0] * 6, [0, 0, 0], [0] * 7 + [2, 0, 0, 0])
    assert probe.dump() == before


def test_terms_of_the_period_are_taken_if_the_snapshot_still_has_them(probe: Probe) -> None:
    assert probe.admit("a", T, probe.view(quota=1000), 900) == ["OK", 1]
    assert probe.settle("a", T + 1, 900, ack=T, terms=(500, 0, 100)) == ["OK", 500, 0, 100, 300]
    assert probe.funding()["quota"] == 500


def test_a_seat_and_the_organization_share_purchased_credits_but_not_quotas(probe: Probe) -> None:
    """Invariant 9: one source's reservation is another's missing credit."""
    probe.warm(granted=100)
    shared = probe.view(quota=0, allowed=True)
    seat = probe.view(source="m1", quota=50, allowed=True)
    assert probe.admit("a", T, shared, 80) == ["OK", 1]
    assert probe.admit("b", T, seat, 71)[:4] == ["NO", "plan", 1, 9]
    assert probe.admit("b", T, seat, 70) == ["OK", 1]
    assert (probe.funding("o")["reserved"], probe.funding("m1")["reserved"], probe.meta()[4]) == (80, 20, 100)
    # What the other source has reserved is set aside, also when this one costs more than it held.
    assert probe.settle("b", T, 90, ack=T) == ["OK", 50, 20, 0, 20]
    assert probe.settle("a", T, 80, ack=T) == ["OK", 0, 80, 0, 0]
    assert probe.meta()[3:5] == [100, 0]
