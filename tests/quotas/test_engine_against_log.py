"""Random histories, checked after every step against a brute-force log that knows nothing of buckets' bookkeeping.

The log is a list of requests; every sum is counted from it anew. Funding is written a second time here, from the same rule.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from quotas import records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import Probe, T

DAY_OFFSET = 61
"""Local days begin at this second of the UTC day, in the middle of a bucket."""
WEEK = 7 * 86400
KEEP = 900
LEASE = 60
SPAN = {
    records.FIVE_HOURS: (300, 60),
    records.ONE_DAY: (300, 288),
    records.SEVEN_DAYS: (10800, 56),
    records.THIRTY_DAYS: (10800, 240),
}
VALUES = {1: (0, 400, 900, 3000, 9000), 2: (4000,), 3: (4, 30), 4: (0, 3), 5: (3,)}
"""Limits by metric."""
CALLERS = {
    "a": (("o", "t1", "m1", "k1"), "o"),
    "b": (("o", "t1", "m2", "k2"), "m2"),
    "c": (("o", "m3", "k3"), "o"),
}


def day_of(second: int) -> int:
    return (second - DAY_OFFSET) // 86400 + 700_000


def period_of(second: int, shift: int = 0) -> int:
    """Periods of a week, `shift` seconds later for the seat."""
    first = T - 3 * 86400 + shift
    return first + (second - first) // WEEK * WEEK


@dataclass
class Entry:
    """A request that was admitted: what it counts now, in the second of its admission."""

    request: str
    caller: str
    second: int
    c: int
    t: int
    hold: tuple[int, int]
    observed: tuple[int, int] = (0, 0)
    n: int = 1
    state: str = "L"
    lease: float = 0.0
    seen: float = 0.0
    ack: float = 0.0
    split: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def names(self) -> tuple[str, ...]:
        return CALLERS[self.caller][0]

    @property
    def source(self) -> str:
        return CALLERS[self.caller][1]

    @property
    def fund(self) -> int:
        return fund_start(self.source, self.second)


def fund_start(source: str, second: int) -> int:
    return period_of(second, 86400 if source == "m2" else 0)


@dataclass
class Fund:
    quota: int = 0
    allowed: bool = False
    cap: int = 0
    used: int = 0
    held: int = 0
    reserved: int = 0
    purchased: int = 0
    overage: int = 0
    overdraft: int = 0


@dataclass
class History:
    """The log, and what the engine must answer."""

    seed: int
    is_funded: bool = True
    with_rates: bool = True
    rng: random.Random = field(init=False)
    probe: Probe = field(default_factory=lambda: Probe(organization=77))
    now: float = T + 5
    entries: dict[str, Entry] = field(default_factory=dict)
    funds: dict[tuple[str, int], Fund] = field(default_factory=dict)
    version: int = 0
    granted: int = 0
    spent: int = 0
    number: int = 0
    limits: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    terms: dict[str, tuple[int, bool, int]] = field(default_factory=dict)
    is_admitting: bool = True
    stats: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.granted = self.rng.choice([0, 2000]) if self.is_funded else 0
        self.probe.warm(version=1, granted=self.granted)
        self.change_limits()

    # -- configuration

    def change_limits(self) -> None:
        rng = self.rng
        self.version += 1
        self.limits = {}
        names = ["o", "t1", "m1", "m2", "m3", "k1", "k2", "k3"]
        for name in names:
            own = []
            for _ in range(rng.choice([0, 1, 1, 2, 3])):
                metric = rng.choice([1, 1, 1, 2, 3, 4, 5])
                if metric == 4 and not self.with_rates:
                    continue
                kind = rng.randint(1, 8) if metric <= 3 else 0
                value = rng.choice(VALUES[metric])
                own.append((metric, kind, value))
            self.limits[name] = own
        if self.is_funded:
            self.terms = {
                source: (rng.choice([500, 2000, 10**6]), rng.random() < 0.5, rng.choice([0, 0, 300])) for source in ("o", "m2")
            }
        else:
            self.terms = dict.fromkeys(("o", "m2"), (10**15, False, 0))

    def code(self, kind: int, second: int) -> int:
        day = day_of(second)
        start = {records.DAY: day, records.WEEK: day - day % 7, records.MONTH: day - day % 30}.get(kind, 0)
        return records.code(kind, start)

    def view(self, caller: str, second: int) -> bytes:
        names, source = CALLERS[caller]
        made = []
        for name in names:
            codes = sorted({self.code(kind, second) for metric, kind, _ in self.limits[name] if metric <= 3 and kind > 1})
            questions = []
            for metric, kind, value in self.limits[name]:
                position = codes.index(self.code(kind, second)) + 1 if metric <= 3 and kind > 1 else 0
                questions.append(Question(metric, position, value))
            made.append(RecordView(name, tuple(codes), tuple(questions)))
        day = day_of(second)
        since = (day - 700_000) * 86400 + DAY_OFFSET
        quota, allowed, cap = self.terms[source]
        fund = fund_start(source, second)
        return self.probe.view(
            made,
            version=self.version,
            day=day,
            since=max(since, period_of(second), fund),
            until=min(since + 86400, period_of(second) + WEEK, fund + WEEK),
            period=period_of(second),
            source=source,
            fund=fund,
            quota=quota,
            allowed=allowed,
            cap=cap,
        )

    # -- the log's sums

    def counted(self, name: str, kind: int, second: int) -> tuple[int, int, int]:
        """What the window must count at `second`: whole buckets for rolling ones."""
        own = [entry for entry in self.entries.values() if name in entry.names and entry.state != "gone"]
        if kind == records.PERIOD:
            own = [entry for entry in own if period_of(entry.second) == period_of(second)]
        elif kind in SPAN:
            bucket, span = SPAN[kind]
            own = [entry for entry in own if entry.second // bucket >= second // bucket - span]
        else:
            start = self.code(kind, second) // 16
            own = [entry for entry in own if day_of(entry.second) >= start]
        return sum(e.c for e in own), sum(e.t for e in own), sum(e.n for e in own)

    def live(self, name: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state == "L" and name in entry.names]

    def minute(self, name: str, second: int) -> int:
        """Admissions of the last 7 slots of 10 s; a release does not give back."""
        return sum(1 for e in self.entries.values() if name in e.names and e.second // 10 >= second // 10 - 6)

    def fund(self, source: str, start: int) -> Fund:
        return self.funds.setdefault((source, start), Fund())

    def free(self, own: Fund) -> int:
        if not own.allowed:
            return 0
        return max(0, self.granted - self.spent - sum(f.reserved for f in self.funds.values() if f is not own))

    def refit(self, own: Fund) -> None:
        own.reserved = min(max(0, own.held - max(0, own.quota - own.used)), self.free(own))

    def book(self, own: Fund, amount: int) -> tuple[int, int, int, int]:
        plan = min(amount, max(0, own.quota - own.used))
        purchased = min(amount - plan, self.free(own))
        overage = min(amount - plan - purchased, max(0, own.cap - own.overage))
        overdraft = amount - plan - purchased - overage
        own.used += plan
        own.purchased += purchased
        own.overage += overage
        own.overdraft += overdraft
        self.spent += purchased
        return plan, purchased, overage, overdraft

    # -- steps

    def second(self) -> int:
        """The engine's second: time seen by buckets never falls."""
        raw = self.probe.field("o")
        return max(int(self.now), raw[1] if raw else 0)

    def expected(self, caller: str, need: tuple[int, int], second: int) -> str | None:
        """The first thing that refuses, or None."""
        names, source = CALLERS[caller]
        for name in names:
            for metric, kind, value in self.limits[name]:
                if metric <= 3:
                    wants = (*need, 1)[metric - 1]
                    if wants > 0 and self.counted(name, kind, second)[metric - 1] + wants > value:
                        return name
                else:
                    running = self.minute(name, second) if metric == records.PER_MINUTE else len(self.live(name))
                    if running + 1 > value:
                        return name
        quota, allowed, cap = self.terms[source]
        now = self.fund(source, fund_start(source, second))
        now.quota, now.allowed, now.cap = quota, allowed, cap
        over = max(0, now.held + need[0] - max(0, quota - now.used))
        if need[0] > 0 and over - min(over, self.free(now)) > max(0, cap - now.overage):
            return "plan"
        return None

    def admit(self) -> None:
        rng = self.rng
        caller = rng.choice("abc")
        self.number += 1
        request = f"r{self.number}"
        need = (rng.choice([0, 1, 40, 100, 350]), rng.choice([0, 10, 300]))
        postpaid = rng.random() < 0.1
        asked, held = (tuple(min(1, x) for x in need), (0, 0)) if postpaid else (need, need)
        second = self.second()
        # Terms reach a period's entry with an admission, refused ones excepted: keep what stood before.
        source = CALLERS[caller][1]
        kept = self.fund(source, fund_start(source, second))
        before = (kept.quota, kept.allowed, kept.cap)
        refused = self.expected(caller, asked, second)
        sums = self.sums(second) if refused else None
        view = self.view(caller, second)
        answer = self.probe.admit(
            request, self.now, view, asked[0], asked[1], hold=held[0], hold_t=held[1], lease=LEASE, about=b'{"a":1}'
        )
        if refused:
            assert answer[0] == "NO", (refused, answer)
            assert answer[1] == refused
            kept.quota, kept.allowed, kept.cap = before
            assert self.sums(second) == sums
            self.count("NO")
            return
        assert answer == ["OK", 1], answer
        entry = Entry(request, caller, second, held[0], held[1], held, lease=self.now + LEASE, seen=self.now, ack=self.now)
        self.entries[request] = entry
        # An entry two periods old is dropped with what it reserved.
        starts = sorted(start for name, start in self.funds if name == source)
        for start in starts[:-2]:
            del self.funds[(source, start)]
        kept.held += held[0]
        self.refit(kept)
        self.count("OK")

    def sums(self, second: int) -> list[object]:
        return [self.counted(name, kind, second) for name in self.limits for kind in range(1, 9)]

    def pick(self, *states: str) -> Entry | None:
        found = [entry for entry in self.entries.values() if entry.state in states]
        return self.rng.choice(found) if found else None

    def renew(self) -> None:
        entry = self.pick("L", "L", "O", "S")
        if entry is None:
            return
        observed = (self.rng.choice([0, 50, 200, 500]), self.rng.choice([0, 20, 400]))
        answer = self.probe.renew(entry.request, self.now, *observed, ack=entry.ack, lease=LEASE)
        if entry.state == "L":
            assert answer == ["OK"]
            self.renewed(entry, observed)
        elif entry.state == "O":
            assert answer == ["ORPHANED"]
            entry.seen = max(entry.seen, self.now)
        else:
            assert answer == ["ENDED", entry.state]
        self.count(answer[0])

    def renewed(self, entry: Entry, observed: tuple[int, int]) -> None:
        entry.observed = (max(entry.observed[0], observed[0]), max(entry.observed[1], observed[1]))
        before = entry.c
        entry.c, entry.t = max(entry.hold[0], entry.observed[0]), max(entry.hold[1], entry.observed[1])
        own = self.fund(entry.source, entry.fund)
        own.held += entry.c - before
        if entry.c != before:
            self.refit(own)
        entry.ack, entry.lease, entry.seen = self.now, self.now + LEASE, max(entry.seen, self.now)

    def settle(self) -> None:
        entry = self.pick("L", "L", "O", "S", "R")
        if entry is None:
            return
        is_release = self.rng.random() < 0.2
        cost = (0, 0) if is_release else (self.rng.choice([0, 1, 90, 700]), self.rng.choice([0, 15, 500]))
        answer = self.probe.settle(entry.request, self.now, *cost, state="R" if is_release else "S", ack=entry.ack)
        if entry.state in ("S", "R"):
            assert answer == ["DUP", entry.state, entry.c, *entry.split]
        elif entry.state == "L":
            self.end(entry, cost, "R" if is_release else "S")
            assert answer == ["OK", *entry.split]
        else:
            own = self.fund(entry.source, entry.fund)
            plan, purchased, overage, overdraft = entry.split
            own.used -= plan
            own.purchased -= purchased
            own.overage -= overage
            own.overdraft -= overdraft
            self.spent -= purchased
            entry.c, entry.t = cost
            entry.split = self.book(own, entry.c)
            self.refit(own)
            entry.n -= 1 if is_release else 0
            entry.state, entry.seen = "S", max(entry.seen, self.now)
            assert answer == ["AMENDED", *entry.split]
        self.count(answer[0])

    def end(self, entry: Entry, cost: tuple[int, int], state: str) -> None:
        own = self.fund(entry.source, entry.fund)
        own.held -= entry.c
        entry.c, entry.t = cost
        entry.n = 0 if state == "R" else 1
        entry.split = self.book(own, entry.c)
        self.refit(own)
        entry.state, entry.seen = state, max(entry.seen, self.now)

    def sweep(self) -> None:
        due = [e for e in self.entries.values() if e.state == "L" and e.lease <= self.now]
        # The engine ends them in the order of their leases; the split between funds depends on it.
        for entry in sorted(due, key=lambda e: (round(e.lease * 1000), e.request)):
            self.end(entry, entry.observed, "O")
        stones = [e for e in self.entries.values() if e.state in "SRO" and e not in due and e.seen + KEEP <= self.now]
        stones = [e for e in stones if e.request in self.probe.hold_ids()]
        while True:
            answer = self.probe.sweep(self.now, 7)
            assert answer[0] == "OK"
            if not answer[3]:
                break
        gone = {e.request for e in stones}
        assert not gone & self.probe.hold_ids()
        for entry in stones:
            # Known to the log for ever; to the engine no more.
            entry.state = "past"

    def count(self, what: str) -> None:
        self.stats[what] = self.stats.get(what, 0) + 1

    def pass_time(self) -> None:
        steps = [0, 0, 0.4, 3, 11, 40, 130, 310, 4000, 20_000, 90_000, 400_000]
        self.now = round(self.now + self.rng.choice(steps[: self.rng.choice([6, 8, 8, 10, 12])]), 3)

    def step(self) -> None:
        action = self.rng.choices(
            [self.admit, self.renew, self.settle, self.sweep, self.pass_time, self.change_limits], [10, 3, 6, 2, 5, 0.4]
        )[0]
        action()
        if action != self.change_limits:
            self.check()

    # -- what must hold

    def check(self) -> None:
        second = self.second()
        meta = self.probe.meta()
        for caller, (names, source) in CALLERS.items():
            answer = self.probe.peek(self.now, self.view(caller, second))
            assert answer[0] == "OK", answer
            for name, values in zip(names, answer[5:], strict=True):
                live = self.live(name)
                assert values[0] == len(live), name
                assert values[1:3] == [sum(e.c for e in live), sum(e.t for e in live)], name
                if self.with_rates:
                    assert values[3] == self.minute(name, second), name
                assert tuple(values[4:7]) == self.counted(name, records.PERIOD, second), name
                for at in range(7, len(values), 4):
                    assert tuple(values[at + 1 : at + 4]) == self.counted(name, values[at] % 16, second), (name, values[at])
            fund = self.funds.get((source, fund_start(source, second)), Fund())
            assert answer[3][4:] == [fund.used, fund.held, fund.reserved, fund.purchased, fund.overage, fund.overdraft], source
        assert meta[3] == self.spent
        assert meta[4] == sum(f.reserved for f in self.funds.values())
        assert self.probe.lease_ids() == self.probe.hold_ids()
        assert {e.request for e in self.entries.values() if e.state == "L"} <= self.probe.hold_ids()


@pytest.fixture
def histories() -> Iterator[list[History]]:
    made: list[History] = []
    yield made
    for history in made:
        history.probe.wipe()


@pytest.mark.parametrize("seed", range(5))
def test_every_sum_equals_the_log_after_every_step(seed: int, histories: list[History]) -> None:
    history = History(seed)
    histories.append(history)
    for _ in range(600):
        history.step()
    assert history.stats["OK"] > 30
    assert history.stats["NO"] > 20
    # Each event's funding adds up, and parts sum to what was booked.
    booked: dict[str, int] = {}
    for event in history.probe.events():
        assert event.plan + event.purchased + event.overage + event.overdraft == event.credits
        booked[event.request_id] = booked.get(event.request_id, 0) + event.credits
    for entry in history.entries.values():
        if entry.state in ("S", "O"):
            assert booked[entry.request] == entry.c
        elif entry.state == "L":
            assert entry.request not in booked


@pytest.mark.parametrize("seed", range(100, 104))
def test_a_server_that_lost_its_last_moments_is_put_right_by_what_is_sent_again(seed: int, histories: list[History]) -> None:
    """Failover to an older copy: renewals bring back lost holds, settlements sent again bring back lost ends."""
    history = History(seed, is_funded=False, with_rates=False)
    histories.append(history)
    rng = history.rng
    for _ in range(40):
        for _ in range(6):
            history.step()
        copy, leases = history.probe.dump(), history.probe.redis.zrange(history.probe.keys[1], 0, -1, withscores=True)
        ended_before = {e.request for e in history.entries.values() if e.state not in ("L", "O")}
        for _ in range(rng.randint(1, 8)):
            rng.choice([history.admit, history.admit, history.renew, history.settle])()
            history.now = round(history.now + rng.choice([0, 0.2, 5]), 3)
        history.probe.redis.delete(*history.probe.keys[:2])
        history.probe.redis.hset(history.probe.keys[0], mapping=copy)
        if leases:
            history.probe.redis.zadd(history.probe.keys[1], dict(leases))  # type: ignore[arg-type]
        again = list(history.entries.values())
        rng.shuffle(again)
        for entry in again:
            if entry.state == "L":
                answer = history.probe.renew(entry.request, history.now, *entry.observed, ack=entry.ack, lease=LEASE)
                assert answer[0] in ("OK", "RESTORED")
                entry.ack, entry.lease, entry.seen = history.now, history.now + LEASE, max(entry.seen, history.now)
            elif entry.state == "O":
                assert history.probe.renew(entry.request, history.now, ack=entry.ack, lease=LEASE) == ["ORPHANED"]
                entry.seen = max(entry.seen, history.now)
            elif entry.state in ("S", "R") and entry.request not in ended_before:
                state = "R" if entry.n == 0 else "S"
                answer = history.probe.settle(entry.request, history.now, entry.c, entry.t, state=state, ack=entry.ack)
                assert answer[0] in ("OK", "LATE", "AMENDED", "DUP")
                entry.seen = max(entry.seen, history.now)
        history.check()
    assert history.stats["OK"] > 30


@pytest.mark.parametrize("seed", range(200, 202))
def test_no_limit_is_ever_exceeded_in_any_real_window(seed: int, histories: list[History]) -> None:
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


def test_time_that_steps_back_rolls_nothing_twice(histories: list[History]) -> None:
    """Invariant 10: buckets stand still until the clock catches up; leases and tombstones follow the raw clock."""
    history = History(300, is_funded=False, with_rates=False)
    histories.append(history)
    for _ in range(40):
        for _ in range(10):
            history.step()
        high = history.now
        history.now = round(high - history.rng.choice([5, 400, 8000]), 3)
        for _ in range(6):
            history.rng.choice([history.admit, history.renew, history.settle])()
            history.check()
        history.now = high
        history.check()
