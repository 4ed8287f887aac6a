"""explain_route, set_strategy, set_pool, move_account: as an operator types them."""

import io
import json
import time
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from accounts.models import Organization
from config.redis import sync_client
from routing import live, pools, sticky
from routing.models import Pool, PoolAccount
from tests import factories
from tests.routing import made

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    found = json.loads(out.getvalue())
    assert isinstance(found, dict)
    return found


def shown(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def sign_in(pool: Pool, label: str, **fields: Any) -> PoolAccount:
    """A row alone: nothing is sent with it here."""
    return PoolAccount.objects.create(
        pool=pool, kind="chatgpt", label=label, identity=f"id-{made.number()}", plan_type="plus", **fields
    )


def report(account: PoolAccount, **fields: str) -> None:
    """Fields of the account's live state."""
    key = f"routing:{live.pool_tag(account.pool_id, account.pool.organization_id)}:p{account.pool_id}:live"
    sync_client().hset(key, mapping={f"{account.pk}:{name}": value for name, value in fields.items()})  # type: ignore[arg-type]


def windows(short: float, week: float, *, days: float) -> str:
    now = time.time()
    return ";".join(
        f"{minutes}={used}:{int(now + seconds)}:{int(now * 1000)}:0:0:0"
        for minutes, used, seconds in ((300, short, 9_000), (10_080, week, days * 86_400))
    )


@pytest.fixture
def organization() -> Organization:
    return factories.organization(plan="pro")


@pytest.fixture
def e1(organization: Organization) -> Pool:
    """The pool of the worked example E1, with a paused account beside it."""
    pool = pools.default(organization)
    for label, weight, short, week, days in (("a", 1, 20, 40, 1.5), ("b", 1, 50, 10, 6), ("c", 5, 10, 70, 2), ("d", 20, 60, 50, 5)):
        report(sign_in(pool, label, weight_thousandths=weight * 1000), w=windows(short, week, days=days))
    sign_in(pool, "paused", status="paused")
    return pool


def test_the_choice_is_explained_with_every_account_its_score_and_why(organization: Organization, e1: Pool) -> None:
    """E1 with a turn of 12: need 48; a, c, d and b fit."""
    told = run("explain_route", organization.slug)
    assert (told["pool"], told["strategy"], told["turn"], told["account"], told["reason"]) == ("Main", "pace", 12.0, "a", "pace")
    rows = {row["account"]: row for row in told["accounts"]}
    assert [row["account"] for row in told["accounts"]] == ["a", "c", "d", "b", "paused"]
    # b has 112.5 credits of room, and full marks need 3 x 48; the seconds since the fixture are in the third digit.
    assert [round(rows[name]["score"]) for name in "acdb"] == [87, 82, 48, round(20.333 * 112.5 / 144)]
    assert (rows["a"]["used_5h"], rows["a"]["used_week"], rows["a"]["room"], rows["a"]["why"]) == (
        0.2,
        0.4,
        180.0,
        "fits: room for the whole turn",
    )
    assert (rows["paused"]["order"], rows["paused"]["why"]) == (None, "paused")


def test_explaining_takes_no_slot_and_changes_nothing(organization: Organization, e1: Pool) -> None:
    tag = live.pool_tag(e1.pk, organization.pk)
    before = sync_client().hgetall(f"routing:{tag}:p{e1.pk}:live")
    run("explain_route", organization.slug, "--session", "thread-1")
    assert sync_client().hgetall(f"routing:{tag}:p{e1.pk}:live") == before
    assert list(sync_client().scan_iter(f"routing:{tag}:p{e1.pk}:s*")) == []


def test_a_session_is_explained_by_where_it_is(organization: Organization, e1: Pool) -> None:
    b = PoolAccount.objects.get(pool=e1, label="b")
    key = sticky.session_key(organization.pk, {"session-id": "thread-1"}, None, b"")
    entry = f"{b.pk}:0:0:{int(time.time() * 1000)}:0:0:0:0:0:0"
    sync_client().set(f"routing:{live.pool_tag(e1.pk, organization.pk)}:p{e1.pk}:s:{key}", entry)
    told = run("explain_route", organization.slug, "--session", "thread-1")
    assert (told["account"], told["reason"]) == ("b", "sticky")
    assert {row["why"] for row in told["accounts"] if row["account"] in "acd"} == {"not looked at: the session stays where it is"}


def test_a_key_is_explained_by_its_team_its_member_and_its_plan(organization: Organization, e1: Pool) -> None:
    team = factories.team(organization)
    member = factories.member(organization, team=team)
    key = factories.api_key(member)
    own = pools.set_pool(organization, "Research", teams=[team], by=None).pool
    sign_in(own, "research")
    sync_client().hset(f"routing:{live.pool_tag(own.pk, organization.pk)}:p{own.pk}:turns", str(member.pk), "30000000")
    told = run("explain_route", organization.slug, "--key", key.row.public_id)
    assert (told["pool"], told["turn"], told["account"]) == ("Research", 30.0, "research")
    shared = pools.set_pool(None, factories.unique("shared"), plans=["pro"], by=None).pool
    account = sign_in(shared, "shared account")
    PoolAccount.objects.filter(pool__in=[e1, own]).update(pool=shared)
    told = run("explain_route", organization.slug, "--key", key.row.public_id)
    assert told["pool"] == shared.name
    assert account.label in [row["account"] for row in told["accounts"]]


def test_who_is_out_is_explained(organization: Organization) -> None:
    pool = pools.default(organization)
    later = int(time.time() + 600)
    report(sign_in(pool, "cooling"), c=str(later * 1000))
    report(sign_in(pool, "exhausted"), x=f"{later}:5:0")
    report(sign_in(pool, "full"), w=windows(99.9, 10, days=2), m="9000000")
    report(sign_in(pool, "kept", floor_percent=50), w=windows(60, 10, days=2))
    report(sign_in(pool, "short"), w=windows(97, 10, days=2))
    sign_in(pool, "old", models_served=["gpt-5.4"])
    sign_in(pool, "slow", efforts_served=["low"])
    sign_in(pool, "plain", tiers_served=[])
    told = run("explain_route", organization.slug, "--model", "gpt-5.5", "--effort", "high", "--tier", "priority")
    why = {row["account"]: row["why"] for row in told["accounts"]}
    assert (told["account"], told["reason"]) == ("", "")
    assert told["refusal"] == "Every account of the pool has used up its limit."
    assert why["cooling"].startswith("cooling until 20")
    assert why["exhausted"].startswith("exhausted until 20")
    assert why["full"].startswith("nothing left until 20")
    assert why["kept"].startswith("below the floor its person keeps until 20")
    assert why["short"] == "room for less than one turn"
    assert (why["old"], why["slow"], why["plain"]) == ("model_not_served", "effort_not_served", "tier_not_served")


def test_people_get_a_table_and_the_sentence(organization: Organization, e1: Pool) -> None:
    text = shown("explain_route", organization.slug)
    assert text.startswith("pool Main, strategy pace, a turn of about 12 credits\norder  account")
    assert text.endswith("-> a (pace)\n")
    PoolAccount.objects.filter(pool=e1).update(status="needs_sign_in")
    assert shown("explain_route", organization.slug).endswith("-> Every account of the pool needs to be signed in again.\n")


def test_wrong_names_are_clear_errors(organization: Organization) -> None:
    with pytest.raises(CommandError, match="no key"):
        run("explain_route", organization.slug, "--key", "nobody")
    with pytest.raises(CommandError, match="no organization"):
        run("explain_route", "nowhere")
    with pytest.raises(CommandError, match="no pool of accounts"):
        run("explain_route", organization.slug)


# -------------------------------------------------------------------------------------------------------- set_strategy


def test_a_strategy_is_set_and_shown(organization: Organization) -> None:
    told = run("set_strategy", organization.slug)
    assert told == {"pool": "Main", "strategy": "pace", "safety": 4.0, "loyalty": 0.75, "base_5h": 225, "base_week": 1500}
    told = run("set_strategy", organization.slug, "reset_drain", "--safety", "3", "--loyalty", "0.5", "--base-week", "1200")
    assert told == {"pool": "Main", "strategy": "reset_drain", "safety": 3.0, "loyalty": 0.5, "base_5h": 225, "base_week": 1200}


def test_a_strategy_of_a_named_and_of_a_shared_pool_is_set(organization: Organization) -> None:
    pools.set_pool(organization, "Second", by=None)
    assert run("set_strategy", organization.slug, "round_robin", "--pool", "second")["pool"] == "Second"
    shared = pools.set_pool(None, factories.unique("shared"), plans=["pro"], by=None).pool
    assert run("set_strategy", "--shared", shared.name, "fill_first")["strategy"] == "fill_first"
    assert Pool.objects.get(pk=shared.pk).strategy == "fill_first"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ORG", "clairvoyant"], "no strategy 'clairvoyant'. Strategies: pace, "),
        (["ORG", "--pool", "nowhere"], "no pool 'nowhere'"),
        (["ORG", "--safety", "0.5"], "room for 1 to 20 turns"),
        (["--shared", "nowhere"], "no pool 'nowhere'"),
        (["ORG", "pace", "--shared", "nowhere"], "--shared names the pool"),
        ([], "slug of an organization"),
    ],
)
def test_a_wrong_strategy_is_a_clear_error(organization: Organization, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("set_strategy", *(organization.slug if one == "ORG" else one for one in arguments))


# ----------------------------------------------------------------------------------------------- set_pool, move_account


def test_a_pool_is_made_for_teams_and_gets_an_account(organization: Organization) -> None:
    team = factories.team(organization)
    told = run("set_pool", organization.slug, "--name", "Research", "--team", team.name)
    assert told == {"pool": "Research", "new": True, "organization": organization.slug, "teams": [team.name], "plans": []}
    account = sign_in(pools.default(organization), "Ada")
    told = run("move_account", str(account.uuid), "--organization", organization.slug, "--pool", "Research")
    assert told == {"id": str(account.uuid), "label": "Ada", "pool": "Research"}
    told = run("set_pool", organization.slug, "--name", "Research", "--everybody")
    assert (told["new"], told["teams"]) == (False, ["everybody"])


def test_a_shared_pool_is_offered_by_plans_to_teams_of_any_organization(organization: Organization) -> None:
    team = factories.team(organization)
    name = factories.unique("shared")
    told = run("set_pool", "--name", name, "--plan", "pro", "--plan", "business", "--team", f"{organization.slug}/{team.name}")
    assert told == {"pool": name, "new": True, "organization": None, "teams": [team.name], "plans": ["pro", "business"]}
    account = sign_in(pools.default(organization), "Ada")
    assert run("move_account", str(account.uuid), "--shared", name)["pool"] == name


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["set_pool", "ORG", "--name", "x", "--plan", "pro"], "Plans offer shared pools"),
        (["set_pool", "--name", "x", "--plan", "nothing"], "no plan 'nothing'"),
        (["set_pool", "--name", "x", "--team", "Research"], "ORG/TEAM"),
        (["set_pool", "ORG", "--name", "x", "--team", "nobody"], "no team 'nobody'"),
        (["set_pool", "ORG", "--name", "x", "--team", "y", "--everybody"], "does not go with"),
        (["move_account", "ada", "--organization", "ORG"], "no account 'ada'"),
        (["move_account", "ada"], "Give --organization"),
    ],
)
def test_a_wrong_pool_is_a_clear_error(organization: Organization, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run(*(organization.slug if one == "ORG" else one for one in arguments))
    assert not Pool.objects.filter(organization=organization, name="x").exists()


def test_a_route_is_explained_for_the_dialect_that_the_client_speaks(organization: Organization) -> None:
    pool = pools.default(organization)
    sign_in(pool, "Plus")
    theirs = PoolAccount.objects.create(pool=pool, kind="anthropic", label="Claude", identity=f"id-{made.number()}")
    responses = run("explain_route", organization.slug)
    messages = run("explain_route", organization.slug, "--dialect", "messages")
    assert (responses["account"], messages["account"]) == ("Plus", "Claude")
    assert [(row["account"], row["why"]) for row in responses["accounts"] if row["order"] is None] == [("Claude", "dialect")]
    assert [(row["account"], row["why"]) for row in messages["accounts"] if row["order"] is None] == [("Plus", "dialect")]
    printed = shown("explain_route", organization.slug, "--dialect", "messages")
    (plus,) = (line for line in printed.splitlines() if " Plus " in line)
    assert plus.endswith("  does not speak this API")
    theirs.delete()
    refused = run("explain_route", organization.slug, "--dialect", "messages")
    assert refused["refusal"] == "No account of the pool speaks this API."
