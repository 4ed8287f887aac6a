"""The engine written a second time, the slow way: a log of requests, from which every sum is counted anew.

`Model` is told each step and says what the engine must answer and keep. It knows nothing of open and closed buckets, rings or
windows that are rolled on: a window is a condition on the seconds of admissions. Funding is the rule of quotas.md sections 4 and 5.
Amounts are micro-credits and tokens; times are milliseconds of the driven clock, `second` is a unix second.
"""

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from quotas import engine, records
from quotas.records import Question, RecordView
from tests.quotas.engine_probe import T

DAY_OFFSET = 61
"""Local days begin at this second of the UTC day, in the middle of a bucket."""
WEEK = 7 * 86400
KEEP = 900_000
SPAN = {
    records.FIVE_HOURS: (300, 60),
    records.ONE_DAY: (300, 288),
    records.SEVEN_DAYS: (10800, 56),
    records.THIRTY_DAYS: (10800, 240),
}
"""Length of a bucket, and how many closed ones count besides the open one."""
KEPT_FINE, KEPT_COARSE, KEPT_DAYS = 288, 240, 40
CALLERS = {
    "a": (("o", "t1", "m1", "k1"), "o"),
    "b": (("o", "t1", "m2", "k2"), "m2"),
    "c": (("o", "m3", "k3"), "o"),
}
FILTERED = "~f1"
SOURCES = ("o", "m2")
SECOND = attrgetter("second")

Split = tuple[int, int, int, int]
Question3 = tuple[int, int, int]
"""A limit: metric, kind of window (0 where the metric has none), value."""


def day_of(second: int) -> int:
    return (second - DAY_OFFSET) // 86400 + 700_000


def day_start(day: int) -> int:
    return (day - 700_000) * 86400 + DAY_OFFSET


def period_of(second: int, shift: int = 0) -> int:
    """Periods of a week, `shift` seconds later for the seat; they begin in the middle of a bucket, too."""
    first = T - 3 * 86400 + shift + 7
    return first + (second - first) // WEEK * WEEK


def fund_start(source: str, second: int) -> int:
    return period_of(second, 86400 if source == "m2" else 0)


def code_of(kind: int, second: int) -> int:
    """The code of a window at a second. Weeks and months are of 7 and 30 local days."""
    if kind == records.PERIOD:
        return records.code(kind, period_of(second))
    day = day_of(second)
    start = {records.DAY: day, records.WEEK: day - day % 7, records.MONTH: day - day % 30}.get(kind, 0)
    return records.code(kind, start)


@dataclass(frozen=True, slots=True)
class Config:
    """What a snapshot would say: limits by record, terms (quota, purchased allowed, overage cap) by source."""

    limits: dict[str, tuple[Question3, ...]]
    terms: dict[str, tuple[int, bool, int]]


@dataclass(slots=True, eq=False)
class Entry:
    """A request that was admitted, or stopped before it came (then without names)."""

    request: str
    names: tuple[str, ...]
    source: str
    second: int
    hold: tuple[int, int]
    c: int
    t: int
    n: int = 1
    state: str = "L"
    observed: tuple[int, int] = (0, 0)
    lease: int = 0
    seen: int = 0
    ack: int = 0
    split: Split = (0, 0, 0, 0)
    ticket: tuple[tuple[int, int], int] = ((0, 0), 0)
    """What its ticket says: observed, and when it was last seen alive (ms)."""
    is_known: bool = True
    """The engine has its hold or tombstone."""
    is_counted: bool = True
    """The counters hold c, t, n."""
    logged: "tuple[int, int, int, Split] | None" = None
    """What the log says of it: credits, tokens, requests, split, over all parts."""
    logged_state: str = ""
    ended: int = 0

    @property
    def fund(self) -> int:
        return fund_start(self.source, self.second)


@dataclass(slots=True, eq=False)
class Fund:
    start: int
    quota: int = engine.UNLIMITED
    is_allowed: bool = False
    cap: int = 0
    used: int = 0
    held: int = 0
    reserved: int = 0
    purchased: int = 0
    overage: int = 0
    overdraft: int = 0
    is_made: bool = False
    is_loose: bool = False
    most: int = 0
    """The largest quota it ever had, and the largest cap."""
    most_cap: int = 0

    def set_terms(self, quota: int, is_allowed: bool, cap: int) -> None:
        self.quota, self.is_allowed, self.cap = quota, is_allowed, cap
        self.most, self.most_cap = max(self.most, quota), max(self.most_cap, cap)

    def remember(self, before: "Fund | None") -> None:
        if before is not None:
            self.most, self.most_cap = max(self.most, before.most), max(self.most_cap, before.most_cap)

    @property
    def sums(self) -> list[int]:
        return [self.used, self.held, self.reserved, self.purchased, self.overage, self.overdraft]


Event = tuple[str, int, str, int, int, int, Split, str, int]
"""Request, part, state, credits, tokens, requests, split, outcome, end (ms)."""


@dataclass
class Model:
    now: int = (T + 5) * 1000
    version: int = 1
    """The newest version that the engine has heard of."""
    granted: int = 0
    grants: int = 0
    mark: int = 0
    spent: int = 0
    newest: int = 0
    """The newest second that the engine has said or must know."""
    is_cold: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)
    by_name: dict[str, list[Entry]] = field(default_factory=dict)
    admissions: dict[str, list[int]] = field(default_factory=dict)
    """By record, the seconds of admissions since the last rebuild: rates per minute."""
    paced: dict[str, int] = field(default_factory=dict)
    """By record, until when its requests are paced (microseconds)."""
    funds: dict[str, dict[int, Fund]] = field(default_factory=lambda: {source: {} for source in SOURCES})
    events: list[Event] = field(default_factory=list)
    """What must have been appended to the stream and was not compared yet."""
    horizon: int = 0
    """Requests before this second may have been dropped by `forget_old`."""
    forgotten: int = 0
    """Purchased credits spent by what `forget_old` dropped."""
    is_bounded: bool = True
    """Nothing has been booked without counters, so quotas and grants bound what was used."""

    # -- sums, from the log

    def _sum(self, entries: list[Entry]) -> tuple[int, int, int]:
        c = t = n = 0
        for entry in entries:
            if entry.is_counted:
                c, t, n = c + entry.c, t + entry.t, n + entry.n
        return c, t, n

    def since(self, name: str, second: int) -> list[Entry]:
        """The record's requests admitted at `second` or later."""
        own = self.by_name.get(name, [])
        at = len(own)
        while at > 0 and own[at - 1].second >= second:
            at -= 1
        return own[at:]

    def used(self, name: str, kind: int, second: int) -> tuple[int, int, int]:
        """What a window must count at `second`: whole buckets for rolling ones."""
        if kind == records.PERIOD:
            start = period_of(second)
        elif kind in SPAN:
            bucket, span = SPAN[kind]
            start = (second // bucket - span) * bucket
        else:
            start = day_start(code_of(kind, second) // 16)
        return self._sum(self.since(name, start))

    def live(self, name: str) -> list[Entry]:
        return [entry for entry in self.by_name.get(name, []) if entry.state == "L" and entry.is_counted]

    def minute(self, name: str, second: int) -> int:
        """Admissions of the last 7 slots of 10 s; a release does not give back."""
        count = 0
        for at in reversed(self.admissions.get(name, [])):
            if at // 10 < second // 10 - 6:
                break
            count += 1
        return count

    # -- funding

    def entry_of(self, source: str, start: int) -> Fund:
        """The funding entry of a period: at most two are kept, the newest ones."""
        kept = self.funds[source]
        if start in kept:
            return kept[start]
        made = Fund(start, is_made=True)
        if kept:
            like = kept[max(kept)]
            made.set_terms(like.quota, like.is_allowed, like.cap)
        if len(kept) == 2 and start < min(kept):
            made.is_loose = True
            return made
        if len(kept) == 2:
            del kept[min(kept)]
        kept[start] = made
        return made

    def free(self, own: Fund) -> int:
        """Purchased credits that no other entry has reserved."""
        if not own.is_allowed:
            return 0
        others = sum(fund.reserved for kept in self.funds.values() for fund in kept.values() if fund is not own)
        return max(0, self.granted - self.spent - others)

    def refit(self, own: Fund) -> None:
        """Reserved is what running requests hold beyond what is left of the quota; what was settled needs no other fund."""
        if not own.is_loose:
            own.reserved = min(max(0, own.held - max(0, own.quota - own.used)), self.free(own))

    def book(self, own: Fund, amount: int) -> Split:
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

    # -- admission

    def second(self) -> int:
        """The engine's second: time seen by buckets never falls."""
        return max(self.now // 1000, self.newest)

    def refusal(
        self,
        names: tuple[str, ...],
        source: str,
        config: Config,
        need: tuple[int, int],
        second: int,
        paces: dict[str, int],
        told: Any,
    ) -> list[Any] | None:
        """The whole answer of the first limit, in the view's order, that refuses; None if all pass.

        `paces` gets, by record, until when its requests are paced if this one is admitted. `told`: the second the engine named.
        """
        for name in names:
            for asked, kind, value in config.limits.get(name, ()):
                metric, is_exact = asked % records.BY_SECOND, asked > records.BY_SECOND
                if metric <= 3:
                    wants = (*need, 1)[metric - 1]
                    if wants == 0:
                        continue
                    if is_exact:
                        bucket, span = SPAN[kind]
                        used = self._sum(self.since(name, second - bucket * span + 1))[metric - 1]
                    else:
                        used = self.used(name, kind, second)[metric - 1]
                    if used + wants > value:
                        live = self.live(name)
                        held = (sum(e.c for e in live), sum(e.t for e in live), len(live))[metric - 1]
                        free_at = self.free_at(name, kind, metric, second, wants, value, is_exact, told)
                        return ["NO", name, metric, code_of(kind, second), value, used, held, free_at]
                elif metric == records.PER_MINUTE:
                    used = self.minute(name, second)
                    if used + 1 > value:
                        return ["NO", name, 4, 0, value, used, 0, self.rate_free_at(name, second, value)]
                elif metric == records.PER_SECOND:
                    if (refused := self._pace(name, value, second, paces)) is not None:
                        return refused
                else:
                    running = len(self.live(name))
                    if running + 1 > value:
                        return ["NO", name, 5, 0, value, running, running, -1 if value < 1 else 0]
        if need[0] == 0:
            return None
        quota, is_allowed, cap = config.terms[source]
        own = self.funds[source].get(fund_start(source, second)) or Fund(0)
        judged = Fund(own.start, quota, is_allowed, cap, own.used, own.held, own.reserved, overage=own.overage)
        others = sum(
            f.reserved for kept in self.funds.values() for f in kept.values() if f is not own and self._stays(f, source, second)
        )
        free = max(0, self.granted - self.spent - others) if is_allowed else 0
        over = max(0, judged.held + need[0] - max(0, quota - judged.used))
        if over - min(over, free) > max(0, cap - judged.overage):
            never = need[0] > quota + cap + (max(0, self.granted - self.spent) if is_allowed else 0)
            return ["NO", "plan", 1, records.PLAN, quota, judged.used + judged.held, judged.held, -1 if never else 0]
        return None

    def _pace(self, name: str, value: int, second: int, paces: dict[str, int]) -> list[Any] | None:
        """Requests per second: each takes 1/value of the time to come; two seconds' worth may be taken ahead. In microseconds."""
        now = max(self.now, second * 1000) * 1000
        step = -(-1_000_000 // value) if value else 0
        ends = max(self.paced.get(name, 0), now) + step
        if value == 0 or ends - now > 2 * value * step:
            at = -1 if value == 0 else -(-(ends - 2 * value * step) // 1_000_000)
            return ["NO", name, 6, 0, value, value, 0, at]
        paces[name] = ends
        return None

    def _stays(self, fund: Fund, source: str, second: int) -> bool:
        """A new period drops the entry two periods old, with what it reserved, before anything is judged."""
        kept = self.funds[source]
        is_new = fund_start(source, second) not in kept
        return not (is_new and len(kept) == 2 and fund is kept[min(kept)])

    def free_at(self, name: str, kind: int, metric: int, second: int, need: int, value: int, is_exact: bool, told: int) -> int:
        """`told`: what the engine said, for the one case in which either answer is right."""
        if need > value:
            return -1
        if kind not in SPAN:
            return 0
        bucket, span = SPAN[kind]
        if is_exact:
            inside = [entry for entry in self.since(name, second - bucket * span + 1) if entry.is_counted]
            left = self._sum(inside)[metric - 1]
            for entry in sorted(inside, key=SECOND):
                left -= (entry.c, entry.t, entry.n)[metric - 1]
                if left + need <= value:
                    leaves = entry.second + bucket * span
                    if entry.second // bucket < second // bucket:
                        return leaves
                    # What the open bucket holds leaves as one, or by the second where a part of it was closed early.
                    return leaves if told == leaves else (second // bucket + span + 1) * bucket
            raise AssertionError("it fits when all has left")
        amounts: dict[int, int] = {}
        for entry in self.since(name, (second // bucket - span) * bucket):
            if entry.is_counted:
                amount = (entry.c, entry.t, entry.n)[metric - 1]
                amounts[entry.second // bucket] = amounts.get(entry.second // bucket, 0) + amount
        left = sum(amounts.values())
        for at in sorted(amounts):
            left -= amounts[at]
            if left + need <= value:
                return (at + span + 1) * bucket
        raise AssertionError("it fits when all has left")

    def rate_free_at(self, name: str, second: int, value: int) -> int:
        if value < 1:
            return -1
        slots = [at // 10 for at in self.admissions.get(name, []) if at // 10 >= second // 10 - 6]
        left = len(slots)
        for slot in sorted(set(slots)):
            left -= slots.count(slot)
            if left + 1 <= value:
                return (slot + 7) * 10
        raise AssertionError("it fits when all has left")

    def admit(self, entry: Entry, config: Config) -> None:
        """Counts an admission that passed."""
        start, source = entry.fund, entry.source
        own = self.entry_of(source, start)
        own.is_made = False
        own.set_terms(*config.terms[source])
        own.held += entry.c
        self.refit(own)
        self.entries[entry.request] = entry
        for name in entry.names:
            insort(self.by_name.setdefault(name, []), entry, key=SECOND)
            insort(self.admissions.setdefault(name, []), entry.second)
        self.newest = max(self.newest, entry.second)

    # -- what happens to a hold

    def may_have_ended(self, ack: int | None) -> bool:
        return ack is not None and self.mark - ack >= KEEP

    def renew(self, entry: Entry, observed: tuple[int, int], lease: int) -> list[Any]:
        if self.is_cold:
            return ["COLD"]
        if entry.is_known and entry.state == "O":
            entry.seen = max(entry.seen, self.now)
            entry.lease = max(entry.lease, entry.seen + KEEP)
            return ["ORPHANED"]
        if entry.is_known and entry.state != "L":
            return ["ENDED", entry.state]
        if not entry.is_known:
            if self.may_have_ended(entry.ack):
                return ["UNKNOWN"]
            # It is counted again from the ticket, which knows nothing of what was observed since.
            assert not entry.is_counted, "an ended request would be counted twice"
            assert entry.logged is None, "a logged request would be counted twice"
            entry.is_known = entry.is_counted = True
            entry.state, entry.split = "L", (0, 0, 0, 0)
            was, seen = entry.ticket
            entry.n, entry.seen = 1, max(self.now, seen)
            entry.observed = (max(was[0], observed[0]), max(was[1], observed[1]))
            entry.c, entry.t = max(entry.hold[0], entry.observed[0]), max(entry.hold[1], entry.observed[1])
            own = self.entry_of(entry.source, entry.fund)
            own.held += entry.c
            self.refit(own)
            own.is_made = False
            self.newest = max(self.newest, entry.second)
            answer = "RESTORED"
        else:
            entry.observed = (max(entry.observed[0], observed[0]), max(entry.observed[1], observed[1]))
            before = (entry.c, entry.t)
            entry.c, entry.t = max(entry.hold[0], entry.observed[0]), max(entry.hold[1], entry.observed[1])
            if (entry.c, entry.t) != before:
                own = self.entry_of(entry.source, entry.fund)
                own.held += entry.c - before[0]
                self.refit(own)
                own.is_made = False
            entry.seen = max(entry.seen, self.now)
            answer = "OK"
        entry.ack, entry.lease = self.now, self.now + lease
        return [answer]

    def settle(self, entry: Entry, state: str, cost: tuple[int, int], terms: tuple[int, bool, int] | None = None) -> list[Any]:
        c, t = cost if state == "S" else (0, 0)
        if not self.is_cold and entry.is_known:
            if entry.state in ("S", "R"):
                return ["DUP", entry.state, entry.c, *entry.split]
            if entry.state == "L":
                self.end(entry, (c, t), state, terms)
                if state == "S":
                    self.emit(entry, 0, "S", c, t, 1, entry.split, "OK", entry.seen)
                return ["OK", *entry.split]
            return self._amend(entry, state, (c, t), terms)
        if self.is_cold or self.may_have_ended(entry.ack):
            if state == "R":
                return ["GONE"]
            self.emit(entry, 0, "S", c, t, 1, (c, 0, 0, 0), "LOGGED", max(self.now, entry.ticket[1]))
            return ["LOGGED"]
        assert not entry.is_counted, "an ended request would be counted twice"
        if state == "R":
            # Its stone has no names; the log of this test keeps them, for the counters never heard of it.
            entry.state, entry.is_known, entry.is_counted = "R", True, False
            entry.c = entry.t = entry.n = 0
            entry.split, entry.seen = (0, 0, 0, 0), max(self.now, entry.ticket[1])
            entry.lease = entry.seen + KEEP
            return ["LATE", 0, 0, 0, 0]
        entry.is_known = entry.is_counted = True
        entry.c, entry.t, entry.n = c, t, 1
        own = self.entry_of(entry.source, entry.fund)
        if terms is not None:
            own.set_terms(*terms)
        entry.split = self.book(own, c)
        self.refit(own)
        own.is_made = False
        entry.state, entry.seen = "S", max(self.now, entry.ticket[1])
        entry.lease = entry.seen + KEEP
        self.newest = max(self.newest, entry.second)
        self.emit(entry, 0, "S", c, t, 1, entry.split, "LATE", entry.seen)
        return ["LATE", *entry.split]

    def _amend(self, entry: Entry, state: str, cost: tuple[int, int], terms: tuple[int, bool, int] | None) -> list[Any]:
        """The sweeper was first: its split is taken back, the real one booked."""
        own = self.entry_of(entry.source, entry.fund)
        if terms is not None:
            own.set_terms(*terms)
        was, was_c, was_t = entry.split, entry.c, entry.t
        own.used -= was[0]
        own.purchased -= was[1]
        own.overage -= was[2]
        own.overdraft -= was[3]
        self.spent -= was[1]
        entry.c, entry.t = cost
        entry.split = self.book(own, entry.c)
        self.refit(own)
        own.is_made = False
        n = -1 if state == "R" else 0
        entry.n += n
        entry.state, entry.seen = "S", max(entry.seen, self.now)
        entry.lease = entry.seen + KEEP
        difference = tuple(now - before for now, before in zip(entry.split, was, strict=True))
        self.emit(entry, 1, "S", entry.c - was_c, entry.t - was_t, n, difference, "AMENDED", entry.seen)  # type: ignore[arg-type]
        return ["AMENDED", *entry.split]

    def end(self, entry: Entry, cost: tuple[int, int], state: str, terms: tuple[int, bool, int] | None = None) -> None:
        own = self.entry_of(entry.source, entry.fund)
        if not own.is_made:
            own.held -= entry.c
        if terms is not None:
            own.set_terms(*terms)
        entry.c, entry.t = cost
        entry.n = 0 if state == "R" else 1
        entry.split = self.book(own, entry.c)
        self.refit(own)
        own.is_made = False
        entry.state, entry.seen = state, max(entry.seen, self.now)
        entry.lease = entry.seen + KEEP
        self.newest = max(self.newest, entry.second)

    def sweep(self) -> int:
        """Ends all leases that are due, in the order of their ends, and drops all stones that are; how many were orphaned."""
        known = [entry for entry in self.entries.values() if entry.is_known]
        stones = [e for e in known if e.state != "L" and e.lease <= self.now]
        due = sorted((e for e in known if e.state == "L" and e.lease <= self.now), key=lambda e: (e.lease, e.request))
        for entry in due:
            self.end(entry, entry.observed, "O")
            self.emit(entry, 0, "O", entry.c, entry.t, 1, entry.split, "ORPHANED", entry.seen)
        for entry in stones:
            entry.is_known = False
        if stones:
            self.mark = max(self.now, self.mark)
        return len(due)

    def emit(self, entry: Entry, part: int, state: str, c: int, t: int, n: int, split: Split, outcome: str, ended: int) -> None:
        """The stream's entry, and what the log makes of it: a settlement that meets its own orphan is stored as the difference."""
        self.events.append((entry.request, part, state, c, t, n, split, outcome, ended))
        if entry.logged is None:
            entry.logged, entry.logged_state = (c, t, n, split), state
        elif part == 1:
            had = entry.logged
            both = tuple(a + b for a, b in zip(had[3], split, strict=True))
            entry.logged = (had[0] + c, had[1] + t, had[2] + n, both)  # type: ignore[assignment]
            entry.logged_state = "S"
        elif entry.logged_state == "O" and state == "S":
            entry.logged, entry.logged_state = (c, t, n, split), "S"
        else:
            assert outcome == "LOGGED", "a part came twice, and was counted twice"
            return
        entry.ended = ended

    # -- loss and rebuild

    def lose(self) -> None:
        """Every key of the organization is gone; the log is not."""
        self.is_cold = True
        for entry in self.entries.values():
            entry.is_known = entry.is_counted = False

    def staged(self, version: int, config: Config, grants: tuple[int, int], epoch: int) -> tuple[dict[str, Any], list[Any]]:
        """The hash of a rebuild, and the tombstones' ids with their ends: what quotas.md section 8 says of the log."""
        lines = [entry for entry in self.entries.values() if entry.logged is not None]
        newest = max([self.now // 1000, *(entry.second for entry in lines)])
        today, code = day_of(newest), code_of(records.PERIOD, newest)
        cells: dict[str, list[int]] = {}
        totals: dict[str, list[int]] = {}
        funding: dict[tuple[str, int], list[int]] = {}
        fields: dict[str, Any] = {}
        stones: list[Any] = []
        spent = self.forgotten
        for entry in lines:
            assert entry.logged is not None
            c, t, n, split = entry.logged
            spent += split[1]
            for i in range(4):
                funding.setdefault((entry.source, entry.fund), [0, 0, 0, 0])[i] += split[i]
            for name in entry.names:
                total = totals.setdefault(name, [0, 0, 0])
                places = [
                    ("f", entry.second // 300, newest // 300 - KEPT_FINE),
                    ("c", entry.second // 10800, newest // 10800 - KEPT_COARSE),
                ]
                places.append(("d", day_of(entry.second), today - KEPT_DAYS))
                sums = [cells.setdefault(f"{name}|{tag}{at}", [0, 0, 0]) for tag, at, oldest in places if at >= oldest]
                if period_of(entry.second) == period_of(newest):
                    sums.append(total)
                for own in sums:
                    own[0], own[1], own[2] = own[0] + c, own[1] + t, own[2] + n
            if entry.ended >= self.now - KEEP:
                stone = [entry.logged_state, entry.second, entry.second // 300, day_of(entry.second)]
                stone += [
                    code_of(records.PERIOD, entry.second),
                    entry.source,
                    entry.fund,
                    0,
                    0,
                    c,
                    t,
                    0,
                    0,
                    "",
                    *split,
                    entry.ended,
                ]
                fields[f"h:{entry.request}"] = records.pack([*stone, *entry.names])
                stones += [entry.request, entry.ended + KEEP]
        fields.update({cell: "{} {} {}".format(*sums) for cell, sums in cells.items()})
        for name, total in totals.items():
            values = [
                0,
                newest,
                newest // 300,
                today,
                0,
                0,
                0,
                0,
                0,
                newest // 10,
                0,
                0,
                "0 0 0 0 0 0",
                code,
                records.pack(total),
                "",
            ]
            fields[name] = records.pack(values)
        for source in SOURCES:
            start = fund_start(source, newest)
            for tag, at in (("f", start), ("p", fund_start(source, start - 1))):
                used, purchased, overage, overdraft = funding.get((source, at), [0, 0, 0, 0])
                quota, is_allowed, cap = config.terms[source]
                fields[f"{tag}:{source}"] = records.pack(
                    [at, quota, int(is_allowed), cap, used, 0, 0, purchased, overage, overdraft]
                )
        fields["$"] = records.pack([epoch, version, self.now, spent, 0, grants[1], grants[0]])
        return fields, stones

    def rebuild(self, version: int, config: Config, grants: tuple[int, int], *, keep: bool) -> None:
        """What stands after it: the log's amounts, and the live holds if they are kept."""
        kept = sorted((e for e in self.entries.values() if keep and e.is_known), key=lambda e: (e.lease, e.request))
        lines = [entry for entry in self.entries.values() if entry.logged is not None]
        newest = max([self.now // 1000, *(entry.second for entry in lines)])
        self.is_cold, self.version, self.mark, self.admissions, self.paced = False, version, self.now, {}, {}
        self.newest = newest if lines else 0
        self.grants, self.granted = grants
        self.spent = self.forgotten
        if any(entry.split != entry.logged[3] for entry in lines if entry.logged):
            self.is_bounded = False
        before, self.funds = self.funds, {source: {} for source in SOURCES}
        for source in SOURCES:
            start = fund_start(source, newest)
            for at in (start, fund_start(source, start - 1)):
                made = self.funds[source][at] = Fund(at)
                made.set_terms(*config.terms[source])
                made.remember(before[source].get(at))
        for entry in self.entries.values():
            is_stone = entry.logged is not None and entry.ended >= self.now - KEEP
            was_kept = keep and entry.is_known
            entry.is_known = is_stone or was_kept
            if entry.logged is None:
                entry.is_counted = False
                continue
            c, t, n, split = entry.logged
            self.spent += split[1]
            own = self.funds[entry.source].get(entry.fund)
            if own is not None:
                own.used, own.purchased = own.used + split[0], own.purchased + split[1]
                own.overage, own.overdraft = own.overage + split[2], own.overdraft + split[3]
            entry.is_counted, entry.c, entry.t, entry.n = True, c, t, n
            entry.state, entry.split = entry.logged_state, split
            if is_stone:
                entry.seen = entry.ended
                if not was_kept:
                    entry.lease = entry.ended + KEEP
        for entry in kept:
            if entry.state == "L":
                entry.is_counted = True
                own = self.entry_of(entry.source, entry.fund)
                own.held += entry.c
                self.refit(own)
                own.is_made = False
                self.newest = max(self.newest, entry.second)

    def forget_old(self) -> None:
        """Drops what no window and no funding entry can see any more, so that a long history stays quick to count."""
        oldest = min(self.newest, self.now // 1000) - 45 * 86400
        old = [e for e in self.entries.values() if e.second < oldest and not e.is_known and e.state != "L"]
        self.horizon = max(self.horizon, oldest)
        for entry in old:
            del self.entries[entry.request]
            self.forgotten += entry.logged[3][1] if entry.logged else 0
            for name in entry.names:
                self.by_name[name].remove(entry)


def view_records(names: tuple[str, ...], config: Config, second: int) -> list[RecordView]:
    made = []
    for name in names:
        own = config.limits.get(name, ())
        codes = sorted({code_of(kind, second) for _, kind, _ in own if kind > records.PERIOD})
        questions = []
        for metric, kind, value in own:
            position = codes.index(code_of(kind, second)) + 1 if kind > records.PERIOD else 0
            questions.append(Question(metric, position, value))
        made.append(RecordView(name, tuple(codes), tuple(questions)))
    return made
