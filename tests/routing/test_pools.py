"""Pools: who may use which, what changes them, and that the next request knows."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from accounts.models import AuditEvent, Organization
from config import scope
from config import snapshot as config_snapshot
from routing import pools, selection, snapshots
from routing.errors import NoAccountAvailable, PoolRefused, PoolUnknown
from routing.models import Pool, PoolAccount
from routing.snapshots import PoolSnapshot, RoutingSnapshot
from tests import factories
from tests.routing import made

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Key:
    team_id: int | None = None


def chosen(*of: PoolSnapshot, team: int | None = None, plan: str | None = None) -> str:
    config: Any = SimpleNamespace(routing=RoutingSnapshot(pools=of))
    return selection.pool_for(config, Key(team), plan=plan).name


def pool(name: str, *, accounts: int = 1, **fields: Any) -> PoolSnapshot:
    return made.pool(*(made.account() for _ in range(accounts)), **{"name": name, **fields})


# --------------------------------------------------------------------------------------------------- which one is used


def test_a_teams_own_pool_comes_before_the_open_one() -> None:
    both = (pool("open"), pool("team 5", team_ids=frozenset({5})))
    assert [chosen(*both, team=team) for team in (5, 6, None)] == ["team 5", "open", "open"]


def test_a_pool_of_another_team_is_nobody_elses() -> None:
    for team in (6, None):
        with pytest.raises(NoAccountAvailable) as refused:
            chosen(pool("team 5", team_ids=frozenset({5})), team=team)
        assert refused.value.reason == "no_pool"


def test_a_shared_pool_is_for_those_on_a_plan_that_offers_it() -> None:
    shared = pool("shared", organization_id=None, plans=frozenset({"pro", "business"}))
    assert chosen(shared, plan="pro") == "shared"
    for plan in ("plus", None):
        with pytest.raises(NoAccountAvailable):
            chosen(shared, plan=plan)


def test_the_organizations_pools_come_before_shared_ones_and_those_with_accounts_before_empty_ones() -> None:
    offered = frozenset({"pro"})
    own, empty = pool("own"), pool("empty", accounts=0)
    shared = pool("shared", organization_id=None, plans=offered)
    of_team = pool("shared team", organization_id=None, plans=offered, team_ids=frozenset({5}))
    assert chosen(own, shared, of_team, plan="pro") == "own"
    assert chosen(own, shared, of_team, plan="pro", team=5) == "shared team"
    assert chosen(empty, shared, plan="pro") == "shared"
    assert chosen(empty, plan="pro") == "empty"


# -------------------------------------------------------------------------------------------------------------- shared


def test_a_shared_pool_is_loaded_where_plans_offer_it_and_never_by_another_tenants_teams() -> None:
    """A pool for a team of B must not look open to everybody in A, where B's teams cannot be seen."""
    a, b = factories.organization(), factories.organization()
    team_b = factories.team(b)
    name = factories.unique("shared")
    unoffered = pools.set_pool(None, factories.unique("unoffered"), by=None).pool
    shared = pools.set_pool(None, name, teams=[team_b], plans=["pro"], by=None).pool
    with scope.organization(a.pk):
        loaded = {one.pool_id: one for one in snapshots.load(a.pk).pools}
    assert unoffered.pk not in loaded
    found = loaded[shared.pk]
    assert (found.organization_id, found.tenant_id, found.plans, found.team_ids) == (None, a.pk, {"pro"}, {team_b.pk})


def test_names_of_shared_pools_are_unique_too() -> None:
    name = factories.unique("shared")
    first = pools.set_pool(None, name, plans=["pro"], by=None)
    again = pools.set_pool(None, name.upper(), plans=["pro", "plus"], by=None)
    assert (first.is_new, again.is_new, again.pool.pk, again.pool.plans) == (True, False, first.pool.pk, ["pro", "plus"])


def test_an_account_moves_into_a_shared_pool_and_every_organization_hears_of_it() -> None:
    a, b = factories.organization(), factories.organization()
    account, _ = factories.openai_account(a)
    shared = pools.set_pool(None, factories.unique("shared"), plans=["plus"], by=None).pool
    before = [Organization.objects.get(pk=one.pk).config_version for one in (a, b)]
    pools.move_account(account, shared, by=None)
    assert [Organization.objects.get(pk=one.pk).config_version for one in (a, b)] == [version + 1 for version in before]
    for organization in (a, b):
        pool = next(one for one in snapshots.load(organization.pk).pools if one.pool_id == shared.pk)
        assert [one.account_id for one in pool.accounts] == [account.pk]


# ------------------------------------------------------------------------------------------------------------- changes


def test_a_pool_is_made_for_a_team_and_opened_again() -> None:
    organization = factories.organization()
    team = factories.team(organization)
    made_one = pools.set_pool(organization, "Research", teams=[team], by=None)
    assert (made_one.is_new, list(made_one.pool.teams.all())) == (True, [team])
    assert snapshots.load(organization.pk).pools[0].team_ids == {team.pk}
    opened = pools.set_pool(organization, "research", teams=[], by=None)
    assert (opened.is_new, opened.pool.pk, list(opened.pool.teams.all())) == (False, made_one.pool.pk, [])
    told = [event.action for event in AuditEvent.objects.filter(organization=organization, object_type="pool").order_by("pk")]
    assert told == ["pool.created", "pool.changed"]


def test_what_a_pool_cannot_be_is_refused_and_nothing_is_changed() -> None:
    organization, other = factories.organization(), factories.organization()
    version = Organization.objects.get(pk=organization.pk).config_version
    foreign = factories.team(other)
    for options in ({"plans": ["pro"]}, {"teams": [foreign]}):
        with pytest.raises(PoolRefused):
            pools.set_pool(organization, "Research", by=None, **options)  # type: ignore[arg-type]
    for name in ("", " ", "x" * 81, "a\nb"):
        with pytest.raises(PoolRefused):
            pools.set_pool(organization, name, by=None)
    assert not Pool.objects.filter(organization=organization).exists()
    assert Organization.objects.get(pk=organization.pk).config_version == version


def test_an_unknown_pool_names_those_there_are() -> None:
    organization = factories.organization()
    pools.default(organization)
    with pytest.raises(PoolUnknown, match="Pools: Main"):
        pools.find(organization, "Nowhere")
    with pytest.raises(PoolUnknown):
        pools.find(None)
    assert pools.find(organization) == pools.find(organization, "main")


def test_the_strategy_and_its_terms_reach_the_path() -> None:
    organization = factories.organization()
    pool = pools.default(organization)
    assert pool.strategy == "pace"
    version = Organization.objects.get(pk=organization.pk).config_version
    terms = {
        "strategy": "reset_drain",
        "safety_percent": 300,
        "loyalty_percent": 50,
        "base_short_credits": 200,
        "base_weekly_credits": 900,
    }
    pools.set_strategy(pool, terms, by=None)
    found = config_snapshot.load(organization.pk)
    assert found.version == version + 1
    loaded = found.routing.pools[0]
    assert (loaded.strategy, loaded.safety, loaded.loyalty, loaded.base_short, loaded.base_weekly) == (
        "reset_drain",
        3.0,
        0.5,
        200,
        900,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "clairvoyant"},
        {"safety_percent": 99},
        {"safety_percent": 2001},
        {"loyalty_percent": -1},
        {"loyalty_percent": 1001},
        {"base_short_credits": 0},
        {"base_weekly_credits": 0},
        {"name": "x"},
    ],
)
def test_terms_that_cannot_be_are_refused(fields: dict[str, Any]) -> None:
    organization = factories.organization()
    pool = pools.default(organization)
    version = Organization.objects.get(pk=organization.pk).config_version
    with pytest.raises(PoolRefused):
        pools.set_strategy(pool, fields, by=None)
    assert Organization.objects.get(pk=organization.pk).config_version == version
    assert Pool.objects.get(pk=pool.pk).strategy == "pace"


def test_an_account_moves_within_its_organization_and_to_no_other() -> None:
    organization, other = factories.organization(), factories.organization()
    account, token = factories.openai_account(organization)
    second = pools.set_pool(organization, "Second", by=None).pool
    foreign = pools.default(other)
    with pytest.raises(PoolRefused, match="another organization"):
        pools.move_account(account, foreign, by=None)
    assert PoolAccount.objects.get(pk=account.pk).pool_id == account.pool_id
    assert pools.move_account(account, second, by=None).pool_id == second.pk
    assert token


def test_an_account_that_is_there_already_stays_twice() -> None:
    organization = factories.organization()
    account, _ = factories.openai_account(organization)
    second = pools.set_pool(organization, "Second", by=None).pool
    PoolAccount.objects.create(pool=second, kind=account.kind, identity=account.identity, label="twin")
    with pytest.raises(PoolRefused, match="already"):
        pools.move_account(account, second, by=None)
    assert PoolAccount.objects.get(pk=account.pk).pool_id != second.pk


def test_what_an_account_serves_and_weighs_reaches_the_path() -> None:
    organization = factories.organization()
    account, _ = factories.openai_account(organization)
    PoolAccount.objects.filter(pk=account.pk).update(
        efforts_served=["low"], tiers_served=["flex"], plan_type="pro_500", weight_thousandths=None
    )
    loaded = snapshots.load(organization.pk).pools[0].accounts[0]
    assert (loaded.efforts, loaded.tiers, loaded.weight) == ({"low"}, {"flex"}, 50_000)
    PoolAccount.objects.filter(pk=account.pk).update(weight_thousandths=7_000)
    loaded = snapshots.load(organization.pk).pools[0].accounts[0]
    assert (loaded.weight, loaded.later_weights) == (7_000, ())
