"""/api/v1/pools and /api/v1/accounts: what is told of a pool and its accounts, what is changed of them, and at what cost."""

from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import organizations
from accounts.models import AuditEvent
from config.clock import utc_now
from routing import pools, withdrawal
from routing.models import PoolAccount
from tests import factories, secrets
from tests.api.calls import Caller, code
from tests.flows.untouched import rows_of
from tests.pages.test_pool import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def lead(world: World) -> Caller:
    return Caller(world.lead)


def queries(caller: Caller, path: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert caller.get(path).status_code == 200
    return len(captured)


def test_a_pool_tells_what_is_left_and_how_it_chooses(world: World, lead: Caller) -> None:
    one, paused = world.sign_in("One"), world.sign_in("Paused", status="paused")
    world.windows(one, short=20, week=40)
    world.windows(paused, short=0, week=0)
    world.sign_in("Gone", status="withdrawn")
    world.runs(one, 2)
    [listed] = lead.get("pools").json()["results"]
    assert listed == {
        "id": str(world.pool.uuid), "name": "Main", "team_ids": [], "accounts": 2, "strategy": "pace", "safety_percent": 400,
        "loyalty_percent": 75, "base_short_credits": 225, "base_weekly_credits": 1500,
    }  # fmt: skip
    found = lead.get(f"pools/{world.pool.uuid}").json()
    assert {name: found[name] for name in listed} == listed
    assert (found["is_live"], found["carrying"], found["running"]) == (True, 1, 2)
    # One Plus is taken to carry 1,500 credits in a week; of the other one nothing counts while it is paused.
    assert (found["week_left"], found["week_size"]) == ("900", "1500")
    assert (found["back_in_day"], found["back_in_week"]) == ("0", "600")
    assert found["outlook"]["verdict"] == "lasts"


def test_developers_glance_where_the_organization_shows_it(world: World, lead: Caller) -> None:
    """J3: windows and states, and nothing that names an account."""
    account = world.sign_in("Ada")
    world.windows(account, short=20, week=40)
    developer = Caller(factories.member(world.organization), scopes=["pool:read"])
    assert code(developer.get("pool-glance")) == (403, "permission_denied")
    shown = lead.get("pool-glance").json()
    organizations.show_pool_to_developers(world.organization, True, by=None)
    answer = developer.get("pool-glance")
    assert answer.json() == shown
    assert (shown["is_live"], shown["carrying"], shown["left_percent"]) == (True, 1, 60)
    [one] = shown["accounts"]
    assert (one["number"], one["state"], one["short_window"]["left_percent"]) == (1, "serving", 80)
    for hidden in ("Ada", account.email, str(account.uuid), account.identity):
        assert hidden not in answer.content.decode()
    for path in ("pools", "accounts", f"pools/{world.pool.uuid}", f"accounts/{account.uuid}"):
        assert code(developer.get(path)) == (403, "permission_denied")


def test_the_strategy_is_set_by_fields_and_the_rest_stays(world: World, lead: Caller) -> None:
    path = f"pools/{world.pool.uuid}"
    answer = lead.patch(path, {"strategy": "round_robin", "safety_percent": 250})
    assert answer.status_code == 200
    assert (answer.json()["strategy"], answer.json()["safety_percent"], answer.json()["loyalty_percent"]) == (
        "round_robin",
        250,
        75,
    )
    world.pool.refresh_from_db()
    assert (world.pool.strategy, world.pool.safety_percent) == ("round_robin", 250)
    before = rows_of(world.organization)
    for body in ({"strategy": "best"}, {"safety_percent": 99}, {"safety_percent": "250"}, {"base_weekly_credits": 0}):
        assert lead.patch(path, body).status_code == 400, body
    assert rows_of(world.organization) == before


def test_a_route_is_asked_for_and_takes_nothing(world: World, lead: Caller) -> None:
    account = world.sign_in("Ada")
    paused = world.sign_in("Paused", status="paused")
    world.windows(account, short=10.5, week=40)
    found = lead.get(f"pools/{world.pool.uuid}/route", model="gpt-5.5", dialect="chat").json()
    assert (found["account"], found["refusal"]) == ("Ada", None)
    told = {row["label"]: row for row in found["accounts"]}
    assert (told["Ada"]["order"], told["Ada"]["used_5h_percent"], told["Ada"]["used_week_percent"]) == (1, 11, 40)
    assert (told["Paused"]["order"], told["Paused"]["why"], told["Paused"]["id"]) == (None, "paused", str(paused.uuid))
    assert lead.get(f"pools/{world.pool.uuid}/route", model="gpt-5.5", dialect="messages").json()["account"] is None
    assert code(lead.get(f"pools/{world.pool.uuid}/route")) == (400, "invalid")


def test_an_account_is_told_without_anything_secret(world: World, lead: Caller) -> None:
    ada = world.sign_in("Ada", floor_percent=10, models_served=["a"], weight_thousandths=2000)
    world.windows(ada, short=25, week=50, week_in=timedelta(days=1))
    key = world.key("Key", base_url="https://models.example/v1")
    first, second = lead.get("accounts").json()["results"]
    assert first["id"] == str(ada.uuid)
    assert first == lead.get(f"accounts/{ada.uuid}").json()
    assert (first["state"], first["email"], first["plan"]) == ("serving", ada.email, "plus")
    assert (first["short_window"]["left_percent"], first["week_window"]["left_percent"]) == (75, 50)
    assert (first["week_left"], first["week_size"]) == ("1500", "3000")
    assert (first["weight_thousandths"], first["has_own_weight"], first["floor_percent"]) == (2000, True, 10)
    assert (second["id"], second["kind"], second["week_window"]) == (str(key.uuid), "openai", None)
    assert (second["base_url"], second["models"], second["state"]) == ("https://models.example/v1", None, "standby")
    text = lead.get("accounts").content.decode()
    for hidden in ("sealed-access", ada.identity, "token", "digest", "refresh"):
        assert hidden not in text, hidden


def test_accounts_come_in_pieces_by_pool_and_status(world: World, lead: Caller) -> None:
    rows = [world.sign_in(f"Account {number}") for number in range(5)]
    other = pools.set_pool(world.organization, "Other", by=None).pool
    PoolAccount.objects.filter(pk=rows[4].pk).update(pool=other, status="paused")
    seen: list[str] = []
    page = lead.get("accounts", limit="2").json()
    while True:
        seen += [row["id"] for row in page["results"]]
        if page["next"] is None:
            break
        query = dict(pair.split("=") for pair in page["next"].split("?")[1].split("&"))
        page = lead.get("accounts", **query).json()
    assert seen == [str(row.uuid) for row in rows]
    assert [row["id"] for row in lead.get("accounts", pool_id=str(other.uuid)).json()["results"]] == [seen[4]]
    assert [row["id"] for row in lead.get("accounts", status="paused").json()["results"]] == [seen[4]]
    assert code(lead.get("accounts", pool_id=str(World().pool.uuid))) == (404, "not_found")


def test_the_queries_do_not_grow_with_the_accounts(world: World, lead: Caller) -> None:
    """H6."""
    world.sign_in("One")
    lead.get("me")  # The first call in a minute says on the token that it was used.
    before = [queries(lead, path) for path in ("pools", f"pools/{world.pool.uuid}", "accounts")]
    for number in range(49):
        world.sign_in(f"More {number}", accepted_by=world.owner.user)
    assert [queries(lead, path) for path in ("pools", f"pools/{world.pool.uuid}", "accounts")] == before


def test_an_account_is_changed_paused_moved_and_taken_out(world: World, lead: Caller) -> None:
    account = world.sign_in("Ada", concurrency_cap=3)
    path = f"accounts/{account.uuid}"
    changed = lead.patch(path, {"label": "Ada 2", "concurrency_cap": None, "models": ["b", "a"], "priority": -1}).json()
    assert (changed["label"], changed["concurrency_cap"], changed["models"], changed["priority"]) == ("Ada 2", None, ["a", "b"], -1)
    assert (changed["efforts"], changed["tiers"]) == (None, None)
    changed = lead.patch(path, {"efforts": ["medium", "low"], "tiers": ["flex"]}).json()
    assert (changed["efforts"], changed["tiers"], changed["models"]) == (["low", "medium"], ["flex"], ["a", "b"])
    changed = lead.patch(path, {"efforts": None}).json()
    assert (changed["efforts"], changed["tiers"]) == (None, ["flex"])
    assert lead.post(f"{path}/pause").json()["state"] == "paused"
    assert lead.post(f"{path}/pause").json()["state"] == "paused"
    assert lead.post(f"{path}/resume").json()["state"] == "serving"
    other = pools.set_pool(world.organization, "Other", by=None).pool
    assert lead.post(f"{path}/move", {"pool_id": str(other.uuid)}).json()["pool_id"] == str(other.uuid)
    assert code(lead.post(f"{path}/move", {"pool_id": str(World().pool.uuid)})) == (404, "not_found")
    assert lead.delete(path).status_code == 204
    assert lead.get(path).json()["state"] == "withdrawn"
    account.refresh_from_db()
    assert (account.access_token, account.refresh_token) == ("", "")
    actions = AuditEvent.objects.filter(organization=world.organization, object_id=str(account.uuid)).order_by("pk")
    assert list(actions.values_list("action", flat=True)) == [
        "account.changed", "account.changed", "account.changed", "account.paused", "account.resumed", "account.withdrawn",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [({"label": ""}, "label"), ({"floor_percent": 101}, "floor_percent"), ({"concurrency_cap": 0}, "concurrency_cap"),
     ({"models": []}, "models"), ({"efforts": ["x" * 21]}, "efforts.0"), ({"tiers": []}, "tiers"),
     ({"weight_thousandths": 1.5}, "weight_thousandths"), ({"priority": True}, "priority")],
)  # fmt: skip
def test_what_an_account_cannot_be_is_refused_by_its_field(world: World, lead: Caller, body: dict[str, Any], param: str) -> None:
    account = world.sign_in("Ada")
    before = rows_of(world.organization)
    answer = lead.patch(f"accounts/{account.uuid}", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert rows_of(world.organization) == before


def test_a_shared_account_is_not_the_organizations(world: World, lead: Caller) -> None:
    shared = pools.set_pool(None, factories.unique("shared"), plans=["plus"], by=None).pool
    account = world.sign_in("Shared", pool=shared)
    assert code(lead.get(f"accounts/{account.uuid}")) == (404, "not_found")
    assert code(lead.get(f"pools/{shared.uuid}")) == (404, "not_found")
    assert str(shared.uuid) not in lead.get("pools").content.decode()


def test_another_withdrawal_link_is_told_once_and_mailed(
    world: World, lead: Caller, django_capture_on_commit_callbacks: Any
) -> None:
    account = world.sign_in("Ada")
    with django_capture_on_commit_callbacks(execute=True):
        answer = lead.post(f"accounts/{account.uuid}/withdrawal-link")
    link = answer.json()["link"]
    secrets.register(link.rsplit("/", 1)[1], "withdrawal link")
    assert withdrawal.look_up(link.rsplit("/", 1)[1]).label == "Ada"
    assert [message.to for message in mail.outbox] == [[account.email]]
    key = world.key("Key")
    assert code(lead.post(f"accounts/{key.uuid}/withdrawal-link")) == (400, "account_invalid")


def test_a_poll_by_wish_asks_no_key_and_nobody_twice(world: World, lead: Caller) -> None:
    key, ada = world.key("Key"), world.sign_in("Ada", polled_at=utc_now())
    assert lead.post(f"accounts/{key.uuid}/poll").json()["outcome"] == "windowless"
    assert lead.post(f"accounts/{ada.uuid}/poll").json()["outcome"] == "recent"
