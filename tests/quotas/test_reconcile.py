"""The reconciler: no drift without a loss; every kind of damage is found and put right to the log while traffic goes on."""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from accounts import keys
from billing import rollups
from billing.models import SubscriptionPeriod, UsageHour
from config import celery
from config.clock import utc_now
from config.redis import sync_client
from quotas import adjusting, copies, engine, filters, limits, rebuild, reconcile, records, tasks, views
from quotas.models import Drift
from quotas.reconcile import Report
from tests import factories
from tests.quotas import tenancy
from tests.quotas.engine_probe import Probe
from tests.quotas.tenancy import CREDIT, Tenant, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant() -> Tenant:
    made = tenancy.make(team=True)
    assert rebuild.rebuild(made.organization.pk)
    return made


class Requests:
    """Requests of a tenant, straight through the scripts, at the server's own time."""

    def __init__(self, tenant: Tenant, seed: int = 1) -> None:
        self.tenant, self.probe, self.rng = tenant, Probe(organization=tenant.organization.pk), random.Random(seed)
        self.snapshot = tenant.snapshot()
        self.live: list[str] = []

    def admit(self, credits: int) -> str | None:
        made, now = request_id(), time.time()
        view = views.view_for(self.snapshot, self.tenant.key_of(self.snapshot), int(now), "gpt-5.5").packed
        answer = self.probe.admit(made, now, view, credits, credits // 100, about=self.tenant.about)
        if answer[0] != "OK":
            return None
        self.live.append(made)
        return made

    def end(self, made: str, credits: int, *, state: str = "S") -> None:
        self.live.remove(made)
        now = time.time()
        body = self.tenant.body()
        assert self.probe.settle(made, now, credits, credits // 100, state=state, ack=now, body=body)[0] in ("OK", "LATE", "LOGGED")

    def spend(self, credits: int) -> str:
        made = self.admit(credits)
        assert made is not None
        self.end(made, credits)
        return made

    def step(self) -> None:
        if len(self.live) > 4 or (self.live and self.rng.random() < 0.5):
            credits = self.rng.randint(0, 3 * CREDIT)
            self.end(self.rng.choice(self.live), credits, state="R" if self.rng.random() < 0.1 else "S")
        else:
            self.admit(self.rng.randint(0, 2 * CREDIT))


@contextmanager
def traffic(tenant: Tenant, threads: int = 3) -> Iterator[None]:
    """Requests from several threads until the end; some live on, and end after it."""
    done, errors = threading.Event(), []

    def work(seed: int) -> None:
        requests = Requests(tenant, seed)
        try:
            while not done.is_set():
                requests.step()
            for made in list(requests.live):
                requests.end(made, CREDIT // 2)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in running:
            thread.join(30)
    assert errors == []


def found(tenant: Tenant, *, repair: bool = False) -> Report:
    return reconcile.reconcile(tenant.organization.pk, repair=repair)


def assert_agrees(tenant: Tenant) -> None:
    """Counters, log, ledger, periods and hourly sums are one."""
    report = found(tenant)
    assert [str(one) for one in report.differences] == []
    rows = tenant.log()
    usage = tenant.usage()
    assert usage.plan.used + usage.plan.overdraft == sum(row.credits for row in rows)
    assert tenant.probe.record("o").used[0] == (
        sum(row.credits for row in rows),
        sum(row.counted_tokens for row in rows),
        sum(row.counted_requests for row in rows),
    )


def filtered(tenant: Tenant) -> None:
    """A limit of one model, in force: its requests are counted apart, too."""
    limits.set_limit(
        tenant.organization, scope="organization", of=None, metric="credits", window="7d", amount="1000000", models=["gpt-5.5"]
    )
    assert len(filters.fill(tenant.organization.pk)) == 1


def hash_set(tenant: Tenant, name: str, change: Callable[[list[Any]], None]) -> None:
    probe = tenant.probe
    values = probe.field(name)
    assert values is not None
    change(values)
    probe.redis.hset(probe.keys[0], name, records.pack(values))


def test_there_is_no_drift_while_traffic_runs_and_none_after_it(tenant: Tenant) -> None:
    with traffic(tenant):
        for _ in range(8):
            assert found(tenant).differences == ()
            time.sleep(0.05)
    assert_agrees(tenant)
    assert tenant.usage().live == 0
    assert not Drift.objects.filter(organization=tenant.organization).exists()


def test_orphans_and_what_a_rebuild_made_are_no_drift(tenant: Tenant) -> None:
    requests = Requests(tenant)
    requests.spend(CREDIT)
    held = requests.admit(2 * CREDIT)
    assert held is not None
    assert found(tenant).differences == ()
    assert tenant.probe.renew(held, time.time(), CREDIT, 5, ack=time.time(), lease=0) == ["OK"]
    assert tenant.probe.sweep(time.time() + 0.01)[0] == "OK"
    assert found(tenant).differences == ()
    now = time.time()
    assert tenant.probe.settle(held, now, CREDIT // 2, 3, ack=now, body=tenant.body())[0] == "AMENDED"
    assert found(tenant).differences == ()
    tenant.drain()
    tenant.lose_everything()
    assert found(tenant).is_cold
    tenant.usage()
    assert_agrees(tenant)


def damage_cell(tenant: Tenant) -> None:
    probe = tenant.probe
    values = probe.field("o")
    assert values is not None
    for name, tag, at in ((f"m{tenant.member.pk}", "f", values[2] - 3), ("o", "c", values[2] // 36 - 9), ("o", "d", values[3])):
        probe.redis.hset(probe.keys[0], f"{name}|{tag}{at}", "7000000 12 3")


def add_to_total(values: list[Any]) -> None:
    windows = records.unpack(values[14].encode("utf-8", "surrogateescape"))
    values[14] = records.pack([windows[0] + 5 * CREDIT, windows[1] - 6, windows[2] + 7, *windows[3:]])


def damage_total(tenant: Tenant) -> None:
    hash_set(tenant, f"k{tenant.key.row.pk}", add_to_total)


def damage_open_bucket(tenant: Tenant) -> None:
    def change(values: list[Any]) -> None:
        values[4] += 9 * CREDIT
        values[6] += 2

    hash_set(tenant, "o", change)


def damage_funding(tenant: Tenant) -> None:
    def change(values: list[Any]) -> None:
        values[4] -= CREDIT // 4
        values[9] += CREDIT

    hash_set(tenant, "f:o", change)


def damage_spent(tenant: Tenant) -> None:
    hash_set(tenant, "$", lambda values: values.__setitem__(3, values[3] + 12345))


def lose_record(tenant: Tenant) -> None:
    probe = tenant.probe
    name = f"t{tenant.member.team_id}"
    gone = [field for field in probe.dump() if field == name.encode() or field.startswith(f"{name}|".encode())]
    probe.redis.hdel(probe.keys[0], *gone)


def damage_filter(tenant: Tenant) -> None:
    """The records of a model filter, one of them lost."""
    probe = tenant.probe
    (pk,) = {one.filter_id for one in tenant.snapshot().quotas.filters}
    values = probe.field("o")
    assert values is not None
    hash_set(tenant, f"o~f{pk}", add_to_total)
    probe.redis.hset(probe.keys[0], f"o~f{pk}|c{values[2] // 36 - 5}", "7 8 9")
    lost = f"k{tenant.key.row.pk}~f{pk}"
    probe.redis.hdel(probe.keys[0], *[name for name in probe.dump() if name.decode().partition("|")[0] == lost])


def lose_funding(tenant: Tenant) -> None:
    tenant.probe.redis.hdel(tenant.probe.keys[0], "f:o")


DAMAGE = [damage_cell, damage_total, damage_open_bucket, damage_funding, damage_spent, damage_filter, lose_record, lose_funding]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_is_found_stored_and_put_right(tenant: Tenant, damage: Callable[[Tenant], None]) -> None:
    filtered(tenant)
    requests = Requests(tenant)
    for _ in range(5):
        requests.spend(CREDIT)
    assert found(tenant).differences == ()
    damage(tenant)
    report = found(tenant)
    assert report.differences
    stored = Drift.objects.filter(organization=tenant.organization, repaired_at=None)
    assert {(row.kind, row.record, row.field, row.expected, row.counted) for row in stored} == {
        (one.kind, one.record, one.field, one.expected, one.counted) for one in report.differences
    }
    # Asked again, the same difference is the same row.
    assert found(tenant).differences == report.differences
    assert stored.all().count() == len(report.differences)
    repaired = found(tenant, repair=True)
    assert repaired.differences == report.differences
    assert repaired.repair_id
    assert not stored.all().exists()
    assert_agrees(tenant)
    requests.spend(CREDIT)
    assert_agrees(tenant)


@pytest.mark.parametrize("damage", DAMAGE[:6], ids=lambda damage: damage.__name__)
def test_damage_is_put_right_while_traffic_goes_on(tenant: Tenant, damage: Callable[[Tenant], None]) -> None:
    """Settlements between the copy and the repair are neither lost nor counted twice."""
    filtered(tenant)
    Requests(tenant).spend(CREDIT)
    with paused_traffic(tenant) as pause:
        time.sleep(0.1)
        with pause():
            damage(tenant)
        report = found(tenant, repair=True)
        assert report.differences
        assert report.repair_id
        assert found(tenant).differences == ()
    assert_agrees(tenant)


@contextmanager
def paused_traffic(tenant: Tenant) -> Iterator[Callable[[], Any]]:
    """Traffic that `pause()` holds still: damage is a read and a write, between which nothing else may write."""
    lock, done, errors = threading.Lock(), threading.Event(), []

    def work(seed: int) -> None:
        requests = Requests(tenant, seed)
        try:
            while not done.is_set():
                with lock:
                    requests.step()
                time.sleep(0.001)
            for made in list(requests.live):
                requests.end(made, CREDIT // 2)
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in running:
        thread.start()
    try:
        yield lambda: lock
    finally:
        done.set()
        for thread in running:
            thread.join(30)
    assert errors == []


def test_counters_that_were_restored_a_while_old_are_put_right(tenant: Tenant) -> None:
    """A settlement that the log has and the restored counters lack; a hold that they still believe in."""
    requests = Requests(tenant)
    requests.spend(CREDIT)
    held = requests.admit(3 * CREDIT)
    assert held is not None
    redis = sync_client()
    saved = {key: redis.dump(key) for key in engine.keys(tenant.organization.pk)}
    requests.end(held, 2 * CREDIT)
    requests.spend(5 * CREDIT)
    tenant.drain()
    for key, value in saved.items():
        redis.delete(key)
        if value is not None:
            redis.restore(key, 0, value)
    # The hold ends as an orphan at what was seen of it, 0, when its lease ends; the log has its settlement already.
    report = found(tenant, repair=True)
    assert report.differences
    assert_agrees_but_holds(tenant)
    assert tenant.probe.sweep(time.time() + 60)[0] == "OK"
    found(tenant, repair=True)
    assert_agrees(tenant)
    requests.spend(CREDIT)
    assert_agrees(tenant)


def assert_agrees_but_holds(tenant: Tenant) -> None:
    assert found(tenant).differences == ()


def test_an_event_that_was_lost_is_taken_off_the_counters(tenant: Tenant) -> None:
    """The log is the truth: what never reached it (its stream was cut) is not counted."""
    requests = Requests(tenant)
    requests.spend(CREDIT)
    requests.spend(4 * CREDIT)
    redis = sync_client()
    stream = engine.stream_key(tenant.organization.pk)
    entries: Any = redis.xrange(stream)
    redis.xdel(stream, entries[-1][0])
    report = found(tenant, repair=True)
    assert {(one.field, one.expected, one.counted) for one in report.differences if one.record == "o" and one.kind == "total"} == {
        ("period credits", CREDIT, 5 * CREDIT),
        ("period tokens", CREDIT // 100, 5 * CREDIT // 100),
        ("period requests", 1, 2),
    }
    assert_agrees(tenant)


def test_a_settlement_that_was_only_logged_is_added(tenant: Tenant) -> None:
    """The engine could not know whether the hold had ended: the log decides, the reconciler counts it."""
    requests = Requests(tenant)
    made = requests.admit(CREDIT)
    assert made is not None
    probe = tenant.probe
    probe.redis.hdel(probe.keys[0], f"h:{made}")
    probe.redis.zrem(probe.keys[1], made)
    hash_set(tenant, "$", lambda values: values.__setitem__(2, int(time.time() * 1000) + 3_600_000))
    requests.end(made, 2 * CREDIT)
    report = found(tenant, repair=True)
    kinds = {one.kind for one in report.differences}
    assert {"cell", "total", "funding", "held"} <= kinds
    assert_agrees(tenant)
    assert tenant.probe.record("o").live == 0


def test_a_repair_of_replaced_counters_is_lost_and_compared_anew(tenant: Tenant) -> None:
    requests = Requests(tenant)
    requests.spend(CREDIT)
    damage_funding(tenant)
    copy = copies.take(sync_client(), tenant.organization.pk)
    assert copy is not None
    assert rebuild.rebuild(tenant.organization.pk, expected_epoch=str(copy.epoch), keep_holds=True)
    delta = adjusting.Funding("o", 1, 5, 0, 0, 0)
    assert adjusting.adjust(tenant.organization.pk, copy.epoch, "late", [delta]) == "LOST"
    assert_agrees(tenant)


def test_two_at_once_do_not_repair_twice(tenant: Tenant) -> None:
    Requests(tenant).spend(CREDIT)
    damage_open_bucket(tenant)
    start = threading.Barrier(3)
    outcomes: list[str] = []

    def run() -> None:
        try:
            start.wait(10)
            outcomes.append("repaired" if found(tenant, repair=True).repair_id else "agreed")
        except reconcile.RepairRunning:
            outcomes.append("running")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("repaired") == 1
    assert_agrees(tenant)


def test_a_full_log_that_nobody_drains_is_drained_first(tenant: Tenant) -> None:
    requests = Requests(tenant)
    for _ in range(30):
        requests.spend(CREDIT // 10)
    assert tenant.log() == []
    assert found(tenant).differences == ()
    assert len(tenant.log()) == 30


def test_books_that_disagree_are_told_and_hourly_sums_put_right(tenant: Tenant) -> None:
    requests = Requests(tenant)
    requests.spend(CREDIT)
    tenant.drain()
    UsageHour.objects.filter(organization=tenant.organization).update(credits=7, requests=2)
    period = SubscriptionPeriod.objects.get(subscription__organization=tenant.organization)
    SubscriptionPeriod.objects.filter(pk=period.pk).update(tokens=0)
    report = found(tenant)
    day = utc_now().date().isoformat()
    where = f"o {period.starts_at:%Y-%m-%dT%H:%M:%SZ}"
    assert {(one.kind, one.record, one.field, one.expected, one.counted) for one in report.differences} == {
        ("rollup", day, "credits", CREDIT, 7),
        ("rollup", day, "requests", 1, 2),
        ("period", where, "tokens", CREDIT // 100, 0),
    }
    found(tenant, repair=True)
    # A period's sums are read by invoices: a person looks.
    assert [(row.kind, row.field) for row in Drift.objects.filter(organization=tenant.organization, repaired_at=None)] == [
        ("period", "tokens")
    ]
    SubscriptionPeriod.objects.filter(pk=period.pk).update(tokens=CREDIT // 100)
    assert_agrees(tenant)
    assert reconcile.open_drift()["differences"] == Drift.objects.filter(repaired_at=None).count()
    assert not Drift.objects.filter(organization=tenant.organization, repaired_at=None).exists()
    made = set(UsageHour.objects.filter(organization=tenant.organization).values_list("credits", "requests"))
    rollups.rebuild(tenant.organization.pk, utc_now() - timedelta(days=1), utc_now())
    assert made == {(CREDIT, 1)}


def test_records_of_scopes_that_are_gone_and_idle_are_dropped(tenant: Tenant) -> None:
    other = factories.api_key(tenant.member).row
    probe, organization = tenant.probe, tenant.organization
    requests = Requests(tenant)
    requests.spend(CREDIT)
    old = int(time.time()) - 45 * 86400
    for pk, second in ((other.pk, old), (tenant.key.row.pk, old)):
        values = probe.field(f"k{tenant.key.row.pk}")
        assert values is not None
        values[0:4] = [0, second, second // 300, values[3] - 45]
        values[4:7] = [0, 0, 0]
        values[14] = records.pack([0, 0, 0])
        probe.redis.hset(probe.keys[0], f"k{pk}", records.pack(values))
        probe.redis.hset(probe.keys[0], f"k{pk}|f{second // 300}", "1 1 1")
    keys.revoke(other, by=None, now=utc_now())
    assert found(tenant).forgotten == 1
    fields = {name.decode() for name in probe.dump()}
    assert not {name for name in fields if name.startswith(f"k{other.pk}")}
    assert f"k{tenant.key.row.pk}" in fields
    assert found(tenant).forgotten == 0
    assert organization.pk


def test_the_command_names_what_it_found_and_repairs_when_asked(tenant: Tenant) -> None:
    Requests(tenant).spend(CREDIT)

    def run(*arguments: str) -> Any:
        out = StringIO()
        call_command("reconcile", "--organization", tenant.organization.slug, *arguments, "--json", stdout=out)
        return json.loads(out.getvalue())

    clean = run()
    assert (clean["organizations"], clean["differences"], clean["drift"]) == (1, 0, [])
    damage_open_bucket(tenant)
    drift = run()
    assert drift["differences"] == len(drift["drift"]) > 0
    assert {"organization", "kind", "record", "field", "expected", "counted"} <= set(drift["drift"][0])
    assert run("--repair")["repaired"] == 1
    assert run()["differences"] == 0


def test_the_task_compares_every_organization_and_again_after_another_server(tenant: Tenant) -> None:
    Requests(tenant).spend(CREDIT)
    damage_open_bucket(tenant)
    assert tasks.reconcile_organization(tenant.organization.pk) > 0
    assert Drift.objects.filter(organization=tenant.organization).exists()
    # The workers' own: it says which broker.
    queue = celery.app.conf.task_default_queue
    redis = sync_client()
    tasks.watch_server()
    redis.delete(f"celery:{queue}")
    assert tasks.watch_server() is False
    assert redis.llen(f"celery:{queue}") == 0
    redis.set(reconcile.SERVER_KEY, "another")
    assert tasks.watch_server() is True
    redis.delete(reconcile.SERVER_KEY)
    assert tasks.watch_server() is True
    assert redis.llen(f"celery:{queue}") == 2
    redis.delete(f"celery:{queue}")
    assert tasks.watch_server() is False


def test_days_follow_the_organizations_zone() -> None:
    tenant = tenancy.make(timezone="Asia/Kathmandu")
    assert rebuild.rebuild(tenant.organization.pk)
    Requests(tenant).spend(CREDIT)
    assert_agrees(tenant)
    assert UsageHour.objects.filter(organization=tenant.organization).count() == 1
