"""What is done to an account in the pool: changed, paused, polled, moved, taken out, its link made anew; the strategy set."""

import re
from typing import Any

import pytest
from django.core import mail

from accounts.models import AuditEvent, Member
from config.clock import utc_now
from routing import accounts, withdrawal
from routing.errors import LinkInvalid
from routing.models import Pool, PoolAccount
from tests import factories, secrets
from tests.flows.untouched import rows_of
from tests.pages import made
from tests.pages.test_pool import World, get, text
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def remote(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    settings.UPSTREAM_AUTH_URL = upstream.url
    settings.UPSTREAM_CHATGPT_URL = f"{upstream.url}/backend-api"
    return upstream


def post(member: Member, path: str, **data: str) -> Any:
    return made.signed_in(member).post(made.path(member, f"pool/{path}"), data)


def say(member: Member, path: str, **data: str) -> str:
    """What the page says after the change."""
    client = made.signed_in(member)
    answered = client.post(made.path(member, f"pool/{path}"), data)
    assert answered.status_code == 302, answered.content.decode()
    page = client.get(answered["location"]).content.decode()
    [found] = re.findall(r'role="status">.*?<p>(.*?)</p>', page, re.S)
    return str(found)


def event(world: World, action: str) -> AuditEvent:
    return AuditEvent.objects.get(organization=world.organization, action=action)


class TestChange:
    FIELDS = {
        "label": "Ada", "floor_percent": "20", "concurrency_cap": "4", "priority": "2", "weight": "7.5", "models": "b, a\na",
        "efforts": "medium, low", "tiers": "flex",
    }  # fmt: skip

    def test_name_floor_cap_tier_weight_and_what_it_serves(self, world: World) -> None:
        account = world.sign_in("Old name")
        before = world.organization.config_version
        assert say(world.lead, f"accounts/{account.uuid}", **self.FIELDS) == "Ada is as said from the next request on."
        account.refresh_from_db()
        assert (account.label, account.floor_percent, account.concurrency_cap, account.priority) == ("Ada", 20, 4, 2)
        assert (account.weight_thousandths, account.models_served) == (7500, ["a", "b"])
        assert (account.efforts_served, account.tiers_served) == (["low", "medium"], ["flex"])
        world.organization.refresh_from_db()
        assert world.organization.config_version == before + 1
        found = event(world, "account.changed")
        assert found.actor == world.lead.user
        assert found.data["before"]["label"] == "Old name"
        assert (found.data["after"]["models_served"], found.data["after"]["tiers_served"]) == (["a", "b"], ["flex"])

    def test_what_is_left_empty_is_lifted(self, world: World) -> None:
        lists = {name: ["a"] for name in ("models_served", "efforts_served", "tiers_served")}
        account = world.sign_in("Ada", concurrency_cap=4, weight_thousandths=500, **lists)
        say(world.lead, f"accounts/{account.uuid}", label="Ada", floor_percent="0", priority="0")
        account.refresh_from_db()
        assert (account.concurrency_cap, account.weight_thousandths) == (None, None)
        assert [getattr(account, name) for name in lists] == [None, None, None]

    def test_the_same_again_changes_nothing(self, world: World) -> None:
        account = world.sign_in("Ada")
        before = rows_of(world.organization)
        say(world.lead, f"accounts/{account.uuid}", label="Ada", floor_percent="0", priority="0")
        assert rows_of(world.organization) == before

    @pytest.mark.parametrize(("field", "value"), [
        ("label", ""), ("label", "x" * 81), ("floor_percent", "101"), ("floor_percent", "-1"), ("concurrency_cap", "0"),
        ("concurrency_cap", "10001"), ("priority", "101"), ("priority", ""), ("weight", "0"), ("weight", "1001"),
        ("models", "x" * 121), ("models", "a\u202eb"), ("efforts", "x" * 21), ("tiers", "low\u202eb"),
    ])  # fmt: skip
    def test_what_cannot_be_is_said_beside_its_field(self, world: World, field: str, value: str) -> None:
        account = world.sign_in("Ada")
        before = rows_of(world.organization)
        answered = post(world.lead, f"accounts/{account.uuid}", **{**self.FIELDS, field: value})
        assert 400 <= answered.status_code < 500
        assert f'id="account-{field}-error"' in answered.content.decode()
        assert 'value="7.5"' in answered.content.decode() or field == "weight"
        assert rows_of(world.organization) == before

    def test_the_form_shows_what_is_stored(self, world: World) -> None:
        account = world.sign_in(
            "Ada", weight_thousandths=2500, floor_percent=10,
            models_served=["a", "b"], efforts_served=["low"], tiers_served=["default"],
        )  # fmt: skip
        page = get(world.lead, f"?open={account.uuid}")
        stored = {
            "label": "Ada", "weight": "2.5", "models": "a, b", "efforts": "low", "tiers": "default", "floor_percent": "10",
            "priority": "0",
        }  # fmt: skip
        for name, value in stored.items():
            assert re.search(rf'name="{name}"[^>]* value="{value}"', page), name
        assert "Reasoning efforts</dt><dd>low</dd>" in page

    def test_what_no_account_serves_is_said_where_the_request_would_go(self, world: World) -> None:
        account = world.sign_in("Ada")
        say(world.lead, f"accounts/{account.uuid}", **{**self.FIELDS, "models": "", "tiers": "", "efforts": "low"})
        assert "Nobody: " not in text(get(world.lead, "?model=gpt-5.5&effort=low"))
        assert "Nobody: " in text(get(world.lead, "?model=gpt-5.5&effort=high"))


class TestPause:
    def test_paused_and_resumed(self, world: World) -> None:
        account = world.sign_in("Ada")
        assert say(world.lead, f"accounts/{account.uuid}/pause").startswith("Ada is paused: ")
        account.refresh_from_db()
        assert account.status == "paused"
        assert event(world, "account.paused").actor == world.lead.user
        assert "Nobody: No account of the pool is serving." in text(get(world.lead, "?model=gpt-5.5"))
        assert say(world.lead, f"accounts/{account.uuid}/resume") == "Ada serves again from the next request on."
        account.refresh_from_db()
        assert account.status == "active"
        assert "Ada carries a new turn" in text(get(world.lead, "?model=gpt-5.5"))

    def test_one_that_needs_sign_in_is_neither_paused_nor_resumed(self, world: World) -> None:
        account = world.sign_in("Ada", status="needs_sign_in")
        for action in ("pause", "resume"):
            said = say(world.lead, f"accounts/{account.uuid}/{action}")
            assert said == "Nothing was changed: Ada is neither serving nor paused: needs sign-in."
        account.refresh_from_db()
        assert account.status == "needs_sign_in"


class TestPoll:
    def test_asked_now_and_not_twice_in_a_moment(self, world: World, remote: ScriptedUpstream) -> None:
        auth = remote.mint()
        account = factories.chatgpt_account(world.organization, auth, label="Ada")
        remote.windows(auth["tokens"]["account_id"], short_percent=30)
        assert say(world.lead, f"accounts/{account.uuid}/poll").startswith("Asked Ada, which answered in ")
        assert "70 % left" in text(get(world.lead))
        assert re.match(r"Ada was asked \d+ s ago; what it said is below\.", say(world.lead, f"accounts/{account.uuid}/poll"))
        assert len(remote.received(path="/backend-api/wham/usage")) == 1

    def test_one_whose_sign_in_is_revoked_needs_a_person(self, world: World, remote: ScriptedUpstream) -> None:
        auth = remote.mint()
        account = factories.chatgpt_account(world.organization, auth, label="Ada")
        remote.revoke(account_id=auth["tokens"]["account_id"])
        assert say(world.lead, f"accounts/{account.uuid}/poll") == "Ada needs sign-in: its upstream refuses it."
        assert "Ada needs sign-in. Refresh token invalidated, " in text(get(world.lead))

    def test_a_key_has_nothing_to_ask_for(self, world: World, remote: ScriptedUpstream) -> None:
        account = world.key("Key")
        assert say(world.lead, f"accounts/{account.uuid}/poll") == "Key has no windows to ask for."
        assert remote.received() == []


class TestMove:
    def test_into_another_pool_of_the_organization(self, world: World) -> None:
        account = world.sign_in("Ada")
        other = Pool.objects.create(organization=world.organization, name="Nightly")
        assert say(world.lead, f"accounts/{account.uuid}/move", pool=str(other.uuid)).startswith("Ada is in Nightly now.")
        account.refresh_from_db()
        assert account.pool == other

    def test_not_into_a_foreign_shared_or_missing_one(self, world: World) -> None:
        account = world.sign_in("Ada")
        shared = Pool.objects.create(organization=None, name=factories.unique("Shared"), plans=["plus"])
        answers = [
            post(world.lead, f"accounts/{account.uuid}/move", pool=str(uuid))
            for uuid in (World().pool.uuid, shared.uuid, "00000000-0000-4000-8000-000000000000")
        ]
        assert {answered.status_code for answered in answers} == {404}
        assert len({answered.content for answered in answers}) == 1
        account.refresh_from_db()
        assert account.pool == world.pool


class TestTakingOut:
    @pytest.mark.parametrize("kind", ["sign-in", "key"])
    def test_it_serves_no_more_and_its_secrets_are_erased(self, world: World, kind: str) -> None:
        account = world.sign_in("Ada") if kind == "sign-in" else world.key("Ada")
        said = say(world.lead, f"accounts/{account.uuid}/remove", confirm="Ada")
        assert said == "Ada is out of the pool, and its secrets are erased. What it carried stays in the log."
        account.refresh_from_db()
        assert (account.status, account.access_token, account.refresh_token) == ("withdrawn", "", "")
        action = "account.withdrawn" if kind == "sign-in" else "account.removed"
        assert event(world, action).actor == world.lead.user
        assert "Every account was taken out" in get(world.lead)

    def test_only_with_its_name(self, world: World) -> None:
        account = world.sign_in("Ada")
        before = rows_of(world.organization)
        assert (
            say(world.lead, f"accounts/{account.uuid}/remove", confirm="Bob")
            == "Nothing was taken out: the name typed was not Ada."
        )
        assert rows_of(world.organization) == before

    def test_the_same_key_brings_it_back(self, world: World) -> None:
        row, token = factories.key_account(world.organization, label="Key")
        say(world.lead, f"accounts/{row.uuid}/remove", confirm="Key")
        again = accounts.add_key(world.organization, token, label="Key", by=None, now=utc_now())
        assert (again.pk, again.status) == (row.pk, "active")


class TestLink:
    @pytest.mark.django_db(transaction=True)
    def test_a_new_one_is_mailed_and_shown_once_and_the_old_ends(self, world: World) -> None:
        account = world.sign_in("Ada", email="ada@example.test")
        answered = post(world.lead, f"accounts/{account.uuid}/link")
        page = answered.content.decode()
        link = re.search(r'<code id="link">([^<]+)</code>', page)[1]  # type: ignore[index]
        secrets.register(link.rpartition("/")[2], "withdrawal link")
        assert mail.outbox[-1].to == ["ada@example.test"]
        assert link in mail.outbox[-1].body
        assert withdrawal.look_up(link.rpartition("/")[2]).label == "Ada"
        assert link not in get(world.lead, f"?open={account.uuid}")
        second = post(world.lead, f"accounts/{account.uuid}/link").content.decode()
        secrets.register(re.search(r'<code id="link">([^<]+)</code>', second)[1].rpartition("/")[2], "withdrawal link")  # type: ignore[index]
        with pytest.raises(LinkInvalid):
            withdrawal.look_up(link.rpartition("/")[2])
        assert AuditEvent.objects.filter(organization=world.organization, action="account.withdrawal_link_made").count() == 2

    def test_a_key_has_no_person(self, world: World) -> None:
        account = world.key("Key")
        assert say(world.lead, f"accounts/{account.uuid}/link").startswith("Nothing was changed: An API key is no person")


class TestStrategy:
    FIELDS = {"strategy": "reset_drain", "safety": "6.5", "loyalty": "0.5", "base_short": "300", "base_weekly": "2000"}

    def test_it_is_set_with_what_goes_with_it(self, world: World) -> None:
        said = say(world.lead, f"{world.pool.uuid}/strategy", **self.FIELDS)
        assert said == "Main chooses by reset drain from the next request on. Running turns stay where they are."
        world.pool.refresh_from_db()
        assert (world.pool.strategy, world.pool.safety_percent, world.pool.loyalty_percent) == ("reset_drain", 650, 50)
        assert (world.pool.base_short_credits, world.pool.base_weekly_credits) == (300, 2000)
        assert event(world, "pool.strategy_set").actor == world.lead.user

    @pytest.mark.parametrize(
        ("field", "value"),
        [("strategy", "luck"), ("safety", "0.5"), ("safety", "21"), ("loyalty", "11"), ("base_short", "0"), ("base_weekly", "x")],
    )
    def test_what_cannot_be_is_refused(self, world: World, field: str, value: str) -> None:
        before = rows_of(world.organization)
        answered = post(world.lead, f"{world.pool.uuid}/strategy", **{**self.FIELDS, field: value})
        assert answered.status_code == 422
        assert 'class="error"' in answered.content.decode()
        assert rows_of(world.organization) == before


class TestForeign:
    ACTIONS = ("", "/pause", "/resume", "/poll", "/move", "/link", "/remove")

    def test_anothers_account_is_as_a_missing_one(self, world: World) -> None:
        """J5: also the operator's shared one, though it may carry the organization's requests."""
        foreign = World()
        account = foreign.sign_in("Foreign one")
        shared = foreign.sign_in("Shared one")
        pool = Pool.objects.create(organization=None, name=factories.unique("Shared"), plans=["plus"])
        PoolAccount.objects.filter(pk=shared.pk).update(pool=pool)
        before = rows_of(foreign.organization)
        for action in self.ACTIONS:
            data = {**TestChange.FIELDS, "confirm": "Foreign one", "pool": str(world.pool.uuid)}
            answers = [
                post(world.owner, f"accounts/{uuid}{action}", **data)
                for uuid in (account.uuid, shared.uuid, "00000000-0000-4000-8000-000000000000")
            ]
            assert {answered.status_code for answered in answers} == {404}, action
            assert len({answered.content for answered in answers}) == 1, action
        for uuid in (foreign.pool.uuid, pool.uuid):
            assert post(world.owner, f"{uuid}/strategy", **TestStrategy.FIELDS).status_code == 404
        assert rows_of(foreign.organization) == before
        shared.refresh_from_db()
        assert (shared.label, shared.status, shared.pool) == ("Shared one", "active", pool)
