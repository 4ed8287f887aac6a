"""Snapshots: one transaction, single flight, a number that grows with every change."""

import asyncio
import threading
import time

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from config import snapshot
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_bump_adds_one_and_is_undone_with_its_transaction() -> None:
    organization = factories.organization()
    before = organization.config_version
    with transaction.atomic():
        assert snapshot.bump(organization.pk) == before + 1
        transaction.set_rollback(True)
    organization.refresh_from_db()
    assert organization.config_version == before
    assert snapshot.bump(organization.pk) == before + 1


def test_a_bump_of_an_unknown_organization_is_an_error() -> None:
    with pytest.raises(LookupError, match="does not exist"):
        snapshot.bump(2**40)


def test_racing_bumps_give_distinct_consecutive_numbers() -> None:
    organization = factories.organization()
    numbers: list[int] = []

    def change() -> None:
        from django.db import connection

        try:
            with transaction.atomic():
                numbers.append(snapshot.bump(organization.pk))
        finally:
            connection.close()

    threads = [threading.Thread(target=change) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = organization.config_version + 1
    assert sorted(numbers) == list(range(first, first + 8))


def test_a_page_loads_a_snapshot_once_for_each_version() -> None:
    organization = factories.organization()
    first = snapshot.current(organization.pk)
    with CaptureQueriesContext(connection) as queries:
        assert snapshot.current(organization.pk) is first
    assert len(queries) == 1
    snapshot.bump(organization.pk)
    second = snapshot.current(organization.pk)
    assert (second is first, second.version) == (False, first.version + 1)
    with transaction.atomic():
        # What is read here may be taken back.
        snapshot.bump(organization.pk)
        assert snapshot.current(organization.pk).version == second.version + 1
        transaction.set_rollback(True)
    assert snapshot.current(organization.pk) is second
    with pytest.raises(LookupError, match="does not exist"):
        snapshot.current(2**40)


async def test_twenty_who_ask_together_cause_one_load(monkeypatch: pytest.MonkeyPatch) -> None:
    organization = await asyncio.to_thread(factories.organization)
    loads: list[int] = []
    real = snapshot.load

    def counted(organization_id: int) -> snapshot.Snapshot:
        loads.append(organization_id)
        time.sleep(0.05)
        return real(organization_id)

    monkeypatch.setattr(snapshot, "load", counted)
    cache = snapshot.SnapshotCache()
    got = await asyncio.gather(*(cache.get(organization.pk) for _ in range(20)))
    assert loads == [organization.pk]
    assert {one.version for one in got} == {got[0].version}
    assert await cache.get(organization.pk) is got[0]


async def test_who_needs_a_newer_version_than_a_running_load_brings_gets_it() -> None:
    organization = await asyncio.to_thread(factories.organization)
    cache = snapshot.SnapshotCache()
    old = await cache.get(organization.pk)
    version = await snapshot.in_thread(snapshot.bump, organization.pk)
    assert (await cache.get(organization.pk)).version == old.version
    assert (await cache.get(organization.pk, at_least=version)).version == version


async def test_an_unknown_key_is_looked_up_once_until_a_key_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(public_id: str) -> None:
        asked.append(public_id)

    monkeypatch.setattr(snapshot, "_key_lookups", [find])
    cache = snapshot.SnapshotCache()
    assert await cache.organization_of("0123456789") is None
    assert await cache.organization_of("0123456789") is None
    assert asked == ["0123456789"]
    cache.forget_unknown_keys()
    assert await cache.organization_of("0123456789") is None
    assert asked == ["0123456789"] * 2


async def test_the_negative_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_key_lookups", [lambda public_id: None])
    monkeypatch.setattr(snapshot, "NEGATIVE_SIZE", 3)
    cache = snapshot.SnapshotCache()
    for number in range(10):
        await cache.organization_of(f"{number:010d}")
    assert len(cache._unknown) == 3
