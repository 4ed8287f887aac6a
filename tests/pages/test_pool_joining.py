"""Adding accounts on the page by signing in, in a browser or by a code; who accepts the terms; what is never shown again."""

import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from accounts.models import AuditEvent, Member
from config.clock import utc_now
from routing.models import PoolAccount, SignInFlow
from tests import factories
from tests.pages import made
from tests.pages.adding import World, begin, file, flow_of, key, lead_to, link_in, notice, post, signed_in, text
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def remote(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    return lead_to(upstream, settings)


@pytest.fixture
def world() -> World:
    return World()


class TestTerms:
    def test_an_owner_reads_and_accepts_them_before_the_first_sign_in(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        page = client.get(made.path(world.owner, "pool?add=browser")).content.decode()
        assert "may forbid giving others access to such an account" in page
        refused = post(client, world.owner, "add/browser", {})
        assert refused.status_code == 400
        assert "Accept the terms first." in refused.content.decode()
        assert world.flows() == []
        begin(client, world.owner)
        world.organization.refresh_from_db()
        assert world.organization.sign_in_terms_accepted_by == world.owner.user
        event = AuditEvent.objects.get(organization=world.organization, action="organization.sign_in_terms_accepted")
        assert event.actor == world.owner.user
        assert 'name="accept_terms"' not in client.get(made.path(world.owner, "pool?add=files")).content.decode()

    def test_a_leads_tick_counts_for_nothing(self, world: World, remote: ScriptedUpstream) -> None:
        """Terms are an owner's: design sections 1 and 12."""
        client = made.signed_in(world.lead)
        assert 'name="accept_terms"' not in client.get(made.path(world.lead, "pool?add=browser")).content.decode()
        for way in ("browser", "device", "files"):
            data: dict[str, Any] = {"accept_terms": "on"}
            if way == "files":
                data["files"] = [file(remote.mint())]
            refused = post(client, world.lead, f"add/{way}", data)
            assert refused.status_code == 400, way
            assert "Sign-in accounts are off until an owner has accepted the terms below." in refused.content.decode()
        world.organization.refresh_from_db()
        assert world.organization.sign_in_terms_accepted_at is None
        assert world.flows() == []
        assert world.accounts() == []
        assert remote.received() == []

    def test_once_accepted_a_lead_adds_sign_ins(self, world: World, remote: ScriptedUpstream) -> None:
        begin(made.signed_in(world.owner), world.owner)
        client = made.signed_in(world.lead)
        address = begin(client, world.lead)
        finished = post(client, world.lead, f"add/browser/{flow_of(address)}", {"pasted": signed_in(client, remote, address)})
        assert finished.status_code == 302
        assert len(world.accounts()) == 1

    def test_keys_need_none(self, world: World) -> None:
        client = made.signed_in(world.lead)
        answered = post(client, world.lead, "add/key", {"kind": "openai", "label": "Key", "api_key": key()})
        assert answered.status_code == 302
        world.organization.refresh_from_db()
        assert world.organization.sign_in_terms_accepted_at is None


class TestBrowser:
    def test_a_person_signs_in_and_pastes_the_address(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        remote.person(email="ada@example.test", plan="pro")
        address = begin(client, world.owner, label="Ada", plan="pro_200")
        page = client.get(address).content.decode()
        link = urlsplit(link_in(page))
        assert f"{link.scheme}://{link.netloc}{link.path}" == f"{remote.url}/oauth/authorize"
        back = remote.sign_in(link_in(page))
        answered = post(
            client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back, "floor_percent": "20", "priority": "2"}
        )
        assert answered["location"] == made.path(world.owner, "pool")
        assert notice(client, answered) == "Ada is in the pool and serves from the next request on."
        (account,) = world.accounts()
        assert (account.label, account.email, account.plan_type, account.status) == ("Ada", "ada@example.test", "pro_200", "active")
        assert (account.floor_percent, account.priority, account.accepted_by) == (20, 2, world.owner.user)
        assert world.flows() == []

    def test_it_can_be_left_and_found_again_with_the_same_link(self, world: World) -> None:
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        assert link_in(client.get(address).content.decode()) == link_in(client.get(address).content.decode())

    def test_a_wrong_address_is_told_and_leaves_it_open_and_is_not_shown_again(
        self, world: World, remote: ScriptedUpstream
    ) -> None:
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        right = signed_in(client, remote, address)
        for pasted in ("http://127.0.0.1:1455/auth/callback?code=private-code&state=other", "what is this", ""):
            answered = post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": pasted, "floor_percent": "7"})
            page = answered.content.decode()
            assert 400 <= answered.status_code < 500
            assert 'name="pasted"' in page
            assert "private-code" not in page
            assert re.search(r'name="floor_percent"[^>]* value="7"', page)
            assert 'aria-invalid="true"' in page
        assert world.accounts() == []
        done = post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": right})
        assert done.status_code == 302
        assert len(world.accounts()) == 1

    def test_it_is_finished_once(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        back = signed_in(client, remote, address)
        post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back})
        again = post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back})
        assert again.status_code == 404
        assert "This sign-in is not open any more. Start a new one." in again.content.decode()
        assert back.split("code=")[1].split("&")[0] not in again.content.decode()
        assert len(remote.received(path="/oauth/token")) == 1

    @pytest.mark.parametrize("who", ["another person of the organization", "another organization", "the same person elsewhere"])
    def test_what_another_began_is_not_open_here(self, world: World, remote: ScriptedUpstream, who: str) -> None:
        """A sign-in is finished by who began it, where they began it: else an account would land in a stranger's pool, or in the
        wrong one of one's own."""
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        back = signed_in(client, remote, address)
        if who == "another person of the organization":
            other = world.lead
        elif who == "another organization":
            other = World().owner
        else:
            elsewhere = factories.organization()
            factories.member(elsewhere, role="owner")
            other = Member.objects.create(organization=elsewhere, user=world.owner.user, role="owner", display_name="The same")
        stranger = made.signed_in(other)
        shown = stranger.get(made.path(other, f"pool?add=browser&flow={flow_of(address)}")).content.decode()
        assert "Open the sign-in page" not in shown
        missing = stranger.get(made.path(other, "pool?add=browser&flow=00000000-0000-4000-8000-000000000000")).content.decode()
        assert text(shown) == text(missing)
        answered = post(stranger, other, f"add/browser/{flow_of(address)}", {"pasted": back})
        assert answered.status_code == 404
        assert remote.received(path="/oauth/token") == []
        assert not PoolAccount.objects.for_organization(other.organization).exists()
        assert post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back}).status_code == 302

    def test_an_expired_one_is_over(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        back = signed_in(client, remote, address)
        SignInFlow.objects.filter(organization=world.organization).update(expires_at=utc_now() - timedelta(seconds=1))
        assert "This sign-in is not open any more." in client.get(address).content.decode()
        assert post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back}).status_code == 404
        assert world.accounts() == []

    def test_what_the_issuer_refuses_is_said(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address = begin(client, world.owner)
        back = signed_in(client, remote, address)
        remote.script({"status": 400, "body": json.dumps({"error": "invalid_grant"})}, path="/oauth/token")
        answered = post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": back})
        assert answered.status_code == 400
        assert "The issuer refuses this sign-in (invalid_grant). Start a new one." in answered.content.decode()
        assert world.accounts() == []

    def test_signing_in_again_brings_back_what_needs_it(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        person = {"account_id": factories.unique("acct"), "user_id": "user_1"}
        for expected in ("is in the pool and serves", "was here already; its credential is renewed"):
            remote.person(**person)
            address = begin(client, world.owner, label="Ada")
            answered = post(client, world.owner, f"add/browser/{flow_of(address)}", {"pasted": signed_in(client, remote, address)})
            assert expected in notice(client, answered)
            PoolAccount.objects.for_organization(world.organization).update(status="needs_sign_in")
        assert len(world.accounts()) == 1


class TestDevice:
    def waiting(self, client: Client, world: World) -> tuple[str, str]:
        """The address of the page, and the code that it shows."""
        address = begin(client, world.owner, "device", label="Ada")
        page = client.get(address).content.decode()
        SignInFlow.objects.filter(organization=world.organization).update(next_poll_at=utc_now())
        return address, re.search(r'id="user-code">([^<]+)<', page)[1]  # type: ignore[index]

    def test_the_code_is_shown_and_polled_until_it_is_entered(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address, code = self.waiting(client, world)
        url = f"add/device/{flow_of(address)}"
        waits = post(client, world.owner, url, {}, headers={"HX-Request": "true"})
        assert waits.status_code == 200
        assert 'hx-trigger="load delay:1s"' in waits.content.decode()
        remote.approve(code, email="ada@example.test")
        SignInFlow.objects.filter(organization=world.organization).update(next_poll_at=utc_now())
        done = post(client, world.owner, url, {"floor_percent": "30"}, headers={"HX-Request": "true"})
        assert (done.status_code, done["HX-Redirect"]) == (200, made.path(world.owner, "pool"))
        (account,) = world.accounts()
        assert (account.label, account.email, account.floor_percent) == ("Ada", "ada@example.test", 30)
        assert "Ada is in the pool" in client.get(made.path(world.owner, "pool")).content.decode()

    def test_it_works_without_a_script(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address, code = self.waiting(client, world)
        waits = post(client, world.owner, f"add/device/{flow_of(address)}", {})
        assert (waits.status_code, waits["location"]) == (302, address)
        assert code in client.get(address).content.decode()
        remote.approve(code)
        SignInFlow.objects.filter(organization=world.organization).update(next_poll_at=utc_now())
        assert post(client, world.owner, f"add/device/{flow_of(address)}", {})["location"] == made.path(world.owner, "pool")
        assert len(world.accounts()) == 1

    @pytest.mark.parametrize("is_htmx", [True, False])
    def test_a_refusal_on_the_other_device_is_said(self, world: World, remote: ScriptedUpstream, is_htmx: bool) -> None:
        client = made.signed_in(world.owner)
        address, code = self.waiting(client, world)
        remote.approve(code, deny=True)
        headers = {"HX-Request": "true"} if is_htmx else {}
        answered = post(client, world.owner, f"add/device/{flow_of(address)}", {}, headers=headers)
        assert answered.status_code == 400
        page = answered.content.decode()
        assert "The sign-in was refused on the other device. Start a new one." in page
        assert "load delay" not in page
        assert world.accounts() == []

    def test_only_who_began_it_polls(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        address, code = self.waiting(client, world)
        remote.approve(code)
        asked = len(remote.received())
        stranger = World().owner
        for other in (world.lead, stranger):
            answered = post(made.signed_in(other), other, f"add/device/{flow_of(address)}", {}, headers={"HX-Request": "true"})
            assert answered.status_code == 404
            shown = made.signed_in(other).get(made.path(other, f"pool?add=device&flow={flow_of(address)}")).content.decode()
            assert code not in shown
        assert len(remote.received()) == asked
        assert world.accounts() == []
