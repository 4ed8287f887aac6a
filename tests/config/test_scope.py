"""Row level security: what the database shows in a scope, asked as the role that the product runs as."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.apps import apps
from django.db import IntegrityError, ProgrammingError, connection, transaction
from django.db.models import Model

from accounts.models import ApiKey, AuditEvent, Member, Organization, Team
from billing.models import Subscription, SubscriptionPeriod
from config import celery, scope
from quotas import limits
from quotas.models import Limit
from routing.models import Pool, PoolAccount
from tests import factories

ROOT = Path(__file__).parent.parent.parent
INSTALL_WIDE = {
    "accounts_user",
    "billing_plan",
    "billing_ratecard",
    "billing_rate",
    "billing_ratealias",
    "billing_rateimport",
    "billing_invoiceseries",
}
"""Tables of ours that hold nothing of one tenant."""


def tenant_tables() -> set[str]:
    ours = [model for name in ("accounts", "billing", "quotas", "routing") for model in apps.get_app_config(name).get_models()]
    tables = {model._meta.db_table for model in ours} | {
        field.remote_field.through._meta.db_table
        for model in ours
        for field in model._meta.many_to_many
        if field.remote_field.through._meta.auto_created and model._meta.label != "accounts.User"
    }
    return tables - INSTALL_WIDE


def rows(query: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found


@pytest.fixture
def two(db: None) -> tuple[Organization, Organization]:
    """Two organizations with a row of each common kind."""
    both = []
    for _ in range(2):
        made = factories.organization()
        member = factories.member(made, team=factories.team(made))
        factories.api_key(member)
        factories.openai_account(made)
        limits.set_limit(made, scope="organization", of="", metric="credits", window="day", amount="5")
        both.append(made)
    return both[0], both[1]


def test_the_role_cannot_bypass_row_level_security(db: None) -> None:
    assert rows("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user") == [(False, False)]


def test_every_tenant_table_has_a_policy_that_binds_its_owner_too(db: None) -> None:
    """A new table without one fails here."""
    protected = rows(
        "SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid "
        "WHERE relrowsecurity AND relforcerowsecurity AND polcmd = '*' AND polname = 'tenant'"
    )
    assert tenant_tables() - {name for (name,) in protected} == set()


def test_every_partition_of_the_usage_log_has_the_policy(db: None) -> None:
    partitions = rows(
        "SELECT relname, relrowsecurity AND relforcerowsecurity FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid "
        "WHERE inhparent = 'billing_usagerecord'::regclass"
    )
    assert len(partitions) >= 4
    assert [name for name, is_protected in partitions if not is_protected] == []


MODELS: list[tuple[type[Model], str]] = [
    (Organization, "id"),
    (Member, "organization_id"),
    (Team, "organization_id"),
    (ApiKey, "organization_id"),
    (AuditEvent, "organization_id"),
    (Subscription, "organization_id"),
    (SubscriptionPeriod, "organization_id"),
    (Limit, "organization_id"),
    (Pool, "organization_id"),
    (PoolAccount, "pool__organization_id"),
]


@pytest.mark.parametrize(("model", "column"), MODELS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_scope_shows_its_own_rows_only(two: tuple[Organization, Organization], model: type[Model], column: str) -> None:
    own, foreign = two
    manager: Any = model._default_manager
    with scope.organization(own.pk):
        assert set(manager.values_list(column, flat=True)) == {own.pk}
        assert not manager.filter(**{column: foreign.pk}).exists()
    with scope.nothing():
        assert manager.count() == 0
    with scope.everything():
        assert set(manager.values_list(column, flat=True)) >= {own.pk, foreign.pk}


def test_foreign_rows_are_neither_changed_nor_removed(two: tuple[Organization, Organization]) -> None:
    own, foreign = two
    with scope.organization(own.pk):
        assert Limit.objects.filter(organization_id=foreign.pk).update(amount=0) == 0
        assert Limit.objects.filter(organization_id=foreign.pk).delete()[0] == 0
        assert Organization.objects.filter(pk=foreign.pk).update(name="ours") == 0
        assert PoolAccount.objects.filter(pool__organization_id=foreign.pk).update(status="paused") == 0
    with scope.everything():
        assert Limit.objects.get(organization_id=foreign.pk).amount == 5_000_000
        assert Organization.objects.get(pk=foreign.pk).name != "ours"
        assert PoolAccount.objects.get(pool__organization_id=foreign.pk).status == "active"


def test_a_row_cannot_be_written_for_another_organization(two: tuple[Organization, Organization]) -> None:
    own, foreign = two
    with scope.organization(own.pk):
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Team.objects.create(organization_id=foreign.pk, name="ours")
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Team.objects.filter(organization_id=own.pk).update(organization_id=foreign.pk)
        # The transaction goes on in the same scope after both.
        assert Team.objects.count() == 1
    with scope.everything():
        assert not Team.objects.filter(organization_id=foreign.pk, name="ours").exists()


def test_a_key_that_is_taken_elsewhere_says_so_without_showing_the_row(two: tuple[Organization, Organization]) -> None:
    """Unique constraints look at all rows; what they tell is only that a value is taken."""
    own, foreign = two
    with scope.everything():
        taken = ApiKey.objects.get(organization_id=foreign.pk)
    with scope.organization(own.pk), pytest.raises(IntegrityError), transaction.atomic():
        ApiKey.objects.update(public_id=taken.public_id)


def test_shared_pools_are_seen_by_all_and_changed_by_none(two: tuple[Organization, Organization]) -> None:
    own, _ = two
    shared = Pool.objects.create(organization=None, name=factories.unique("shared"))
    with scope.organization(own.pk):
        assert Pool.objects.filter(pk=shared.pk).exists()
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            Pool.objects.filter(pk=shared.pk).update(name="ours")
        with pytest.raises(ProgrammingError, match="row-level security"), transaction.atomic():
            PoolAccount.objects.create(pool=shared, kind="openai", label="ours", identity="ours")
    with scope.nothing():
        assert list(Pool.objects.values_list("pk", flat=True)) == [shared.pk]


def test_a_rollback_does_not_leave_the_wrong_scope_behind(two: tuple[Organization, Organization]) -> None:
    own, foreign = two
    with transaction.atomic(), scope.organization(foreign.pk):
        assert Team.objects.count() == 1
        transaction.set_rollback(True)
    with scope.organization(own.pk):
        assert set(Team.objects.values_list("organization_id", flat=True)) == {own.pk}
        with pytest.raises(ProgrammingError), transaction.atomic():
            rows("SELECT nonsense")
        assert set(Team.objects.values_list("organization_id", flat=True)) == {own.pk}


def test_a_commit_that_the_server_answers_by_a_rollback_does_not_either(two: tuple[Organization, Organization]) -> None:
    """The server ends a failed transaction by a rollback, whatever the client asks for, and takes the setting back in silence."""
    own, foreign = two

    def told() -> str:
        with scope.organization(foreign.pk):
            Team.objects.count()
        connection.set_autocommit(False)
        try:
            with scope.organization(own.pk):
                Team.objects.count()
                with pytest.raises(ProgrammingError):
                    rows("SELECT nonsense")
                connection.commit()
                setting: str = rows("SELECT current_setting('weir.organization')")[0][0]
                return setting
        finally:
            connection.rollback()
            connection.set_autocommit(True)

    assert in_a_thread(told) == str(own.pk)


def test_scopes_nest_and_come_back_in_one_transaction(two: tuple[Organization, Organization]) -> None:
    own, foreign = two
    with scope.organization(own.pk), transaction.atomic():
        with scope.organization(foreign.pk):
            assert set(Team.objects.values_list("organization_id", flat=True)) == {foreign.pk}
        assert set(Team.objects.values_list("organization_id", flat=True)) == {own.pk}


def test_a_transaction_may_still_choose_its_isolation(two: tuple[Organization, Organization]) -> None:
    def choose() -> list[tuple[Any, ...]]:
        with scope.organization(two[0].pk), transaction.atomic():
            rows("SELECT 1 WHERE false")
            return rows("SHOW transaction_isolation")

    def choose_first() -> list[tuple[Any, ...]]:
        with scope.organization(two[0].pk), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            return rows("SHOW transaction_isolation")

    assert in_a_thread(choose) == [("read committed",)]
    assert in_a_thread(choose_first) == [("repeatable read",)]


def in_a_thread(call: Callable[[], Any]) -> Any:
    """In a thread of its own, with a connection from the pool that is given back."""
    result: list[Any] = []

    def run() -> None:
        try:
            result.append(call())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


@pytest.mark.django_db(transaction=True)
def test_a_connection_from_the_pool_brings_nobody_elses_scope() -> None:
    own, foreign = factories.organization(), factories.organization()

    def seen(organization: Organization) -> set[int]:
        with scope.organization(organization.pk):
            return set(Organization.objects.values_list("pk", flat=True))

    def nothing() -> int:
        with scope.nothing():
            return Organization.objects.count()

    for _ in range(5):
        assert in_a_thread(lambda: seen(own)) == {own.pk}
        assert in_a_thread(nothing) == 0
        assert in_a_thread(lambda: seen(foreign)) == {foreign.pk}


def test_a_task_begins_with_nothing_in_sight(two: tuple[Organization, Organization]) -> None:
    @celery.app.task
    def count() -> int:
        return Organization.objects.count()

    assert count() == 0


def test_the_setting_of_the_server_alone_shows_nothing(two: tuple[Organization, Organization]) -> None:
    """A connection that the backend has not told anything sees no tenant."""
    parameters = connection.get_connection_params()
    parameters.pop("cursor_factory", None)
    keep = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if name in parameters}
    with psycopg.connect(**keep) as bare:
        for table in sorted(tenant_tables() - {"routing_pool"}):
            assert bare.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,), table


ALLOWED = {
    "accounts/api.py": "which organization a key is of",
    "accounts/api_tokens.py": "which organization a token is of",
    "accounts/identity.py": "which organization's provider speaks for an address, and which of a person's ask for one",
    "accounts/factors.py": "each organization of a person is told of a changed factor",
    "accounts/invitations.py": "which organization a link is of",
    "accounts/keys.py": "whether a public id is taken",
    "accounts/policies.py": "which organizations require a factor of a person",
    "accounts/snapshots.py": "which organization a key is of",
    "accounts/tenancy.py": "which organizations a person belongs to; who asked for one that is not theirs",
    "accounts/vouching.py": "whether the organization that vouches for a session still does",
    "billing/aliases.py": "whose requests an alias prices",
    "accounts/job_running.py": "which organization a job is of, and walks over all",
    "accounts/jobs.py": "which organization a signed link is of",
    "billing/joining.py": "a link makes the first organization",
    "billing/partitions.py": "moves rows of all",
    "billing/purchases.py": "which organization a payment is of",
    "billing/ratecard_pages.py": "operators",
    "billing/rates_import.py": "whose requests a card prices",
    "billing/retention.py": "what any organization still needs",
    "billing/tasks.py": "walks over organizations",
    "billing/webhooks.py": "which organization a payment is of",
    "config/launch/stack.py": "who starts a stack is its operator",
    "config/management/commands/migrate.py": "migrations walk over all",
    "config/management/operator.py": "operators",
    "config/middleware.py": "operators, in the admin",
    "demo/seed.py": "makes the demo's organizations",
    "quotas/alerts/tasks.py": "walks over organizations",
    "quotas/consumers.py": "who asked for an organization that is not theirs",
    "quotas/reconcile.py": "how much differs in all, for the health page",
    "quotas/refusal_log.py": "forgets what is old, of all",
    "quotas/sweep.py": "walks over organizations",
    "quotas/tasks.py": "walks over organizations",
    "routing/accounts.py": "an account by its id, of a shared pool too",
    "routing/credentials.py": "an account by its id, of a shared pool too",
    "routing/polls.py": "walks over organizations",
    "routing/withdrawal.py": "which account a link is of",
    "routing/tasks.py": "walks over organizations",
}


def test_all_tenants_are_seen_only_where_it_is_known_why() -> None:
    """Each place that enters `scope.everything()` is written down here with its reason."""
    folders = ("accounts", "billing", "config", "demo", "proxy", "quotas", "routing")
    found = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if "migrations" not in path.parts and re.search(r"\bscope\.everything\(\)", path.read_text()) and path.name != "scope.py"
    }
    assert found == set(ALLOWED)
