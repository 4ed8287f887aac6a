"""The ledger process: from the streams into the log, once, whatever breaks on the way."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections

from accounts.models import Organization
from config.redis import sync_client
from quotas import drain, engine, publishing, records, sweep
from quotas.models import DeadLetter, UsageDrain
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant() -> Tenant:
    made = tenancy.make()
    made.usage()
    return made


def view(tenant: Tenant) -> bytes:
    from quotas import views

    loaded = tenant.snapshot()
    return views.view_for(loaded, tenant.key_of(loaded), int(time.time())).packed


def spend(tenant: Tenant, credits: int = 1, *, body: bytes | None = None) -> str:
    made, now, probe = request_id(), time.time(), tenant.probe
    assert probe.admit(made, now, view(tenant), credits * CREDIT, 10, about=tenant.about)[0] == "OK"
    assert probe.settle(made, now, credits * CREDIT, 10, ack=now, body=tenant.body() if body is None else body)[0] == "OK"
    return made


def stream(tenant: Tenant) -> str:
    return engine.stream_key(tenant.organization.pk)


def test_what_was_settled_stands_in_the_log(tenant: Tenant) -> None:
    made = spend(tenant, 3)
    assert str(tenant.organization.pk).encode() in sync_client().smembers(engine.dirty_key(tenant.organization.pk))
    assert drain.drain(sync_client(), tenant.organization.pk) == 1
    (row,) = tenant.log()
    assert (row.request_id, row.part, row.credits, row.from_quota, row.overdraft) == (made, 0, 3 * CREDIT, 3 * CREDIT, 0)
    assert (row.counted_tokens, row.counted_requests, row.source, row.status) == (10, 1, "o", "ok")
    assert abs(row.admitted_at.timestamp() - time.time()) < 5
    # Read, written, trimmed, and no longer named as having news.
    assert sync_client().xlen(stream(tenant)) == 0
    assert str(tenant.organization.pk).encode() not in sync_client().smembers(engine.dirty_key(tenant.organization.pk))
    assert UsageDrain.objects.get(organization=tenant.organization).drained_id == row.stream_id
    assert drain.drain(sync_client(), tenant.organization.pk) == 0


def test_many_batches_are_written_whole(tenant: Tenant) -> None:
    fields = next(iter(sync_client().xrange(stream(tenant))), None)
    assert fields is None
    spend(tenant)
    ((_, entry),) = sync_client().xrange(stream(tenant))
    values = records.unpack(entry[b"e"])
    pipeline = sync_client().pipeline(transaction=False)
    for _ in range(1200):
        values[0] = request_id()
        pipeline.xadd(stream(tenant), {"e": records.pack(values), "b": entry[b"b"]})
    pipeline.execute()
    assert [drain.drain(sync_client(), tenant.organization.pk) for _ in range(4)] == [500, 500, 201, 0]
    assert len(tenant.log()) == 1201


def test_an_orphan_and_its_amendment_are_two_parts_that_sum_up(tenant: Tenant) -> None:
    now, made, probe = time.time(), request_id(), tenant.probe
    assert probe.admit(made, now, view(tenant), 5 * CREDIT, 50, about=tenant.about)[0] == "OK"
    assert probe.renew(made, now, 2 * CREDIT, 20, ack=now, lease=0) == ["OK"]
    assert sweep.sweep_organization(sync_client(), tenant.organization.pk, now_ms=int(now * 1000) + 1) == 1
    assert probe.settle(made, now + 1, 3 * CREDIT, 25, ack=now, body=tenant.body())[0] == "AMENDED"
    assert tenant.drain() == 2
    first, second = tenant.log()
    assert (first.part, first.status, first.credits, first.counted_requests) == (0, "orphaned", 2 * CREDIT, 1)
    assert (second.part, second.status, second.credits, second.counted_requests) == (1, "ok", CREDIT, 0)
    assert first.admitted_at == second.admitted_at


def test_an_entry_that_cannot_be_read_goes_to_the_dead_letters_and_the_rest_goes_on(tenant: Tenant) -> None:
    first = spend(tenant, 1)
    sync_client().xadd(stream(tenant), {"e": b"\xc1nonsense", "b": b"{}"})
    sync_client().xadd(stream(tenant), {"other": b"fields"})
    odd = spend(tenant, 2, body=b'{"not": "a body"}')
    last = spend(tenant, 3)
    assert tenant.drain() == 5
    assert [(row.request_id, row.credits) for row in tenant.log()] == sorted([(first, CREDIT), (last, 3 * CREDIT)])
    letters = DeadLetter.objects.filter(organization_id=tenant.organization.pk).order_by("id")
    assert [letter.error.split(":")[0] for letter in letters] == ["ValueError", "ValueError", "ValidationError"]
    assert records.unpack(bytes(letters[0].raw))[0] == "e"
    assert odd in str(bytes(letters[2].raw))
    assert sync_client().xlen(stream(tenant)) == 0


def test_an_entry_that_the_database_refuses_does_not_take_its_batch_along(tenant: Tenant) -> None:
    good = spend(tenant, 1)
    bad = spend(tenant, 2, body=tenant.body(key_id=10**9))
    also_good = spend(tenant, 3)
    assert tenant.drain() == 3
    assert {row.request_id for row in tenant.log()} == {good, also_good}
    (letter,) = DeadLetter.objects.filter(organization_id=tenant.organization.pk)
    assert bad in str(bytes(letter.raw))
    assert "IntegrityError" in letter.error


def test_nothing_is_trimmed_before_its_commit(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that dies between reading and writing leaves its entries to the next one; rows are written once."""
    made = spend(tenant, 4)

    class Died(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Died

    for step in ("_write", "_trim"):
        with monkeypatch.context() as patched:
            patched.setattr(drain, step, die)
            with pytest.raises(Died):
                drain.drain(sync_client(), tenant.organization.pk)
        assert sync_client().xlen(stream(tenant)) == 1
    assert tenant.drain() == 1
    assert [row.request_id for row in tenant.log()] == [made]


def test_several_ledgers_at_once_write_everything_once(tenant: Tenant) -> None:
    """H3: no deadlock reaches anybody, totals are exact."""
    others = [tenancy.make() for _ in range(3)]
    for one in (tenant, *others):
        one.usage()
        for _ in range(20):
            spend(one, 1)
    stop = threading.Event()
    ledgers = [drain.Ledger(stopped=stop.is_set) for _ in range(3)]

    def run(ledger: drain.Ledger) -> None:
        try:
            ledger.run()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as threads:
        running = [threads.submit(run, ledger) for ledger in ledgers]
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and any(sync_client().xlen(stream(one)) for one in (tenant, *others)):
            time.sleep(0.05)
        stop.set()
        for done in running:
            done.result(10)
    for one in (tenant, *others):
        assert [row.credits for row in one.log()] == [CREDIT] * 20
        assert one.usage().plan.used == 20 * CREDIT


def test_a_stream_that_was_lost_and_begun_again_is_read(tenant: Tenant) -> None:
    spend(tenant, 1)
    tenant.drain()
    tenant.lose_everything()
    tenant.usage()
    spend(tenant, 2)
    assert tenant.drain() == 1
    assert sum(row.credits for row in tenant.log()) == 3 * CREDIT


def test_the_sweeper_ends_what_nobody_renews(tenant: Tenant) -> None:
    now, made, probe = time.time(), request_id(), tenant.probe
    probe.admit(made, now, view(tenant), 5 * CREDIT, 50, about=tenant.about, lease=0.2)
    assert str(tenant.organization.pk).encode() in sync_client().smembers(engine.leased_key(tenant.organization.pk))
    # Other organizations' leases may be due; this one's is not.
    sweep.sweep(sync_client())
    assert tenant.usage().live == 1
    time.sleep(0.25)
    assert sweep.sweep(sync_client()) >= 1
    usage = tenant.usage()
    assert (usage.live, usage.plan.held, usage.plan.used, usage.requests) == (0, 0, 0, 1)
    tenant.drain()
    (row,) = tenant.log()
    assert (row.request_id, row.status, row.credits) == (made, "orphaned", 0)


def test_many_leases_are_swept_in_pieces(tenant: Tenant) -> None:
    now = time.time()
    for _ in range(120):
        tenant.probe.admit(request_id(), now, view(tenant), 1, 1, about=tenant.about, lease=0)
    assert sweep.sweep_organization(sync_client(), tenant.organization.pk, now_ms=int(now * 1000) + 5) == 120
    assert sweep.sweep_organization(sync_client(), tenant.organization.pk, now_ms=int(now * 1000) + 900_006) == 0
    assert tenant.probe.hold_ids() == tenant.probe.lease_ids() == set()
    assert str(tenant.organization.pk).encode() not in sync_client().smembers(engine.leased_key(tenant.organization.pk))


def test_versions_that_were_not_published_are_pushed(tenant: Tenant) -> None:
    """A crash between the commit and the publishing leaves an old number behind."""
    Organization.objects.filter(pk=tenant.organization.pk).update(config_version=77)
    versions = sweep.Versions()
    versions.push(sync_client())
    assert tenant.probe.meta()[1] == 77
    assert versions.push(sync_client()) == 0
    publishing.publish_version(tenant.organization.pk, 5)
    assert tenant.probe.meta()[1] == 77
    spend(tenant)
    sync_client().delete(engine.dirty_key(tenant.organization.pk))
    versions.push(sync_client(), everything=True)
    assert tenant.organization.pk in sweep.dirty(sync_client())


def test_the_ledger_outlives_redis_and_postgres_going_away(tenant: Tenant) -> None:
    spend(tenant, 1)
    stop = threading.Event()

    def run() -> None:
        try:
            drain.Ledger(stopped=stop.is_set).run()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        for made in range(2, 5):
            deadline = time.monotonic() + 15
            while len(tenant.log()) < made - 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            sync_client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            spend(tenant, made)
        deadline = time.monotonic() + 15
        while len(tenant.log()) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running.done()
        stop.set()
        running.result(10)
    assert sorted(row.credits for row in tenant.log()) == [CREDIT, 2 * CREDIT, 3 * CREDIT, 4 * CREDIT]


def test_once_does_what_is_due_and_ends(tenant: Tenant) -> None:
    spend(tenant, 2)
    call_command("ledger", "--once")
    assert [row.credits for row in tenant.log()] == [2 * CREDIT]


def test_sigterm_ends_it_cleanly(tenant: Tenant) -> None:
    """As a process of its own, on the test's database."""
    name = connection.settings_dict["NAME"]
    url = os.environ["DATABASE_URL"].rpartition("/")[0] + f"/{name}"
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "config.settings.test"}
    running = subprocess.Popen(
        [sys.executable, "-m", "django", "ledger"], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        spend(tenant, 6)
        deadline = time.monotonic() + 20
        while not tenant.log() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [row.credits for row in tenant.log()] == [6 * CREDIT]
        running.send_signal(signal.SIGTERM)
        _, said = running.communicate(timeout=10)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 0, said
    assert "ledger ended" in said
