"""Random histories with a driven clock, checked against a brute-force log that knows nothing of buckets' bookkeeping.

All histories together ask the engine 100,000 times and more. One that fails is played again, shortened, and printed with its
seed: `History(seed).replay([...])` shows the same failure after the fewest steps.
"""

import random
import re
from collections.abc import Callable, Iterator

import pytest

from quotas import records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import Probe, T
from tests.quotas.history import Broken, History, fails

SEEDS = range(20)
ASKED = 5_000
"""How often each history asks the engine for something at least; looks are not counted. All together: 100,000 times."""


@pytest.fixture
def history() -> Iterator[Callable[..., History]]:
    made: list[History] = []

    def make(seed: int, **options: bool) -> History:
        made.append(History(seed, **options))
        return made[-1]

    yield make
    for one in made:
        one.probe.wipe()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_engine_does_what_the_log_says(seed: int, history: Callable[..., History]) -> None:
    """Invariants 1 to 14: every answer exactly, every sum, cell, fund, event and lease.

    In every fourth history costs never exceed what was counted and terms only grow: it knows no overdraft (8). In another one
    rolling windows are counted by the second.
    """
    played = history(seed, is_exact=seed % 4 == 3, is_logged=seed % 4 == 1)
    while played.asked < ASKED:
        played.run(500)
    for what in ("OK", "NO", "ROLL", "STALE", "DUP", "ORPHANED", "AMENDED", "LOGGED", "UNKNOWN", "ENDED", "swept", "published"):
        assert played.stats[what] >= 5, what
    if not played.is_exact and not played.is_logged:
        for what in ("lost", "rebuilt", "RESTORED", "LATE", "adjusted"):
            assert played.stats[what] >= 1, what


def test_a_failure_tells_its_seed_and_the_fewest_steps(history: Callable[..., History]) -> None:
    """The checks would see it: one micro-credit too much in a fund is found, and the way to it printed."""
    played = history(4)
    played.run(300)
    values = played.probe.field("f:o")
    assert values is not None
    values[4] += 1
    played.probe.redis.hset(played.probe.keys[0], "f:o", records.pack(values))
    with pytest.raises(Broken, match=r"seed 4, is_exact=False, .*: \d+ steps"):
        played.run(100)


def test_a_shortened_history_still_fails(history: Callable[..., History]) -> None:
    """Steps are data: here a settlement costs more than any script takes: it, its admission and the limits are enough."""
    played = history(5)
    played.run(100)
    while not any(entry.is_known and entry.names for entry in played.model.entries.values()):
        played.run(1)
    request = next(entry.request for entry in played.model.entries.values() if entry.is_known and entry.names)
    wrong = ("settle", {"request": request, "state": "S", "cost": (10**17, 0), "with_terms": False})
    with pytest.raises(Broken) as caught:
        played.take([wrong])
    text = str(caught.value)
    assert re.search(r"\d\d\d steps, [23] of them are enough", text)
    assert text.index("('admit', {'request': '" + request) < text.index(repr(wrong))
    assert not fails(played, played.steps[1:-1])


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_server_that_lost_its_last_moments_is_put_right_by_what_is_sent_again(seed: int, history: Callable[..., History]) -> None:
    """Failover to an older copy: renewals bring back lost holds, settlements sent again bring back lost ends."""
    played = history(seed, is_plain=True)
    rng, probe, model = played.rng, played.probe, played.model
    for _ in range(60):
        played.run(6)
        copy, leases = probe.dump(), probe.redis.zrange(probe.keys[1], 0, -1, withscores=True)
        ended_before = {e.request for e in model.entries.values() if e.state not in ("L", "O")}
        for _ in range(rng.randint(1, 8)):
            played.apply(rng.choice([played._admit, played._admit, played._renew, played._settle])())
            played.do_clock(rng.choice([0, 200, 5_000]))
        probe.redis.delete(*probe.keys[:2])
        probe.redis.hset(probe.keys[0], mapping=copy)
        if leases:
            probe.redis.zadd(probe.keys[1], dict(leases))  # type: ignore[arg-type]
        # Who reconnects publishes again.
        model.version = probe.meta()[1]
        played._published(played.version, None)
        again = [entry for entry in model.entries.values() if entry.is_known]
        rng.shuffle(again)
        for entry in again:
            if entry.state == "L":
                answer = probe.renew(entry.request, model.now / 1000, *entry.observed, ack=entry.ack / 1000, lease=60)
                assert answer[0] in ("OK", "RESTORED")
                entry.ack, entry.lease, entry.seen = model.now, model.now + 60_000, model.now
            elif entry.state == "O":
                assert probe.renew(entry.request, model.now / 1000, ack=entry.ack / 1000) == ["ORPHANED"]
                entry.seen, entry.lease = model.now, model.now + 900_000
            elif entry.request not in ended_before:
                state = "R" if entry.n == 0 else "S"
                answer = probe.settle(entry.request, model.now / 1000, entry.c, entry.t, state=state, ack=entry.ack / 1000)
                assert answer[0] in ("OK", "LATE", "AMENDED", "DUP")
                entry.seen, entry.lease = model.now, model.now + 900_000
        model.events.clear()
        probe.redis.xtrim(probe.keys[2], maxlen=0, approximate=False)
        played.check_everything()
    assert played.stats["OK"] > 60


@pytest.mark.parametrize("seed", range(200, 202))
def test_no_limit_is_ever_exceeded_in_any_real_window(seed: int) -> None:
    """Invariants 2 and 3: whatever (t - W, t] is looked at, admissions never exceed a 5 h limit. Mistake 1 would."""
    rng = random.Random(seed)
    probe = Probe(organization=78)
    probe.warm()
    limit = 500
    view = probe.view((RecordView("o", (2,), (Question(records.CREDITS, 1, limit),)),), until=T + 10**7)
    admitted: list[tuple[float, int]] = []
    now = float(T)
    for i in range(500):
        now = round(now + rng.choice([1, 30, 299, 300, 301, 1800]), 3)
        need = rng.choice([20, 100, 250])
        recent = sum(amount for at, amount in admitted if at > now - 18_000)
        older = sum(amount for at, amount in admitted if at > now - 18_000 - 300)
        answer = probe.admit(f"x{i}", now, view, need, lease=10**6)
        if answer[0] == "OK":
            admitted.append((now, need))
            assert recent + need <= limit
        else:
            assert older + need > limit
    probe.wipe()
    assert len(admitted) > 30
