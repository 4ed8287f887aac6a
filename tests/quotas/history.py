"""Random histories of the engine: steps that can be written down, played, checked against the brute-force log, and made shorter.

A step is data, so a history that failed is played again without some of its steps until nothing more can be left out, and
the failure prints the seed and what is left.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from quotas import adjusting, engine, records
from quotas.adjusting import Cell, Delta, Funding, Spent, Total
from tests.quotas import brute_force
from tests.quotas.brute_force import (
    CALLERS,
    FILTERED,
    KEEP,
    KEPT_COARSE,
    KEPT_DAYS,
    KEPT_FINE,
    SOURCES,
    SPAN,
    WEEK,
    Config,
    Entry,
    Fund,
    Model,
    Question3,
    code_of,
    day_of,
    day_start,
    fund_start,
    period_of,
)
from tests.quotas.engine_probe import Probe

NAMES = ("o", "t1", "m1", "m2", "m3", "k1", "k2", "k3")
VALUES = {1: (0, 400, 900, 3000, 9000), 2: (300, 4000), 3: (4, 30), 4: (0, 3, 12), 5: (0, 3, 8), 6: (0, 1, 3)}
"""Limits by metric."""
ALL_KINDS = tuple(range(2, 9))
SHRINK_SECONDS = 20.0

Step = tuple[str, dict[str, Any]]


class Broken(AssertionError):
    """A history after which the engine and the log differ; the text is all that is needed to play it again."""


@dataclass
class History:
    """`is_exact`: costs never exceed what was counted, terms and grants only grow, and nothing is lost: no overdraft then.

    `is_logged`: nothing is lost, and rolling windows are counted by the second, exactly.
    `is_plain`: no funding, no rates, no losses, no steps back: for a server that loses its last moments.
    """

    seed: int
    organization: int = 77
    is_exact: bool = False
    is_plain: bool = False
    is_logged: bool = False
    check_every: int = 50
    rng: random.Random = field(init=False)
    probe: Probe = field(init=False)
    model: Model = field(default_factory=Model)
    configs: dict[int, Config] = field(default_factory=dict)
    version: int = 0
    grants: int = 0
    granted: int = 0
    epoch: int = 1
    number: int = 0
    steps: list[Step] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    """How often a script was asked to do something; looks are not counted."""
    looked: int = 0
    high: int = 0
    """The latest time the clock has shown, in ms."""
    read: list[str] = field(default_factory=list)
    """What was read of the stream already: its last id."""
    parts: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.probe = Probe(organization=self.organization)
        self.granted = 0 if self.is_plain else self.rng.choice([0, 3000])
        self.grants = 1 if self.granted else 0
        self.probe.warm(version=1, granted=self.granted)
        self.model.granted, self.model.grants, self.high = self.granted, self.grants, self.model.now
        self.apply(self._limits())

    # -- drawing a step

    def draw(self) -> Step:
        model, rng = self.model, self.rng
        if model.is_cold and rng.random() < 0.3:
            return "rebuild", {"keep": False}
        weights = {
            self._admit: 100,
            self._renew: 30,
            self._settle: 60,
            self._sweep: 14,
            self._clock: 36,
            self._limits: 4,
            self._publish: 6,
            self._again: 5,
            self._stop: 2,
        }
        if self.is_plain:
            weights = {self._admit: 100, self._renew: 30, self._settle: 60, self._sweep: 20, self._clock: 50, self._limits: 4}
        elif not self.is_exact and not self.is_logged:
            weights |= {self._rebuild: 1.2, self._lose: 0.6, self._adjust: 1.5}
        return rng.choices(list(weights), list(weights.values()))[0]()

    def _admit(self) -> Step:
        rng = self.rng
        self.number += 1
        need = (rng.choice([0, 1, 40, 100, 350]), rng.choice([0, 10, 300]))
        return "admit", {
            "request": f"r{self.number}",
            "caller": rng.choice("aabc"),
            "is_filtered": rng.random() < 0.3,
            "need": need,
            "is_postpaid": not self.is_exact and rng.random() < 0.1,
            "observed": (rng.choice([0, 20, 500]), 5) if not self.is_exact and rng.random() < 0.05 else (0, 0),
            "lease": rng.choice([3_000, 60_000, 60_000, 2_000_000]),
            "behind": rng.choice([0] * 12 + [1, 3]),
            "aged": rng.choice([0] * 9 + [4000, 100_000, -90_000]),
        }

    def _pick(self, *states: str) -> Entry | None:
        found = [entry for entry in self.model.entries.values() if entry.state in states and entry.names]
        # Mostly the young ones: those that are forgotten by now take the same way each time.
        return self.rng.choice(found[-12:] if self.rng.random() < 0.95 else found) if found else None

    def _renew(self) -> Step:
        entry = self._pick(*self.rng.choice(["L", "L", "L", "O", "SR"]))
        observed = (self.rng.choice([0, 50, 200, 500]), self.rng.choice([0, 20, 400]))
        if self.is_exact and entry is not None:
            observed = (min(observed[0], entry.c), min(observed[1], entry.t))
        return "renew", {"request": entry.request if entry else "", "observed": observed, "lease": self.rng.choice([3_000, 60_000])}

    def _settle(self) -> Step:
        rng = self.rng
        entry = self._pick(*rng.choice(["L", "L", "L", "O", "S", "R"]))
        cost = (rng.choice([0, 1, 90, 700]), rng.choice([0, 15, 500]))
        if self.is_exact and entry is not None:
            # An orphan was booked at less than it held: the difference was free for others.
            cost = (min(cost[0], entry.c), min(cost[1], entry.t))
        return "settle", {
            "request": entry.request if entry else "",
            "state": "R" if rng.random() < 0.2 else "S",
            "cost": cost,
            "with_terms": rng.random() < 0.3,
        }

    def _stop(self) -> Step:
        self.number += 1
        return "stop", {"request": f"r{self.number}", "is_admitted": self.rng.random() < 0.5}

    def _again(self) -> Step:
        entry = self._pick(*self.rng.choice(["L", "S", "R", "O"]))
        return "again", {"request": entry.request if entry else ""}

    def _sweep(self) -> Step:
        return "sweep", {"at_once": self.rng.choice([1, 7, 50])}

    def _clock(self) -> Step:
        rng = self.rng
        steps = [0, 1, 400, 3_000, 11_000, 40_000, 130_000, 310_000, 4_000_000, 20_000_000, 90_000_000, 400_000_000]
        by = rng.choice(steps[: rng.choice([6, 8, 8, 8, 10, 10, 12])])
        if rng.random() < 0.06 and not self.is_plain:
            by = -rng.choice([5, 5_000, 400_000, 8_000_000])
        elif self.model.now < self.high and rng.random() < 0.5:
            by = self.high - self.model.now
        return "clock", {"by": by}

    def _limits(self) -> Step:
        rng = self.rng
        limits: dict[str, tuple[Question3, ...]] = {}
        for name in [*NAMES, *(name + FILTERED for name in NAMES[:3])]:
            own: list[Question3] = []
            for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
                metric = rng.choice([1, 1, 1, 2, 3, 5] if self.is_plain else [1, 1, 1, 1, 2, 3, 4, 5, 6])
                kind = rng.randint(1, 8) if metric <= 3 else 0
                value = rng.choice(VALUES[metric])
                if metric == records.PER_SECOND and any(other == metric for other, _, _ in own):
                    continue
                own.append((metric + records.BY_SECOND if self.is_logged and kind in SPAN else metric, kind, value))
            limits[name] = tuple(own)
        if rng.random() < 0.2:
            limits = dict.fromkeys(limits, ())
        if self.is_logged:
            # A log that was not kept all the time, or not for this window, counts more; here every record always has one for all.
            every = tuple((records.CREDITS + records.BY_SECOND, kind, engine.UNLIMITED) for kind in SPAN)
            limits = {name: limits.get(name, ()) + every for name in [*NAMES, *(name + FILTERED for name in NAMES)]}
        terms = {source: (rng.choice([500, 2000, 10**6]), rng.random() < 0.5, rng.choice([0, 0, 300])) for source in SOURCES}
        if self.is_plain:
            terms = dict.fromkeys(SOURCES, (engine.UNLIMITED, False, 0))
        if self.is_exact and self.version:
            before = self.configs[self.version].terms
            terms = {s: (max(a[0], b[0]), a[1] or b[1], max(a[2], b[2])) for s in SOURCES for a, b in [(terms[s], before[s])]}
        return "limits", {"config": Config(limits, terms), "is_published": rng.random() < 0.5}

    def _publish(self) -> Step:
        """Numbers that come again, late, or for the first time; grants may be taken back."""
        rng = self.rng
        more = rng.choice([0, 500, 2000, 0 if self.is_exact else -800])
        return "publish", {"behind": rng.choice([None, 0, 0, 1, 2]), "more": more, "grants_behind": rng.choice([None, 0, 0, 1])}

    def _rebuild(self) -> Step:
        return "rebuild", {"keep": self.rng.random() < 0.6}

    def _lose(self) -> Step:
        return "lose", {}

    def _adjust(self) -> Step:
        return "adjust", {}

    # -- taking a step

    def run(self, count: int) -> None:
        """Draws and takes `count` steps. A failure is shortened and raised as Broken."""
        for at in range(count):
            self.take([self.draw()], check=at % self.check_every == self.check_every - 1)
        self.take([])

    def take(self, steps: Sequence[Step], *, check: bool = True) -> None:
        """Takes these steps. A failure is shortened and raised as Broken."""
        try:
            for step in steps:
                self.apply(step)
            if check:
                self.check_everything()
                self.model.forget_old()
        except Exception as error:
            raise Broken(self._told(error)) from error

    def _told(self, error: Exception) -> str:
        short = shortened(self)
        kind = f"is_exact={self.is_exact}, is_plain={self.is_plain}, is_logged={self.is_logged}"
        lines = [f"    {step!r}," for step in short]
        return "\n".join(
            [
                f"seed {self.seed}, {kind}: {len(self.steps)} steps, {len(short)} of them are enough: {error!r}",
                f"    History({self.seed}, {kind}).replay([",
                *lines,
                "    ])",
            ]
        )

    def replay(self, steps: Sequence[Step]) -> None:
        """Takes these steps, checking everything after each."""
        for step in steps:
            self.apply(step)
            self.check_everything()

    def apply(self, step: Step) -> None:
        self.steps.append(step)
        name, given = step
        getattr(self, f"do_{name}")(**given)

    def count(self, what: str) -> None:
        self.asked += 1
        self.stats[what] = self.stats.get(what, 0) + 1

    def second(self) -> int:
        """The engine's second, which never falls. After a step back only it knows: a refusal may have told it time."""
        model = self.model
        if not model.is_cold and model.now < self.high:
            raw = self.probe.field("o")
            said = raw[1] if raw else 0
            assert model.newest <= said <= max(model.newest, self.high // 1000) or not raw, (model.newest, said, self.high)
            model.newest = max(model.newest, said)
        return model.second()

    def view(self, names: tuple[str, ...], source: str, version: int, second: int, codes: bool = False) -> bytes:
        config = self.configs[version]
        made = brute_force.view_records(names, config, second)
        if codes:
            every = tuple(sorted(code_of(kind, second) for kind in ALL_KINDS))
            made = [records.RecordView(name, every, ()) for name in names]
        quota, is_allowed, cap = config.terms[source]
        since, until = span_of(source, second)
        return self.probe.view(
            made,
            version=version,
            day=day_of(second),
            since=since,
            until=until,
            period=period_of(second),
            source=source,
            fund=fund_start(source, second),
            quota=quota,
            allowed=is_allowed,
            cap=cap,
        )

    def do_admit(
        self,
        request: str,
        caller: str,
        is_filtered: bool,
        need: tuple[int, int],
        is_postpaid: bool,
        observed: tuple[int, int],
        lease: int,
        behind: int,
        aged: int,
    ) -> None:
        model = self.model
        names, source = CALLERS[caller]
        if is_filtered:
            names += tuple(name + FILTERED for name in names)
        asked, held = (tuple(min(1, x) for x in need), (0, 0)) if is_postpaid else (need, need)
        version = max(1, self.version - behind)
        second = self.second()
        guess = second - aged
        view = self.view(names, source, version, guess)
        answer = self.probe.admit(
            request, model.now / 1000, view, asked[0], asked[1], hold=held[0], hold_t=held[1], observed=observed, lease=lease / 1000
        )
        self.count(answer[0])
        if model.is_cold:
            assert answer == ["COLD"], answer
            return
        known = model.entries.get(request)
        if known is not None and known.is_known:
            assert answer == ["DUP", known.state], answer
            return
        if version < model.version:
            assert answer == ["STALE", model.version], answer
            return
        model.version = version
        since, until = span_of(source, guess)
        if not since <= second < until:
            assert answer == ["ROLL", second], answer
            return
        paces: dict[str, int] = {}
        expected = model.refusal(names, source, self.configs[version], asked, second, paces, answer[-1])  # type: ignore[arg-type]
        if expected is not None:
            assert answer == expected, (answer, expected)
            # Buckets may have moved with it, and then the organization knows this second.
            if self.number % 7 == 0:
                self.check_caller(names, source)
            return
        assert answer == ["OK", self.epoch], answer
        counted = (max(held[0], observed[0]), max(held[1], observed[1]))
        entry = Entry(request, names, source, second, held, *counted, observed=observed)  # type: ignore[arg-type]
        entry.lease, entry.seen, entry.ack, entry.ticket = model.now + lease, model.now, model.now, (observed, model.now)
        model.admit(entry, self.configs[version])
        model.paced.update(paces)
        if self.number % 5 == 0:
            self.check_caller(names, source)

    def do_again(self, request: str) -> None:
        """The same admission once more: its answer was lost."""
        entry = self.model.entries.get(request)
        if entry is None or not entry.is_known or self.model.is_cold:
            return
        kept = self.probe.tickets.get(request)
        view = self.view(entry.names, entry.source, self.version, self.second())
        answer = self.probe.admit(request, self.model.now / 1000, view, 10**6, 10**6)
        assert answer == ["DUP", entry.state], answer
        if entry.state == "L":
            # The answer does not tell when the hold was seen alive, its ticket does.
            entry.ticket, entry.ack = (entry.observed, entry.seen), entry.seen
        elif kept is not None:
            # Who is told that it has ended does not take the ticket.
            self.probe.tickets[request] = kept
        self.count("DUP")

    def do_renew(self, request: str, observed: tuple[int, int], lease: int) -> None:
        entry = self.model.entries.get(request)
        if entry is None:
            return
        ack = entry.ack
        expected = self.model.renew(entry, observed, lease)
        answer = self.probe.renew(request, self.model.now / 1000, *observed, ack=ack / 1000, lease=lease / 1000)
        assert answer == expected, (answer, expected)
        self.count(answer[0])
        if answer == ["RESTORED"]:
            self.check_caller(entry.names, entry.source)

    def do_settle(self, request: str, state: str, cost: tuple[int, int], with_terms: bool) -> None:
        entry = self.model.entries.get(request)
        if entry is None:
            return
        terms = None
        if with_terms and entry.fund in self.model.funds[entry.source]:
            terms = self.configs[self.version].terms[entry.source]
        given = None if terms is None else (terms[0], int(terms[1]), terms[2])
        ack = entry.ack
        expected = self.model.settle(entry, state, cost, terms)
        answer = self.probe.settle(request, self.model.now / 1000, *cost, state=state, ack=ack / 1000, terms=given)
        assert answer == expected, (answer, expected)
        self.count(answer[0])
        if self.number % 5 == 0 and not self.model.is_cold:
            self.check_caller(entry.names, entry.source)

    def do_stop(self, request: str, is_admitted: bool) -> None:
        """A release for an id whose admission never came, or comes after it."""
        model = self.model
        answer = self.probe.release(request, model.now / 1000)
        if model.is_cold:
            assert answer == ["GONE"], answer
            return
        assert answer == ["LATE", 0, 0, 0, 0], answer
        entry = Entry(request, (), "", model.now // 1000, (0, 0), 0, 0, n=0, state="R", seen=model.now)
        entry.lease, entry.is_counted = model.now + KEEP, False
        model.entries[request] = entry
        if is_admitted:
            view = self.view(CALLERS["a"][0], "o", self.version, self.second())
            assert self.probe.admit(request, model.now / 1000, view, 5) == ["DUP", "R"]
        self.count("stopped")

    def do_sweep(self, at_once: int) -> None:
        orphaned = 0
        expected = 0 if self.model.is_cold else self.model.sweep()
        for _ in range(10_000):
            answer = self.probe.sweep(self.model.now / 1000, at_once)
            if self.model.is_cold:
                assert answer == ["COLD"], answer
                return
            orphaned += answer[1]
            if not answer[3]:
                break
        assert orphaned == expected
        self.count("swept")

    def do_clock(self, by: int) -> None:
        self.model.now += by
        self.high = max(self.high, self.model.now)

    def do_limits(self, config: Config, is_published: bool) -> None:
        self.version += 1
        self.configs[self.version] = config
        if is_published:
            self._published(self.version, None)

    def do_publish(self, behind: int | None, more: int, grants_behind: int | None) -> None:
        if more:
            self.grants, self.granted = self.grants + 1, max(0, self.granted + more)
        version = None if behind is None else max(1, self.version - behind)
        grants = None
        if grants_behind is not None and self.grants > grants_behind:
            # An older number comes with its own sum; it must change nothing, so any sum will do.
            grants = (self.grants - grants_behind, self.granted if grants_behind == 0 else 123_456)
        if grants_behind and grants is not None and self.model.grants < grants[0]:
            return
        self._published(version, grants)

    def _published(self, version: int | None, grants: tuple[int, int] | None) -> None:
        model = self.model
        answer = self.probe.publish(
            model.now / 1000, "" if version is None else version, "" if grants is None else grants[0], grants[1] if grants else 0
        )
        if model.is_cold:
            assert answer == ["COLD"], answer
            return
        model.version = max(model.version, version or 0)
        if grants is not None and grants[0] > model.grants:
            if grants[1] < model.granted:
                model.is_bounded = False
            model.grants, model.granted = grants
        assert answer == ["OK", model.version], answer
        assert self.probe.meta()[5:7] == [model.granted, model.grants]
        self.count("published")

    def do_lose(self) -> None:
        """Every key goes; what was in the stream has been drained."""
        self.check_events()
        self.probe.wipe()
        self.model.lose()
        self.read.clear()
        self.count("lost")

    def do_rebuild(self, keep: bool) -> None:
        self.check_events()
        model = self.model
        expected = "" if model.is_cold else self.epoch
        self.epoch += 1
        config = self.configs[self.version]
        grants = (self.grants, self.granted)
        fields, stones = model.staged(self.version, config, grants, self.epoch)
        self.probe.redis.delete(self.probe.keys[3])
        names = list(fields)
        for start in range(0, len(names), 1000):
            piece = {name: fields[name] for name in names[start : start + 1000]}
            self.probe.redis.hset(self.probe.keys[3], mapping=piece)
        wrong = self.probe.run(engine.REBUILD, model.now, self.epoch + 7, self._last(), 0)
        assert wrong == ["LOST"], wrong
        retry = self.probe.run(engine.REBUILD, model.now, expected, "1-1", 0)
        assert retry[0] == "RETRY", retry
        answer = self.probe.run(engine.REBUILD, model.now, expected, self._last(), int(keep), *stones)
        assert answer == ["OK"], answer
        model.rebuild(self.version, config, grants, keep=keep)
        # The new hash tells the newest second of the log, not the one that refusals had told.
        self.high = max(model.now, model.newest * 1000)
        self.count("rebuilt")
        self.check_everything()

    def do_adjust(self) -> None:
        """The reconciler: what the log has and the counters lack."""
        self.check_events()
        model = self.model
        deltas = differences(model)
        answer = adjusting.adjust(self.organization, self.epoch, f"repair-{len(self.steps)}", deltas, now_ms=model.now)
        if model.is_cold:
            assert not deltas or answer == "LOST", answer
            return
        assert answer == "OK", answer
        if deltas:
            again = adjusting.adjust(self.organization, self.epoch, f"repair-{len(self.steps)}", deltas, now_ms=model.now)
            assert again == "DUP", again
            assert adjusting.adjust(self.organization, self.epoch + 1, "other", deltas, now_ms=model.now) == "LOST"
            self.count("adjusted")
        repaired(model)
        self.check_everything()

    def _last(self) -> str:
        if not self.probe.redis.exists(self.probe.keys[2]):
            return "0-0"
        information: Any = self.probe.redis.xinfo_stream(self.probe.keys[2])
        last: str = information["last-generated-id"].decode()
        return last

    # -- what must hold (the numbers are the invariants of quotas.md section 6)

    def check_caller(self, names: tuple[str, ...], source: str) -> None:
        """1, 4, 7: what peek says of these records and this source, with the limits of now."""
        second = self.second()
        answer = self.probe.peek(self.model.now / 1000, self.view(names, source, max(self.version, self.model.version), second))
        self._compare(answer, names, source, second)

    def _compare(self, answer: list[Any], names: tuple[str, ...], source: str, second: int) -> None:
        model = self.model
        assert answer[:3] == ["OK", self.epoch, second], answer
        for name, values in zip(names, answer[5:], strict=True):
            live = model.live(name)
            assert values[:3] == [len(live), sum(e.c for e in live), sum(e.t for e in live)], (name, values)
            if not self.is_plain:
                # An older server has lost admissions that a restored hold does not bring back.
                assert values[3] == model.minute(name, second), (name, values, model.minute(name, second))
            assert tuple(values[4:7]) == model.used(name, records.PERIOD, second), (name, values)
            for at in range(7, len(values), 4):
                expected = model.used(name, values[at] % 16, second)
                assert tuple(values[at + 1 : at + 4]) == expected, (name, values[at] % 16, values[at + 1 : at + 4], expected)
        fund = model.funds[source].get(fund_start(source, second), Fund(0))
        assert answer[3][4:] == fund.sums, (source, answer[3], fund)
        assert answer[4][1:] == [model.spent, self._reserved()], (answer[4], model.spent, model.funds)

    def check_everything(self) -> None:
        model = self.model
        self.check_events()
        if model.is_cold:
            assert self.probe.redis.hexists(self.probe.keys[0], "$") == 0
            return
        second = self.second()
        version = max(self.version, model.version)
        # Every window of some of the records, in turn: the sums of hundreds of cells cost milliseconds.
        every = (*NAMES[1:], *(name + FILTERED for name in NAMES))
        at = self.looked % len(every)
        self.looked += 3
        names = ("o", *(every + every)[at : at + 3])
        everything = self.view(names, "o", version, second, codes=True)
        self._compare(self.probe.peek(model.now / 1000, everything), names, "o", second)
        self.check_real_windows(second)
        hash_ = self.probe.dump()
        self.check_cells(hash_)
        self.check_funding(hash_)
        # 11 and, for what is live, 5.
        holds = {name[2:].decode() for name in hash_ if name.startswith(b"h:")}
        assert holds == self.probe.lease_ids() == {e.request for e in model.entries.values() if e.is_known}
        # 12.
        meta = records.unpack(hash_[b"$"])
        assert meta == [self.epoch, model.version, model.mark, model.spent, self._reserved(), model.granted, model.grants]

    def _reserved(self) -> int:
        return sum(fund.reserved for kept in self.model.funds.values() for fund in kept.values())

    def check_real_windows(self, second: int) -> None:
        """3: admitted in (t - W, t] <= counter <= admitted in (t - W - b, t]. The counter is the log's, by 1."""
        for name in ("o", "k1"):
            for kind, (bucket, span) in SPAN.items():
                counter = self.model.used(name, kind, second)
                inside = self.model._sum(self.model.since(name, second - bucket * span + 1))
                wider = self.model._sum(self.model.since(name, second - bucket * span - bucket + 1))
                assert all(a <= b <= c for a, b, c in zip(inside, counter, wider, strict=True)), (name, kind)

    def check_cells(self, hash_: dict[bytes, bytes]) -> None:
        """1 and 10: each ring cell, the open bucket added to its own, is the log's sum; nothing else is kept."""
        found: dict[str, dict[tuple[str, int], tuple[int, ...]]] = {}
        places: dict[str, tuple[int, int, int]] = {}
        newest = 0
        for field_name, raw in hash_.items():
            name, bar, cell = field_name.decode().partition("|")
            if bar and cell[0] == "s":
                assert self.is_logged
                in_second = [entry for entry in self.model.by_name.get(name, []) if entry.second == int(cell[1:])]
                assert in_second or int(cell[1:]) <= self.model.horizon
                assert not in_second or self.model._sum(in_second) == tuple(map(int, raw.split())), (name, cell)
            elif bar:
                own = found.setdefault(name, {})
                had = own.get((cell[0], int(cell[1:])), (0, 0, 0))
                own[cell[0], int(cell[1:])] = tuple(a + int(b) for a, b in zip(had, raw.split(), strict=True))
            elif name[0] in "otmk":
                values = records.unpack(raw)
                opened = tuple(values[4:7])
                own = found.setdefault(name, {})
                places[name] = (values[2], values[2] // 36, values[3])
                assert values[1] // 300 >= values[2], (name, values)
                newest = max(newest, values[2])
                for key in (("f", values[2]), ("c", values[2] // 36), ("d", values[3])):
                    own[key] = tuple(a + b for a, b in zip(own.get(key, (0, 0, 0)), opened, strict=True))
        if b"o" in hash_:
            # No open bucket is later than the organization's newest second.
            assert newest <= records.unpack(hash_[b"o"])[1] // 300
        assert set(found) == set(places), "cells without a record"
        for name, own in found.items():
            fine, coarse, day = places[name]
            expected: dict[tuple[str, int], list[int]] = {}
            for entry in self.model.by_name.get(name, []):
                if not entry.is_counted:
                    continue
                for key, oldest in (
                    (("f", entry.second // 300), fine - KEPT_FINE),
                    (("c", entry.second // 10800), coarse - KEPT_COARSE),
                    (("d", day_of(entry.second)), day - KEPT_DAYS),
                ):
                    if key[1] >= oldest:
                        sums = expected.setdefault(key, [0, 0, 0])
                        sums[0], sums[1], sums[2] = sums[0] + entry.c, sums[1] + entry.t, sums[2] + entry.n
            # A record that nobody has used for long keeps cells of what this test has dropped.
            known = {"f": self.model.horizon // 300, "c": self.model.horizon // 10800, "d": day_of(self.model.horizon)}
            mine = {key: value for key, value in own.items() if any(value) and key[1] > known[key[0]]}
            theirs = {key: tuple(value) for key, value in expected.items() if any(value) and key[1] > known[key[0]]}
            assert mine == theirs, (name, sorted(set(mine.items()) ^ set(theirs.items())))

    def check_funding(self, hash_: dict[bytes, bytes]) -> None:
        """7, 8, 9: entries of both periods of each source; quotas, caps and grants bound what was booked."""
        model = self.model
        for source in SOURCES:
            entries = [records.unpack(hash_[key]) for key in (f"f:{source}".encode(), f"p:{source}".encode()) if key in hash_]
            kept = sorted(model.funds[source].values(), key=lambda fund: -fund.start)
            assert [e[0] for e in entries] == [fund.start for fund in kept], (source, entries)
            for entry, fund in zip(entries, kept, strict=True):
                assert entry == [fund.start, fund.quota, int(fund.is_allowed), fund.cap, *fund.sums], (source, entry, fund)
                assert fund.held >= 0
                assert fund.reserved >= 0
                if model.is_bounded:
                    assert fund.used <= fund.most
                    assert fund.overage <= fund.most_cap
                if self.is_exact:
                    assert fund.overdraft == 0
        if model.is_bounded:
            assert model.spent <= model.granted

    def check_events(self) -> None:
        """5, 6, 13: exactly the events that the log says, in their order, each part once; parts add up."""
        key = self.probe.keys[2]
        entries: Any = self.probe.redis.xrange(key, f"({self.read[0]}" if self.read else "-")
        for (stream_id, fields), expected in zip(entries, self.model.events, strict=True):
            event = records.read_event(stream_id, fields)
            split = (event.plan, event.purchased, event.overage, event.overdraft)
            told = (event.request_id, event.part, event.state, event.credits, event.tokens, event.requests)
            assert (*told, split, event.outcome, event.ended_ms) == expected
            assert sum(split) == event.credits
            entry = self.model.entries[event.request_id]
            assert (event.admitted_s, event.day, event.source) == (entry.second, day_of(entry.second), entry.source)
            assert (event.fund_start, event.records) == (entry.fund, entry.names)
            if event.outcome != "LOGGED":
                assert (event.request_id, event.part) not in self.parts
                self.parts.add((event.request_id, event.part))
            self.read[:] = [stream_id.decode()]
        self.model.events.clear()
        if entries:
            self.probe.redis.xtrim(key, maxlen=0, approximate=False)
        for entry in self.model.entries.values():
            if entry.is_counted and entry.is_known and entry.state in ("S", "O"):
                assert entry.logged == (entry.c, entry.t, entry.n, entry.split), entry
                assert sum(entry.split) == entry.c


def span_of(source: str, second: int) -> tuple[int, int]:
    """In which seconds a view that was built for `second` holds."""
    day, period, fund = day_of(second), period_of(second), fund_start(source, second)
    return max(day_start(day), period, fund), min(day_start(day + 1), period + WEEK, fund + WEEK)


def _lacking(model: Model) -> list[tuple[Entry, tuple[int, int, int], tuple[int, ...]]]:
    """Requests that the log has and the counters have not, or have otherwise; the differences of amounts and of the split."""
    found = []
    for entry in model.entries.values():
        if entry.logged is None or (entry.is_counted and entry.state == "L"):
            continue
        c, t, n, split = entry.logged
        had = (entry.c, entry.t, entry.n) if entry.is_counted else (0, 0, 0)
        booked = entry.split if entry.is_counted else (0, 0, 0, 0)
        amounts = (c - had[0], t - had[1], n - had[2])
        funds = tuple(a - b for a, b in zip(split, booked, strict=True))
        if any(amounts) or any(funds):
            found.append((entry, amounts, funds))
    return found


def differences(model: Model) -> list[Delta]:
    deltas: list[Delta] = []
    spent = 0
    for entry, amounts, funds in _lacking(model):
        for name in entry.names:
            for tag, at in (("f", entry.second // 300), ("c", entry.second // 10800), ("d", day_of(entry.second))):
                deltas.append(Cell(name, tag, at, *amounts))
            deltas.append(Total(name, code_of(records.PERIOD, entry.second), *amounts))
        deltas.append(Funding(entry.source, entry.fund, *funds))
        spent += funds[1]
    if spent:
        deltas.append(Spent(spent))
    return deltas


def repaired(model: Model) -> None:
    """The model after these differences were added."""
    lacking = _lacking(model)
    if lacking:
        model.is_bounded = False
    model.spent += sum(funds[1] for _, _, funds in lacking)
    touched: dict[str, list[Fund]] = {}
    for entry, _, funds in lacking:
        own = model.entry_of(entry.source, entry.fund)
        own.used, own.purchased = own.used + funds[0], own.purchased + funds[1]
        own.overage, own.overdraft = own.overage + funds[2], own.overdraft + funds[3]
        own.is_made = False
        touched.setdefault(entry.source, []).append(own)
        assert entry.logged is not None
        entry.c, entry.t, entry.n, entry.split = entry.logged
        entry.is_counted, entry.state = True, entry.logged_state
        model.newest = max(model.newest, entry.second // 300 * 300)
    for funds_of in touched.values():
        for own in funds_of:
            model.refit(own)


def fails(history: History, steps: Sequence[Step]) -> bool:
    """Whether a history of the same kind fails after these steps."""
    again = History(history.seed, history.organization, history.is_exact, history.is_plain, history.is_logged)
    try:
        for step in steps:
            again.apply(step)
        again.check_everything()
    except Exception:
        return True
    finally:
        again.probe.wipe()
    return False


def shortened(history: History) -> list[Step]:
    """The fewest steps found, in some seconds, after which it still fails: every part is left out that can be."""
    deadline = time.monotonic() + SHRINK_SECONDS
    steps = history.steps[1:]
    piece = len(steps) // 2
    while piece >= 1 and time.monotonic() < deadline:
        at = 0
        while at < len(steps) and time.monotonic() < deadline:
            tried = steps[:at] + steps[at + piece :]
            if fails(history, tried):
                steps = tried
            else:
                at += piece
        piece //= 2
    return steps
