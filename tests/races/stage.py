"""Sets the scene of a race: organizations, processes, what happens to them meanwhile, and the quiet afterwards."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django.db import connection

from accounts import keys
from accounts.models import ApiKey, Organization, Team
from billing import changes, credits, ledger, subscriptions
from billing.errors import BillingError
from billing.models import Plan, Subscription
from config import redis as weir_redis
from config import scope
from config.clock import utc_now
from quotas import engine, limits, records
from quotas.models import Limit
from tests import factories
from tests.flows.stack import ROOT, environment

QUIET_SECONDS = 30.0
MOST_LIMITS = 2


@dataclass
class Standing:
    """A limit as it surely stood from `since` to `until` (server ms; None: to the end), boosts counted as if they lasted."""

    record: str
    metric: str
    window: str
    amount: int
    since: int
    until: int | None = None

    @property
    def question(self) -> tuple[str, str, str]:
        return self.record, self.metric, self.window


@dataclass
class Tenant:
    """An organization of the race. `kind`: exact (costs never exceed holds, terms only grow), rough, postpaid."""

    kind: str
    organization: Organization
    keys: list[ApiKey] = field(default_factory=list)
    teams: list[Team] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)
    standing: list[Standing] = field(default_factory=list)
    fixed: set[tuple[str, str, str]] = field(default_factory=set)
    """Questions of the limits that stand from the beginning to the end; boosts raise them."""
    revoked: dict[str, int] = field(default_factory=dict)
    """By public id: the server's ms when `revoke` had returned."""

    def stands(self, question: tuple[str, str, str]) -> Standing | None:
        return next((one for one in self.standing if one.question == question and one.until is None), None)

    def ends(self, question: tuple[str, str, str]) -> Standing | None:
        """From now on something else may hold."""
        found = self.stands(question)
        if found is not None:
            found.until = server_ms()
        return found


def server_ms() -> int:
    seconds, micros = weir_redis.sync_client().time()
    return int(seconds) * 1000 + int(micros) // 1000


def cast(kind: str, rng: random.Random, quota: int) -> Tenant:
    """An organization with three members in two teams, one of them with a seat, and twelve keys."""
    made = Tenant(kind, factories.organization(plan=None, timezone=rng.choice(["UTC", "Asia/Kolkata", "America/New_York"])))
    redis: Any = weir_redis.sync_client()
    pk = made.organization.pk
    # A server that was given may hold another run's organization of the same number.
    for key in list(redis.scan_iter(f"quotas:{weir_redis.shard(pk)}:{pk}:*")):
        redis.delete(key)
    for number in range(2):
        made.plans.append(
            Plan.objects.create(
                slug=factories.unique(f"race-{kind}")[:40],
                name=f"Race {kind} {number}",
                reset_period="weekly",
                base_quota=quota * (1 + number),
                charging_mode="postpaid" if kind == "postpaid" else "reserve",
                overage_policy="invoice" if kind == "rough" and number else "purchased",
                overage_cap=quota // 2 if kind == "rough" and number else None,
                overage_price=Decimal("0.01"),
                quota_strategy="fixed_window",
            )
        )
    subscriptions.start(made.organization, made.plans[0], now=utc_now())
    made.teams = [factories.team(made.organization) for _ in range(2)]
    for number in range(3):
        member = factories.member(made.organization, team=made.teams[number] if number < 2 else None)
        made.keys += [factories.api_key(member, name=f"key {number}").row for number in range(4)]
        if number == 2:
            subscriptions.add_seat(member, made.plans[0], by=None, now=utc_now())
    return made


@dataclass
class Stage:
    """A race: `seconds` of traffic by `processes` workers and two ledger processes, all choices from `seed`."""

    folder: Path
    processes: int
    seed: int
    quota: int
    """Micro-credits of the smaller plan; limits and grants are shares of it."""
    tenants: list[Tenant] = field(default_factory=list)
    workers: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)
    ledgers: "dict[int, subprocess.Popen[bytes]]" = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    generation: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.environ = environment("http://127.0.0.1:9", WEIR_LEDGER_QUIET="1")

    # -- processes

    def start_worker(self, number: int) -> None:
        self.generation += 1
        name = f"req_{self.seed}w{number}g{self.generation}"
        orders = {
            "name": name,
            "seed": f"{self.seed}/{number}/{self.generation}",
            "folder": str(self.folder),
            "tenants": [(one.organization.pk, one.kind, [key.public_id for key in one.keys]) for one in self.tenants],
        }
        self.workers[number] = self._spawn(f"worker-{number}", "-m", "tests.races.worker", json.dumps(orders))

    def start_ledger(self, number: int) -> None:
        self.ledgers[number] = self._spawn(f"ledger-{number}", "manage.py", "ledger")

    def _spawn(self, name: str, *command: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen([sys.executable, *command], cwd=ROOT, env=self.environ, stdout=output, stderr=output)

    def kill(self, processes: "dict[int, subprocess.Popen[bytes]]", start: Callable[[int], None], what: str) -> None:
        number = self.rng.choice(sorted(processes))
        processes[number].kill()
        processes[number].wait(10)
        start(number)
        self.done[what] += 1

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Everything runs; afterwards nothing does, whatever happened."""
        for number in range(2):
            self.start_ledger(number)
        for number in range(self.processes):
            self.start_worker(number)
        try:
            yield
        finally:
            for process in (*self.workers.values(), *self.ledgers.values()):
                if process.poll() is None:
                    process.kill()
                    process.wait(10)

    # -- what happens meanwhile

    def wait_ready(self) -> None:
        """Until each worker works: starting Python takes seconds on a busy machine."""
        deadline = time.monotonic() + 60
        while len(list(self.folder.glob("*.journal"))) < self.processes:
            assert time.monotonic() < deadline, [self.tail(f"worker-{number}") for number in self.workers]
            time.sleep(0.05)

    def play(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        acts: list[tuple[Callable[[], None], float]] = [
            (lambda: self.kill(self.workers, self.start_worker, "workers killed"), 0.7),
            (lambda: self.kill(self.ledgers, self.start_ledger, "ledgers killed"), 0.5),
            (self.change_limit, 5),
            (self.boost, 1),
            (self.revoke, 0.5),
            (self.change_plan, 2),
            (self.give, 2),
            (self.take, 0.5),
            (self.seat, 0.7),
            (self.deliver_again, 4),
        ]
        while time.monotonic() < deadline:
            self.rng.choices([act for act, _ in acts], [weight for _, weight in acts])[0]()
            time.sleep(self.rng.uniform(0.02, 0.3))
            for number, process in self.workers.items():
                if process.poll() is not None:
                    raise AssertionError(
                        f"worker {number} ended by itself ({process.returncode}):\n{self.tail(f'worker-{number}')}"
                    )

    def tail(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-4000:]

    def change_limit(self) -> None:
        tenant = self.rng.choice(self.tenants)
        changing = [
            one for one in Limit.objects.for_organization(tenant.organization).order_by("pk") if asked(one) not in tenant.fixed
        ]
        if len(changing) > MOST_LIMITS:
            # Else the race would soon stand still.
            limit = self.rng.choice(changing)
            tenant.ends(asked(limit))
            limits.change(limit, "none", by=None)
            self.done["limits removed"] += 1
            return
        key = self.rng.choice(tenant.keys)
        which = self.rng.choice(["organization", "team", "member", "key"])
        metric, window = self.rng.choice(
            [
                ("credits", "5h"), ("credits", "1d"), ("credits", "7d"), ("credits", "day"), ("credits", "period"),
                ("tokens", "30d"), ("tokens", "week"),
                ("requests", "month"), ("requests", "5h"), ("requests_per_minute", ""), ("concurrent", ""),
                ("requests_per_second", ""),
            ]
        )  # fmt: skip
        team = self.rng.choice(tenant.teams)
        user = key.member.user
        assert user is not None
        of, record = {
            "organization": (None, "o"),
            "team": (team.name, f"t{team.pk}"),
            "member": (user.email, f"m{key.member_id}"),
            "key": (key.public_id, f"k{key.pk}"),
        }[which]
        if (which == "key" and key.public_id in tenant.revoked) or (record, metric, window) in tenant.fixed:
            return
        amount = self.rng.choice(
            {
                "credits": [self.quota // 6, self.quota // 2, 2 * self.quota],
                "tokens": [self.quota // 60, self.quota // 10],
                "requests": [self.quota // 10_000, self.quota // 2_000],
                "requests_per_minute": [60, 600],
                "requests_per_second": [5, 50],
                "concurrent": [3, 12],
            }[metric]
        )
        wanted = None if self.rng.random() < 0.4 else amount
        strategy = self.rng.choice([None, None, "sliding_log"]) if window in ("5h", "1d", "7d", "30d") else None
        self.set_limit(tenant, (record, metric, window), which, of, wanted, strategy)
        self.done["limits changed"] += 1

    def set_limit(
        self,
        tenant: Tenant,
        question: tuple[str, str, str],
        which: str,
        of: str | None,
        amount: int | None,
        strategy: str | None = None,
    ) -> None:
        record, metric, window = question
        tenant.ends(question)
        text = "none" if amount is None else credits.text(amount) if metric == "credits" else str(amount)
        limits.set_limit(
            tenant.organization, scope=which, of=of, metric=metric, window=window, amount=text, strategy=strategy, by=None
        )
        if amount is not None:
            tenant.standing.append(Standing(record, metric, window, amount, server_ms()))

    def boost(self) -> None:
        tenant = self.rng.choice(self.tenants)
        found = list(Limit.objects.for_organization(tenant.organization).order_by("pk"))
        if not found:
            return
        limit = self.rng.choice(found)
        extra = max(1, limit.amount // 10)
        before = tenant.ends(asked(limit))
        until = utc_now() + timedelta(seconds=self.rng.choice([2, 30]))
        limits.boost(limit, extra=extra, until=until, reason="race", by=None)
        if before is not None:
            tenant.standing.append(Standing(*before.question, before.amount + extra, server_ms()))
        self.done["boosts"] += 1

    def revoke(self) -> None:
        tenant = self.rng.choice(self.tenants)
        living = [key for key in tenant.keys if key.public_id not in tenant.revoked]
        if len(living) <= len(tenant.keys) // 2:
            return
        key = self.rng.choice(living)
        keys.revoke(key, by=None, now=utc_now())
        tenant.revoked[key.public_id] = server_ms()
        self.done["keys revoked"] += 1

    def change_plan(self) -> None:
        tenant = self.rng.choice(self.tenants)
        own = Subscription.objects.active().filter(organization=tenant.organization, member=None).get()
        plan = next(plan for plan in tenant.plans if plan.pk != own.plan_id)
        if tenant.kind == "exact" and plan.pk == tenant.plans[0].pk:
            return
        self.rng.choice([changes.change_plan, changes.renew_on])(own, plan, by=None, now=utc_now())
        self.done["plans changed"] += 1

    def seat(self) -> None:
        tenant = self.rng.choice([one for one in self.tenants if one.kind != "exact"])
        member = tenant.keys[-1].member
        if subscriptions.end_seat(member, by=None, now=utc_now()) is None:
            subscriptions.add_seat(member, self.rng.choice(tenant.plans), by=None, now=utc_now())
        self.done["seats changed"] += 1

    def give(self) -> None:
        tenant = self.rng.choice(self.tenants)
        ledger.grant(
            tenant.organization,
            self.rng.choice([1, 1 + self.quota // 30, 1 + self.quota // 10]),
            reason="race",
            actor=None,
            now=utc_now(),
        )
        self.done["grants"] += 1

    def take(self) -> None:
        tenant = self.rng.choice([one for one in self.tenants if one.kind != "exact"])
        if ledger.balance(tenant.organization.pk).left > 2:
            try:
                ledger.adjust(tenant.organization, -2, reason="race", actor=None, now=utc_now())
            except BillingError:
                return
            self.done["grants taken back"] += 1

    def deliver_again(self) -> None:
        """An entry of the stream comes twice."""
        tenant = self.rng.choice(self.tenants)
        redis, key = weir_redis.sync_client(), engine.stream_key(tenant.organization.pk)
        entries: Any = redis.xrange(key, count=20)
        if entries:
            redis.xadd(key, self.rng.choice(entries)[1])
            redis.sadd(engine.dirty_key(tenant.organization.pk), tenant.organization.pk)
            self.done["delivered again"] += 1

    # -- the quiet afterwards

    def quiet(self) -> None:
        """Workers finish what they have; leases end, streams drain."""
        for process in self.workers.values():
            process.send_signal(signal.SIGTERM)
        for number, process in self.workers.items():
            code = process.wait(30)
            # One that had just been started again may not have come to handle the signal.
            assert code in (0, -signal.SIGTERM), f"worker {number} ended with {code}:\n{self.tail(f'worker-{number}')}"
        deadline = time.monotonic() + QUIET_SECONDS
        while any(unfinished(tenant) for tenant in self.tenants):
            assert time.monotonic() < deadline, {one.kind: unfinished(one) for one in self.tenants}
            time.sleep(0.1)
        for process in self.ledgers.values():
            process.send_signal(signal.SIGTERM)
        for process in self.ledgers.values():
            assert process.wait(30) in (0, -signal.SIGTERM)


def unfinished(tenant: Tenant) -> dict[str, int]:
    """What still runs: live holds, entries not drained; empty if nothing does."""
    redis: Any = weir_redis.sync_client()
    pk = tenant.organization.pk
    stored: dict[bytes, bytes] = redis.hgetall(engine.counters_key(pk))
    live = sum(1 for name, raw in stored.items() if name.startswith(b"h:") and records.unpack(raw)[0] == "L")
    waiting = redis.xlen(engine.stream_key(pk))
    return {name: count for name, count in (("live", live), ("waiting", waiting)) if count}


def asked(limit: Limit) -> tuple[str, str, str]:
    return record_of(limit), limit.metric, limit.window


def record_of(limit: Limit) -> str:
    if limit.team_id is not None:
        return f"t{limit.team_id}"
    if limit.member_id is not None:
        return f"m{limit.member_id}"
    return "o" if limit.key_id is None else f"k{limit.key_id}"


def run(folder: Path, *, seconds: float, processes: int, seed: int) -> tuple[Stage, dict[str, Any]]:
    """A whole race with its audit; what was counted, for people. Raises AssertionError for whatever is not as it must be."""
    from tests.races import audit

    with scope.everything():
        quota = int(60_000 * seconds)
        stage = Stage(folder, processes, seed, quota)
        stage.tenants = [cast(kind, stage.rng, quota) for kind in ("exact", "rough", "postpaid")]
        for tenant in stage.tenants:
            user = tenant.keys[0].member.user
            assert user is not None
            first, team = tenant.keys[0], tenant.teams[1]
            stage.set_limit(tenant, ("o", "credits", "30d"), "organization", None, 4 * quota)
            stage.set_limit(tenant, (f"m{first.member_id}", "credits", "month"), "member", user.email, quota // 2)
            stage.set_limit(tenant, (f"t{team.pk}", "requests", "1d"), "team", team.name, int(30 * seconds))
            tenant.fixed = {one.question for one in tenant.standing}
        with stage.playing():
            stage.wait_ready()
            stage.play(seconds)
            stage.quiet()
        counted = audit.check(stage)
    connection.close()
    return stage, counted
