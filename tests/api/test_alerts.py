"""/api/v1/alerts and webhook endpoints: whose alerts, who acknowledges them, rules, deliveries, secrets that are told once."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import api_tokens
from accounts.models import Member
from config.clock import utc_now
from quotas.alerts import endpoints, telling
from quotas.alerts.found import Found
from quotas.alerts.models import AlertRule, WebhookEndpoint
from quotas.alerts.rules import Holding
from tests import factories, secrets
from tests.api.calls import Caller, code
from tests.pages.test_alerts import found
from tests.quotas.alerting import World, receiver
from tests.quotas.tenancy import CREDIT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def loopback_is_allowed(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def world() -> World:
    return World()


def caller(member: Member) -> Caller:
    return Caller(member, scopes=api_tokens.SCOPES)


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def test_each_sees_what_is_about_their_scope_and_no_more(world: World) -> None:
    """J1: of a developer what is about them, whatever is asked for."""
    made = {"whole": found(world), "team": found(world, team_id=world.team.pk), "own": found(world, member_id=world.member.pk)}
    names = {str(alert.uuid): name for name, alert in made.items()}
    seen = {who: [names[one] for one in ids(caller(world[who]).get("alerts"))] for who in world.people}
    assert seen == {
        "developer": ["own"], "colleague": [], "team lead": ["own", "team"], "other lead": [], "lead": ["own", "team", "whole"],
        "finance": [], "owner": ["own", "team", "whole"],
    }  # fmt: skip
    developer = caller(world["developer"])
    assert developer.get(f"alerts/{made['own'].uuid}").json()["member_id"] == str(world.member.uuid)
    assert code(developer.get(f"alerts/{made['team'].uuid}")) == (403, "permission_denied")
    assert ids(developer.get("alert-deliveries")) == []


def test_an_alert_in_words_and_acknowledged_once(world: World) -> None:
    alert = found(world, member_id=world.member.pk)
    owner, lead = caller(world["owner"]), caller(world["team lead"])
    told = owner.get(f"alerts/{alert.uuid}").json()
    assert (told["kind"], told["line"], told["state"], told["may_acknowledge"]) == ("limit", 80, "open", True)
    assert told["title"] == "Tomasz Wrona: at most 20 % of the daily limit left"
    assert code(caller(world["developer"]).post(f"alerts/{alert.uuid}/acknowledge")) == (403, "permission_denied")
    assert code(caller(world["other lead"]).post(f"alerts/{alert.uuid}/acknowledge")) == (403, "permission_denied")
    alert.refresh_from_db()
    assert alert.acknowledged_at is None
    first = lead.post(f"alerts/{alert.uuid}/acknowledge").json()
    assert (first["state"], first["acknowledged_by"]) == ("acknowledged", str(world["team lead"]))
    assert owner.post(f"alerts/{alert.uuid}/acknowledge").json()["acknowledged_by"] == str(world["team lead"])
    assert ids(owner.get("alerts", state="open")) == []
    assert ids(owner.get("alerts", state="acknowledged", kind="limit")) == [str(alert.uuid)]


def test_lists_come_in_pieces_with_a_constant_number_of_queries(world: World) -> None:
    """H6."""
    owner = caller(world["owner"])

    def tell(count: int) -> None:
        facts = {"level": "member", "metric": "credits", "window": "day", "used": 8 * CREDIT, "limit": 9 * CREDIT, "resets_at": 0}
        holds = [
            Found(kind="limit", line=80, scope=factories.unique("limit"), period="p", member_id=world.member.pk, facts=facts)
            for _ in range(count)
        ]
        telling.tell(world.organization, Holding(holds, set()), now=utc_now())

    def queries(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert owner.get(path).status_code == 200
        return len(captured)

    tell(1)
    owner.get("me")  # The first call in a minute says on the token that it was used.
    before = [queries(path) for path in ("alerts", "alert-deliveries")]
    tell(49)
    assert [queries(path) for path in ("alerts", "alert-deliveries")] == before
    page = owner.get("alerts", limit="30").json()
    query = dict(pair.split("=") for pair in page["next"].split("?")[1].split("&"))
    rest = owner.get("alerts", **query).json()
    assert len({row["id"] for row in (*page["results"], *rest["results"])}) == 50
    assert rest["next"] is None
    [delivery] = owner.get("alert-deliveries", limit="1", status="pending").json()["results"]
    assert (delivery["channel"], delivery["attempts"], delivery["endpoint_id"]) == ("email", 0, None)


def test_rules_are_an_owners(world: World) -> None:
    owner = caller(world["owner"])
    rules = {one["kind"]: one["is_on"] for one in owner.get("alert-rules").json()["rules"]}
    assert set(rules.values()) == {True}
    assert owner("PUT", "alert-rules/drift", {"is_on": False}).json()["is_on"] is False
    assert AlertRule.objects.get(organization=world.organization).kind == "drift"
    assert code(owner("PUT", "alert-rules/weather", {"is_on": False})) == (404, "not_found")
    assert code(caller(world["lead"])("PUT", "alert-rules/drift", {"is_on": True})) == (403, "permission_denied")


def test_the_forecast_is_for_who_sees_the_whole(world: World) -> None:
    told = caller(world["lead"]).get("quota-forecast").json()
    assert (told["verdict"], told["percent_left"], told["limit"]) == ("too_early", 100, "1000000")
    assert code(caller(world["team lead"]).get("quota-forecast")) == (403, "permission_denied")


def test_an_endpoints_secret_is_told_once_and_its_url_never(world: World) -> None:
    owner = caller(world["owner"])
    with receiver() as remote:
        made = owner.post("webhook-endpoints", {"name": "Operations", "url": remote.url, "format": "standard"})
        assert made.status_code == 201, made.content
        first = made.json()
        secrets.register(first["secret"], "webhook secret")
        assert first["secret"].startswith("whsec_")
        assert "secret-place" not in made.content.decode()
        path = f"webhook-endpoints/{first['id']}"
        shown = owner.get(path).json()
        assert shown == owner.get("webhook-endpoints").json()["results"][0]
        assert "secret" not in shown
        assert (shown["origin"], shown["disabled_at"], shown["failed"]) == (f"http://127.0.0.1:{remote.port}", None, 0)
        sent = owner.post(f"{path}/test").json()
        assert (sent["status"], sent["response_code"], sent["alert_id"], sent["endpoint_id"]) == ("sent", 204, None, first["id"])
        assert len(remote.received) == 1
    rotated = owner.post(f"{path}/secret", {"seen": first["secret_version"]}).json()
    secrets.register(rotated["secret"], "webhook secret")
    assert rotated["secret"] != first["secret"]
    assert code(owner.post(f"{path}/secret", {"seen": first["secret_version"]})) == (400, "endpoint_refused")
    row = WebhookEndpoint.objects.get(uuid=first["id"])
    endpoints.disable(row, reason="gone", now=utc_now())
    assert owner.get(path).json()["disabled_reason"] == "gone"
    assert owner.post(f"{path}/resume").json()["disabled_at"] is None
    assert owner.delete(path).status_code == 204
    assert code(owner.get(path)) == (404, "not_found")
    row.refresh_from_db()
    assert (row.url, row.secret) == ("", "")


def test_an_endpoint_that_cannot_be_is_refused(world: World) -> None:
    owner = caller(world["owner"])
    for body in (
        {"name": "x", "url": "http://10.0.0.1/", "format": "slack"},
        {"name": "x", "url": "no address", "format": "slack"},
        {"name": " ", "url": "http://127.0.0.1:9/", "format": "slack"},
    ):
        assert code(owner.post("webhook-endpoints", body)) == (400, "endpoint_refused"), body
    assert not WebhookEndpoint.objects.filter(organization=world.organization).exists()
