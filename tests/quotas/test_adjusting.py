"""Repairs: additions to living counters, each once, in front of traffic and behind it."""

import random
import threading
from collections.abc import Iterator

import pytest
from django.db import connections

from quotas import adjusting, engine, records
from quotas.adjusting import Cell, Delta, Funding, Spent, Total
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import DAY, Probe, T, five_hours, ms

PERIOD = records.code(records.PERIOD, T - 1000)
FIVE_HOURS = records.code(records.FIVE_HOURS)
SEVEN_DAYS = records.code(records.SEVEN_DAYS)
TODAY = records.code(records.DAY, DAY)
CODES = (FIVE_HOURS, SEVEN_DAYS, TODAY)
FINE, COARSE = T // 300, T // 10800


@pytest.fixture
def probe() -> Iterator[Probe]:
    made = Probe(organization=1042)
    made.warm()
    yield made
    made.wipe()


def adjust(probe: Probe, *deltas: Delta, repair: str = "fix", at: float = T, epoch: int = 1) -> str:
    return adjusting.adjust(probe.organization, epoch, repair, deltas, now_ms=ms(at))


def everywhere(record: str, c: int, t: int = 0, n: int = 0, *, at: int = T) -> list[Delta]:
    """What a request's difference means for its record: each ring and the period."""
    cells = [Cell(record, tag, where, c, t, n) for tag, where in (("f", at // 300), ("c", at // 10800), ("d", DAY))]
    return [*cells, Total(record, PERIOD, c, t, n)]


def wide(name: str = "o") -> RecordView:
    return RecordView(name, CODES, tuple(Question(records.CREDITS, i, 10**12) for i in range(4)))


def windows(probe: Probe, at: float, view: bytes, index: int = 0) -> dict[int, tuple[int, ...]]:
    """What the record counts at a time, as peek tells it: the period under 0, then by code."""
    state = probe.peek(at, view)[5 + index]
    found = {0: tuple(state[4:7])}
    for p in range(7, 7 + 4 * len(CODES), 4):
        found[state[p]] = tuple(state[p + 1 : p + 4])
    return found


def test_differences_reach_every_window_and_the_period_once(probe: Probe) -> None:
    view = probe.view([wide()])
    assert probe.admit("a", T, view, 100, 10) == ["OK", 1]
    assert probe.settle("a", T, 100, 10, ack=T) == ["OK", 100, 0, 0, 0]
    assert adjust(probe, *everywhere("o", 40, 4, 1)) == "OK"
    assert windows(probe, T, view) == dict.fromkeys((0, *CODES), (140, 14, 2))
    assert adjust(probe, *everywhere("o", 40, 4, 1)) == "DUP"
    assert windows(probe, T, view) == dict.fromkeys((0, *CODES), (140, 14, 2))
    # The next admission sums the windows from the cells, and refuses by them.
    tight = probe.view([RecordView("o", (FIVE_HOURS,), (Question(records.CREDITS, 1, 150),))], version=2)
    assert probe.admit("b", T + 1, tight, 11)[:6] == ["NO", "o", 1, FIVE_HOURS, 150, 140]
    assert probe.admit("c", T + 1, tight, 10) == ["OK", 1]


def test_negative_differences_take_back_what_was_too_much(probe: Probe) -> None:
    view = probe.view([wide()])
    probe.admit("a", T, view, 100, 10)
    probe.settle("a", T, 100, 10, ack=T)
    assert adjust(probe, *everywhere("o", -30, -3)) == "OK"
    assert windows(probe, T + 300, view) == dict.fromkeys((0, *CODES), (70, 7, 1))


def test_counters_of_another_epoch_are_left_alone(probe: Probe) -> None:
    probe.warm(epoch=5)
    before = probe.dump()
    assert adjust(probe, *everywhere("o", 40), epoch=4) == "LOST"
    assert probe.dump() == before
    probe.wipe()
    assert adjust(probe, *everywhere("o", 40), epoch=5) == "LOST"
    assert probe.dump() == {}


def test_a_repair_goes_on_under_traffic(probe: Probe) -> None:
    """The open bucket may have closed, and holds may have ended, between the look and the addition."""
    view = probe.view([wide()])
    probe.admit("a", T, view, 100)
    missing = everywhere("o", 40)
    assert probe.settle("a", T + 290, 70, ack=T) == ["OK", 70, 0, 0, 0]
    probe.admit("b", T + 400, view, 5)
    assert adjust(probe, *missing, at=T + 500) == "OK"
    assert windows(probe, T + 500, view) == dict.fromkeys((0, *CODES), (115, 0, 2))
    assert probe.cell(f"o|f{FINE}") == "110 0 1"
    # And they leave the window as if they had always been there.
    assert windows(probe, T + 18_400, view)[FIVE_HOURS] == (5, 0, 1)


def test_10_a_record_that_is_missing_is_made(probe: Probe) -> None:
    """Mistake 10: skipped, a later admission would make it empty and the difference would stay."""
    view = probe.view([wide(), wide("m7")])
    assert adjust(probe, *everywhere("o", 60, 6, 2), *everywhere("m7", 25, 2, 1)) == "OK"
    assert windows(probe, T, view) == dict.fromkeys((0, *CODES), (60, 6, 2))
    assert probe.admit("a", T + 5, view, 1) == ["OK", 1]
    assert windows(probe, T + 5, view, 1) == dict.fromkeys((0, *CODES), (26, 2, 2))


def test_10_a_period_newer_than_the_record_begins_with_what_is_added(probe: Probe) -> None:
    """Mistake 10: the record has seen only the old period, and nothing of the new one was counted."""
    later = records.code(records.PERIOD, T + 60)
    old = probe.view([wide()], until=T + 60)
    probe.admit("a", T, old, 100)
    probe.settle("a", T, 100, ack=T)
    assert adjust(probe, Total("o", later, 30, 3, 1), Total("o", PERIOD, 1000, 0, 0), at=T + 90) == "OK"
    new = probe.view([wide()], since=T + 60, period=T + 60)
    assert windows(probe, T + 90, new)[0] == (30, 3, 1)
    assert probe.admit("b", T + 90, new, 7) == ["OK", 1]
    assert windows(probe, T + 90, new)[0] == (37, 3, 2)


def test_10_a_sources_new_entry_is_made(probe: Probe) -> None:
    """Mistake 10: the entry of the period that has just begun, and of a source that nothing has drawn on yet."""
    view = probe.view(quota=100)
    probe.admit("a", T, view, 10)
    probe.settle("a", T, 10, ack=T)
    assert adjust(probe, Funding("o", T + 60, 30, 0, 0, 2), Funding("m9", T, 5, 0, 0, 0), at=T + 90) == "OK"
    assert (probe.funding()["start"], probe.funding()["used"], probe.funding()["overdraft"]) == (T + 60, 30, 2)
    assert (probe.funding(previous=True)["start"], probe.funding(previous=True)["used"]) == (T - 1000, 10)
    assert (probe.funding("m9")["start"], probe.funding("m9")["used"]) == (T, 5)
    # The next admission brings the terms; what was used stays.
    new = probe.view(since=T + 60, period=T + 60, quota=100)
    assert probe.admit("b", T + 90, new, 71)[:6] == ["NO", "plan", 1, 9, 100, 30]
    assert probe.admit("b", T + 90, new, 70) == ["OK", 1]


def test_11_what_was_spent_is_corrected_before_an_entry_is_refitted(probe: Probe) -> None:
    """Mistake 11: 60 of the 100 purchased credits are spent, so only 40 can be reserved, in whatever order the deltas come."""
    probe.warm(granted=100)
    view = probe.view(quota=100, allowed=True)
    assert probe.admit("a", T, view, 190) == ["OK", 1]
    assert (probe.funding()["reserved"], probe.meta()[4]) == (90, 90)
    assert adjust(probe, Funding("o", T - 1000, 0, 60, 0, 0), Spent(60)) == "OK"
    assert (probe.funding()["reserved"], probe.meta()[3:5]) == (40, [60, 40])
    assert probe.settle("a", T, 190, ack=T) == ["OK", 100, 40, 0, 50]


def test_a_cell_newer_than_its_record_advances_it_first(probe: Probe) -> None:
    """The kind of mistake 9: an amount ahead of the record's open bucket would never be subtracted by a roll."""
    view = probe.view([wide()])
    probe.admit("a", T, view, 100)
    probe.settle("a", T, 100, ack=T)
    later = T + 3000
    assert adjust(probe, *everywhere("o", 40, at=later), at=T) == "OK"
    # Also if the clock is behind it: the second that buckets see has advanced with it.
    assert probe.admit("b", T + 1, view, 1) == ["OK", 1]
    assert windows(probe, T + 1, view)[FIVE_HOURS] == (141, 0, 2)
    assert windows(probe, later + 18_300, view)[FIVE_HOURS] == (0, 0, 0)


def test_cells_that_no_window_needs_any_more_are_not_made(probe: Probe) -> None:
    view = probe.view([wide()])
    probe.admit("a", T, view, 1)
    assert adjust(
        probe, Cell("o", "f", FINE - 289, 5, 0, 0), Cell("o", "c", COARSE - 241, 5, 0, 0), Cell("o", "d", DAY - 41, 5, 0, 0)
    )
    assert [cell for cell in probe.dump() if b"|" in cell] == []


def test_many_differences_are_added_in_pieces_and_repeated_safely(probe: Probe) -> None:
    deltas = [Cell(f"k{i}", "f", FINE, i, 1, 1) for i in range(1, 1001)]
    assert adjust(probe, *deltas) == "OK"
    assert [probe.cell(f"k{i}|f{FINE}") for i in (1, 500, 1000)] == ["1 1 1", "500 1 1", "1000 1 1"]
    assert adjust(probe, *deltas) == "DUP"
    assert probe.cell(f"k1000|f{FINE}") == "1000 1 1"
    assert adjust(probe, *deltas, repair="another") == "OK"
    assert probe.cell(f"k1000|f{FINE}") == "2000 2 2"


@pytest.mark.parametrize("deltas", [["x", 1], ["c", "o", "f", 1, 2], ["t", "o"]])
def test_what_is_no_list_of_differences_changes_nothing(probe: Probe, deltas: list[int | str]) -> None:
    before = probe.dump()
    with pytest.raises(Exception, match="not a list of deltas"):
        probe.run(engine.ADJUST, ms(T), 1, "fix", records.pack(deltas))
    assert probe.dump() == before


@pytest.mark.parametrize("seed", range(6))
def test_damaged_counters_end_as_if_nothing_had_happened(seed: int) -> None:
    """Random histories, one on whole counters and one on counters that lost some of it and were repaired: the same in the end."""
    rng = random.Random(seed)
    whole, damaged = Probe(organization=1043), Probe(organization=1044)
    whole.warm()
    damaged.warm()
    lost: list[Delta] = []
    now = T
    for number in range(60):
        now += rng.choice([0, 10, 299, 3000])
        view = whole.view([wide(), wide("m7")], until=T + 10**9)
        cost, tokens = rng.randint(0, 500), rng.randint(0, 50)
        for probe in (whole, damaged):
            if probe is damaged and rng.random() < 0.3:
                for name in ("o", "m7"):
                    cells = [
                        Cell(name, tag, at, cost, tokens, 1) for tag, at in (("f", now // 300), ("c", now // 10800), ("d", DAY))
                    ]
                    lost += [*cells, Total(name, PERIOD, cost, tokens, 1)]
                lost.append(Funding("o", T - 1000, cost, 0, 0, 0))
                continue
            assert probe.admit(f"r{number}", now, view, cost, tokens)[0] == "OK"
            assert probe.settle(f"r{number}", now, cost, tokens, ack=now)[0] == "OK"
        if rng.random() < 0.2 and lost:
            rng.shuffle(lost)
            assert adjusting.adjust(1044, 1, f"fix{number}", lost, now_ms=ms(now)) == "OK"
            lost = []
    adjusting.adjust(1044, 1, "last", lost, now_ms=ms(now))
    for index in (0, 1):
        for at in (now, now + 4000, now + 18_300, now + 86_400 * 7):
            assert windows(damaged, at, view, index) == windows(whole, at, view, index)
    assert damaged.funding() == whole.funding()
    whole.wipe()
    damaged.wipe()


@pytest.mark.django_db(transaction=True)
def test_there_is_one_repairer_of_an_organization_at_a_time() -> None:
    seen: list[bool] = []

    def other(organization: int) -> None:
        try:
            with adjusting.sole_repairer(organization) as is_ours:
                seen.append(is_ours)
        finally:
            connections.close_all()

    with adjusting.sole_repairer(1045) as is_ours:
        assert is_ours
        for organization in (1045, 1046):
            thread = threading.Thread(target=other, args=(organization,))
            thread.start()
            thread.join()
    assert seen == [False, True]
    other(1045)
    assert seen == [False, True, True]


def test_five_hours_is_told_apart_from_what_is_not_asked(probe: Probe) -> None:
    """A record whose view has no windows keeps its signature: a repair leaves it on the fast path."""
    view = probe.view()
    probe.admit("a", T, view, 3)
    assert adjust(probe, *everywhere("o", 40)) == "OK"
    assert probe.admit("b", T, view, 1) == ["OK", 1]
    assert probe.record().used[0] == (44, 0, 2)
    assert probe.admit("c", T, probe.view([five_hours(44)], version=2), 1)[:6] == ["NO", "o", 1, FIVE_HOURS, 44, 44]
