"""What all tests share: the scripted upstream, and a database whose committed rows are never flushed.

Tests that need rows to be seen by other threads or processes commit them and make tenants of their own, with names of their own, so
nothing has to be cleaned up; the seeded plans and rates stay, and the append-only tables are never truncated.
"""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase
from django.utils import translation

from config import scope
from tests import databases, plugin, spreading
from tests.upstream import ScriptedUpstream

# What tests ask by themselves sees all rows; requests, tasks and the ledger enter their own scope, as ever.
scope.fall_back_to(scope.EVERYTHING)
TransactionTestCase._fixture_teardown = lambda self: None  # type: ignore[method-assign]


LONG = (
    "tests/launch/test_pictures.py",
    "tests/quotas/test_engine_against_log.py",
    "tests/api/test_fuzz.py",
    "tests/config/test_admin_scope.py",
    "tests/proxy/test_matrix.py",
    "tests/launch/test_stack.py",
    "tests/demo/test_seed.py",
    "tests/bench/",
    "tests/flows/test_chaos.py",
    "tests/flows/test_bad_input.py",
)
"""What takes a minute begins early, for the workers to end together."""
HANGS = 400
"""Seconds after which a test that starts whole processes hangs: the longest takes two minutes beside the
other workers' tests."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The flows come last: their ledger process drains every stream, also those that a test of the drain wants for itself.

    What must be alone is first (tests/plugin.py), what takes long is early, and the search for secrets is the last of all.
    """

    def order(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
        is_alone = item.get_closest_marker("alone") is not None
        is_flow = spreading.is_flow(item.nodeid)
        return not is_alone, is_flow, "test_zz_secrets" in item.nodeid, not item.nodeid.startswith(LONG)

    items.sort(key=order)
    for item in items:
        starts_processes = item.get_closest_marker("stack") is not None or spreading.is_flow(item.nodeid)
        if starts_processes and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS))


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """A server of the run's own ends with it; until then the last test searches what each worker has written."""
    return plugin.OWN in os.environ


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    databases.begin()


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """At the end nobody may be connected to the test database: snapshot threads and pools give up theirs here."""
    with django_db_blocker.unblock():
        databases.end()
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


@pytest.fixture(scope="session")
def upstream_process() -> Iterator[ScriptedUpstream]:
    running = ScriptedUpstream()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def upstream(upstream_process: ScriptedUpstream) -> ScriptedUpstream:
    """The scripted upstream with nothing scripted and nothing received."""
    upstream_process.reset()
    return upstream_process


@pytest.fixture(autouse=True)
def english() -> Iterator[None]:
    """A page that a test asked for in another language leaves it active in the test's thread."""
    yield
    translation.deactivate()
