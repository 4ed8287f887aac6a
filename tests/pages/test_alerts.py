"""The alerts page: who sees what, what is open and who was told, deliveries, rules, endpoints and their secrets."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from standardwebhooks import Webhook

from accounts.models import AuditEvent, Member
from config.clock import utc_now
from quotas.alerts import delivery, endpoints, telling
from quotas.alerts.found import Found
from quotas.alerts.models import Alert, AlertDelivery, AlertRule, WebhookEndpoint
from quotas.alerts.rules import Holding
from tests import factories, secrets
from tests.pages import made
from tests.quotas.alerting import Receiver, World, receiver
from tests.quotas.tenancy import CREDIT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def loopback_is_allowed(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def remote() -> Any:
    with receiver() as running:
        yield running


def get(member: Member, query: str = "") -> str:
    answered = made.signed_in(member).get(made.path(member, f"alerts{query}"))
    assert answered.status_code == 200
    return answered.content.decode()


def post(member: Member, path: str, **data: str) -> Any:
    return made.signed_in(member).post(made.path(member, f"alerts/{path}"), data, follow=True)


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def answer(page: str) -> str:
    [found] = re.findall(r'<p class="answer" id="answer"[^>]*>(.*?)</p>', page, re.S)
    return text(found)


def ids(page: str) -> set[str]:
    return set(re.findall(r'data-alert="([^"]+)"', page))


def found(world: World, **fields: Any) -> Alert:
    """An alert as a look makes it, with its deliveries."""
    facts = {"level": "member", "metric": "credits", "window": "day", "models": "", "used": 800 * CREDIT, "limit": 1000 * CREDIT}
    about: dict[str, Any] = {
        "kind": "limit",
        "line": 80,
        "scope": factories.unique("limit:"),
        "period": "day:1",
        "facts": {**facts, "resets_at": int(utc_now().timestamp()) + 7200},
        **fields,
    }
    (alert,) = telling.tell(world.organization, Holding([Found(**about)], set()), now=utc_now())
    return alert


class TestWho:
    def test_each_sees_what_is_about_their_scope_and_no_more(self, world: World) -> None:
        whole = found(world)
        team = found(world, team_id=world.team.pk)
        own = found(world, member_id=world.member.pk)
        by_key = found(world, key_id=world.key.row.pk)
        pool = found(world, kind="account", line=0, facts={"label": "A", "reason": "", "is_sign_in": True, "account": "x"})
        quota = found(world, kind="overage", line=0, facts={
            "low": 1, "expected": 2, "high": 3, "days": 5, "resets_at": 1_800_000_000, "runs_out_at": None, "limit": 9, "used": 1
        })  # fmt: skip
        seen = {name: ids(get(world[name])) for name in world.people}
        names = {"whole": whole, "team": team, "own": own, "by key": by_key, "pool": pool, "quota": quota}
        by_name = {who: {name for name, alert in names.items() if str(alert.uuid) in page} for who, page in seen.items()}
        everything = set(names)
        assert by_name == {
            "developer": {"own", "by key"},
            "colleague": set(),
            "team lead": {"team", "own", "by key"},
            "other lead": set(),
            "lead": everything,
            "finance": {"quota"},
            "owner": everything,
        }

    def test_a_foreign_alert_and_endpoint_are_as_missing_ones(self, world: World) -> None:
        other = World()
        alert = found(other)
        endpoint = WebhookEndpoint.objects.create(organization=other.organization, name="x", format="slack", origin="https://x")
        paths = [
            f"{alert.uuid}/acknowledge",
            *(f"endpoints/{endpoint.uuid}/{what}" for what in ("test", "rotate", "resume", "remove")),
        ]
        for path in paths:
            assert post(world["owner"], path, confirm="x").status_code == 404
        alert.refresh_from_db()
        endpoint.refresh_from_db()
        assert (alert.acknowledged_at, endpoint.removed_at) == (None, None)

    @pytest.mark.parametrize(
        ("who", "status"),
        [("developer", 403), ("colleague", 403), ("other lead", 403), ("finance", 403), ("team lead", 200), ("owner", 200)],
    )
    def test_who_may_acknowledge(self, world: World, who: str, status: int) -> None:
        alert = found(world, member_id=world.member.pk)
        assert post(world[who], f"{alert.uuid}/acknowledge").status_code == status
        alert.refresh_from_db()
        assert (alert.acknowledged_at is not None) == (status == 200)

    @pytest.mark.parametrize("who", ["developer", "team lead", "lead", "finance"])
    def test_rules_and_endpoints_are_an_owners(self, world: World, who: str) -> None:
        assert post(world[who], "rules", kind="limit", on="0").status_code == 403
        assert post(world[who], "endpoints", name="x", url="https://1.1.1.1/", format="slack").status_code == 403
        page = get(world[who], "?add=")
        assert "Webhooks" not in page
        assert "Turn off" not in page
        assert not AlertRule.objects.filter(organization=world.organization).exists()
        assert not WebhookEndpoint.objects.filter(organization=world.organization).exists()


class TestOpen:
    def test_nothing_open_says_so(self, world: World) -> None:
        page = get(world["owner"])
        assert answer(page).startswith("Nothing is open. 100 % of the plan’s quota left , ")
        assert "Nothing needs anybody" in page
        assert answer(get(world["developer"])) == "Nothing is open."

    def test_what_is_open_stands_with_its_words_who_was_told_and_the_next_step(self, world: World) -> None:
        alert = found(world, member_id=world.member.pk, limit_uuid="00000000-0000-4000-8000-000000000001")
        page = get(world["owner"])
        [row] = re.findall(rf'<div class="alert warn" data-alert="{alert.uuid}">.*?</div>', page, re.S)
        said = text(row)
        assert said.startswith("Tomasz Wrona: at most 20 % of the daily limit left ")
        assert "200 of 1,000 credits left · resets " in said
        assert f"e-mailed to you, {world.member} and 2 others" in said
        assert said.endswith("Change limit Acknowledge")
        assert f'href="/o/{world.organization.slug}/members/{world.member.uuid}?edit=00000000-0000-4000-8000-000000000001"' in row
        own = text(re.findall(rf'data-alert="{alert.uuid}">.*?</div>', get(world["developer"]), re.S)[0])
        assert "You: at most 20 % of the daily limit left" in own
        assert own.endswith("e-mailed to you Ask for more")
        assert str(world["owner"]) not in get(world["developer"])

    def test_what_needs_somebody_stands_first_and_in_the_sentence(self, world: World) -> None:
        found(world, line=100)
        pool = found(
            world, kind="account", line=0, facts={"label": "Dario’s Plus", "reason": "", "is_sign_in": True, "account": "x"}
        )
        page = get(world["lead"])
        assert answer(page).startswith("2 open. One needs you now: Dario’s Plus needs sign-in. ")
        assert re.findall(r'<div class="alert (\w+)" data-alert="([^"]+)"', page)[0] == ("bad", str(pool.uuid))

    def test_what_was_acknowledged_or_is_over_stands_among_the_earlier_ones(self, world: World) -> None:
        first, second = found(world), found(world)
        answered = post(world["owner"], f"{first.uuid}/acknowledge")
        assert "Acknowledged. It is not told again in its period." in answered.content.decode()
        assert "It was acknowledged already." in post(world["owner"], f"{first.uuid}/acknowledge").content.decode()
        Alert.objects.filter(pk=second.pk).update(ended_at=utc_now())
        page = get(world["owner"])
        assert "Nothing is open." in page
        rows = {uuid: text(row) for uuid, row in re.findall(r'<tr data-alert="([^"]+)">(.*?)</tr>', page, re.S)}
        assert f"Acknowledged by {world['owner']}" in rows[str(first.uuid)]
        assert rows[str(second.uuid)].endswith(" left Over")
        assert AuditEvent.objects.filter(organization=world.organization, action="alert.acknowledged").count() == 1

    def test_the_sentence_tells_whether_the_quota_lasts(self) -> None:
        world = World(plan="free")
        assert "Too early to tell whether it lasts. 0 of 5 days of use are there." in answer(get(world["owner"]))
        for days in range(1, 8):
            made.used(world.key.row, 50_000 * CREDIT, at=utc_now() - timedelta(days=days))
        said = answer(get(world["owner"]))
        assert "it runs out around" in said or "Nothing is left of the plan’s quota until" in said
        organization = factories.organization(plan=None)
        owner = factories.member(organization, role="owner")
        assert "cannot be told now: Your organization has no active plan." in answer(get(owner))

    def test_names_cannot_be_markup(self, world: World) -> None:
        Member.objects.filter(pk=world.member.pk).update(display_name="<script>alert(1)</script>")
        found(world, member_id=world.member.pk)
        found(world, kind="account", line=0, facts={"label": "<b>", "reason": "<i>", "is_sign_in": True, "account": "x"})
        page = get(world["owner"])
        assert "<script>alert" not in page
        assert "<b>" not in page
        assert "<i>" not in page


class TestDeliveries:
    def test_each_says_how_it_went(self, world: World, remote: Receiver) -> None:
        endpoints.add(world.organization, name="bridge", url=remote.url, format="standard", by=None, now=utc_now())
        remote.statuses = [503]
        alert = found(world)
        assert text(get(world["owner"])).count("Waiting") == 3
        delivery.deliver(world.organization, now=utc_now())
        page = get(world["owner"])
        rows = [text(row) for row in re.findall(r'<tr data-delivery="[^"]+">(.*?)</tr>', page, re.S)]
        assert len(rows) == 3
        failing = next(row for row in rows if "bridge" in row)
        assert re.search(r"Retry 2 of 8, in 3\d s 503", failing) or "Retry 2 of 8, in 29 s 503" in failing
        assert sum(" Sent " in row for row in rows) == 2
        AlertDelivery.objects.filter(alert=alert).exclude(endpoint=None).update(status="failed", next_try_at=None)
        assert "Gave up" in get(world["owner"])
        assert "1 not taken" in text(get(world["owner"]))
        assert "<h2>Deliveries" not in get(world["developer"])

    def test_they_are_paged_by_where_one_is(self, world: World) -> None:
        for _ in range(11):
            found(world)
        page = get(world["owner"])
        first = re.findall(r'data-delivery="([^"]+)"', page)
        [older] = re.findall(r'\?before=([0-9a-f-]+)#deliveries">Older', page)
        second = re.findall(r'data-delivery="([^"]+)"', get(world["owner"], f"?before={older}"))
        assert (len(first), len(second), len({*first, *second})) == (20, 2, 22)
        for junk in ("x", "00000000-0000-4000-8000-000000000000"):
            assert made.signed_in(world["owner"]).get(made.path(world["owner"], "alerts"), {"before": junk}).status_code == 200

    def test_a_lead_of_a_team_sees_those_of_the_team_only(self, world: World) -> None:
        found(world)
        alert = found(world, team_id=world.team.pk)
        shown = re.findall(r'data-delivery="([^"]+)"', get(world["team lead"]))
        assert set(shown) == {str(row.uuid) for row in AlertDelivery.objects.filter(alert=alert)}


class TestRules:
    def test_an_owner_turns_one_off_and_on(self, world: World) -> None:
        assert "Not told from now on." in post(world["owner"], "rules", kind="limit", on="0").content.decode()
        page = get(world["owner"])
        [row] = [text(one) for one in re.findall(r"<tr>.*?</tr>", page, re.S) if "nothing left of a limit" in one]
        assert row.endswith("Off Turn on")
        assert "Told from now on." in post(world["owner"], "rules", kind="limit", on="1").content.decode()
        assert AlertRule.objects.get(organization=world.organization).is_on

    def test_each_says_how_many_were_told_this_month(self, world: World) -> None:
        found(world)
        old = found(world)
        Alert.objects.filter(pk=old.pk).update(told_at=utc_now() - timedelta(days=40))
        [row] = [text(one) for one in re.findall(r"<tr>.*?</tr>", get(world["lead"]), re.S) if "nothing left of a limit" in one]
        assert row.startswith("20 %, 5 % or nothing left of a limit 1 Credits, tokens and requests")


class TestEndpoints:
    def test_an_owner_adds_one_sees_its_secret_once_and_tests_it(self, world: World, remote: Receiver) -> None:
        owner = world["owner"]
        answered = post(owner, "endpoints", name="bridge", url=remote.url, format="standard")
        [secret] = re.findall(r"whsec_[\w+/=]+", answered.content.decode())
        secrets.register(secret, "a webhook's secret")
        assert answered.headers["cache-control"].startswith("max-age=0, no-cache, no-store")
        page = get(owner)
        assert secret not in page
        assert "secret-place" not in answered.content.decode() + page
        row = WebhookEndpoint.objects.get(organization=world.organization)
        tested = post(owner, f"endpoints/{row.uuid}/test").content.decode()
        assert re.search(r"bridge took the test: 204, \d+ ms\.", tested)
        (got,) = remote.received
        assert Webhook(secret).verify(got.body, got.headers)["data"]["organization"] == world.organization.slug
        remote.statuses = [500]
        assert "bridge did not take the test: it answered 500." in post(owner, f"endpoints/{row.uuid}/test").content.decode()

    def test_a_rotation_shows_the_new_secret_once_and_is_done_once(self, world: World, remote: Receiver) -> None:
        added = endpoints.add(world.organization, name="bridge", url=remote.url, format="standard", by=None, now=utc_now())
        path = f"endpoints/{added.endpoint.uuid}/rotate"
        first = post(world["owner"], path, seen="0").content.decode()
        [secret] = re.findall(r"whsec_[\w+/=]+", first)
        secrets.register(secret, "a webhook's secret")
        assert secret != added.secret
        again = post(world["owner"], path, seen="0").content.decode()
        assert "whsec_" not in again
        assert "Nothing was changed: The secret was rotated a moment ago" in again

    @pytest.mark.parametrize(
        ("field", "value", "word"),
        [
            ("name", "", "required"),
            ("url", "https://10.0.0.1/", "private network"),
            ("url", "nonsense", "begins with https://"),
            ("format", "xml", "Select a valid choice"),
        ],
    )
    def test_a_wrong_field_is_told_beside_it_and_nothing_is_made(self, world: World, field: str, value: str, word: str) -> None:
        wanted = {"name": "bridge", "url": "https://1.1.1.1/secret-place", "format": "standard", field: value}
        answered = post(world["owner"], "endpoints", **wanted)
        page = answered.content.decode()
        assert 400 <= answered.status_code < 500
        [error] = re.findall(rf'id="endpoint-{field}-error">(.*?)<', page)
        assert word in error
        assert "secret-place" not in page
        assert not WebhookEndpoint.objects.filter(organization=world.organization).exists()

    def test_a_disabled_one_says_why_and_is_used_again(self, world: World, remote: Receiver) -> None:
        added = endpoints.add(world.organization, name="bridge", url=remote.url, format="slack", by=None, now=utc_now())
        endpoints.disable(added.endpoint, reason="It answered 410: gone.", now=utc_now())
        assert "Disabled It answered 410: gone." in text(get(world["owner"]))
        post(world["owner"], f"endpoints/{added.endpoint.uuid}/resume")
        assert "Disabled" not in text(get(world["owner"]))

    def test_it_is_removed_by_its_name(self, world: World, remote: Receiver) -> None:
        added = endpoints.add(world.organization, name="bridge", url=remote.url, format="slack", by=None, now=utc_now())
        path = f"endpoints/{added.endpoint.uuid}/remove"
        assert "Nothing was removed: the name typed was not bridge." in post(world["owner"], path, confirm="b").content.decode()
        assert "bridge is removed." in post(world["owner"], path, confirm="bridge").content.decode()
        assert "No endpoint yet" in get(world["owner"])
        assert post(world["owner"], path, confirm="bridge").status_code == 404


def test_the_page_takes_as_many_queries_for_one_as_for_many(world: World, remote: Receiver) -> None:
    owner = world["owner"]
    endpoints.add(world.organization, name="bridge", url=remote.url, format="slack", by=None, now=utc_now())

    def asked() -> int:
        client: Client = made.signed_in(owner)
        client.get(made.path(owner, "alerts"))
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert client.get(made.path(owner, "alerts")).status_code == 200
        return len(queries)

    found(world, member_id=world.member.pk)
    over = found(world)
    Alert.objects.filter(pk=over.pk).update(ended_at=utc_now())
    few = asked()
    for number in range(8):
        found(world, member_id=world.member.pk)
        found(world, key_id=world.key.row.pk)
        over = found(world, team_id=world.team.pk)
        telling.acknowledge(over, by=owner, now=utc_now())
        endpoints.add(world.organization, name=f"e{number}", url=remote.url, format="slack", by=None, now=utc_now())
    assert asked() == few
    assert few <= 30
