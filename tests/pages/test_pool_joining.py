"""Adding accounts on the page: in a browser, by a code, by files, by keys; who accepts the terms; what is never shown again."""

import json
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection
from django.test import Client

from accounts import job_running
from accounts.models import AuditEvent, Job, Member
from config.clock import utc_now
from routing import import_jobs, joining
from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.pages import made
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def remote(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    settings.UPSTREAM_AUTH_URL = upstream.url
    settings.UPSTREAM_CHATGPT_URL = f"{upstream.url}/backend-api"
    settings.UPSTREAM_OPENAI_URL = f"{upstream.url}/v1"
    settings.UPSTREAM_ANTHROPIC_URL = f"{upstream.url}/v1"
    return upstream


class World:
    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = factories.member(self.organization, role="owner")
        self.lead = factories.member(self.organization, role="lead")

    def accounts(self) -> list[PoolAccount]:
        return list(PoolAccount.objects.for_organization(self.organization))

    def flows(self) -> list[SignInFlow]:
        return list(SignInFlow.objects.filter(organization=self.organization))


@pytest.fixture
def world() -> World:
    return World()


def post(client: Client, member: Member, path: str, data: dict[str, Any], **options: Any) -> Any:
    answered = client.post(made.path(member, f"pool/{path}"), data, **options)
    secrets.record_answer(f"POST pool/{path}", answered.content)
    return answered


def begin(client: Client, member: Member, way: str = "browser", **data: str) -> str:
    """Begins a sign-in and returns the address of the page on which it goes on."""
    answered = post(client, member, f"add/{way}", {"accept_terms": "on", **data})
    assert answered.status_code == 302, answered.content.decode()
    return str(answered["location"])


def flow_of(address: str) -> str:
    return re.search(r"flow=([0-9a-f-]{36})", address)[1]  # type: ignore[index]


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def link_in(page: str) -> str:
    return re.search(r'href="([^"]+)"[^>]*>Open the sign-in page', page)[1].replace("&amp;", "&")  # type: ignore[index]


def notice(client: Client, answered: Any) -> str:
    """What the page that an answer leads to says."""
    page = client.get(answered["location"]).content.decode()
    [found] = re.findall(r'<div class="alert \w+" role="status">.*?<p>(.*?)</p>', page, re.S)
    return str(found)


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


def signed_in(client: Client, remote: ScriptedUpstream, address: str) -> str:
    """Opens the link that the page shows and returns the address that the browser ends at."""
    return remote.sign_in(link_in(client.get(address).content.decode()))


def key(prefix: str = "sk-") -> str:
    return secrets.register(f"{prefix}{factories.unique('test')}-{'k' * 30}", "upstream API key")


def file(auth: object, name: str = "auth.json") -> SimpleUploadedFile:
    content = auth if isinstance(auth, bytes) else json.dumps(auth).encode()
    return SimpleUploadedFile(name, content, content_type="application/json")


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


class TestFiles:
    def test_each_entry_of_each_file_is_told(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        one, listed, revoked = remote.mint(email="ada@example.test"), remote.mint(email="bob@example.test"), remote.mint()
        remote.revoke(account_id=revoked["tokens"]["account_id"])
        files = [
            file(one, "one.json"),
            file([listed, {"tokens": None}], "list.json"),
            file(b"{", "bad.json"),
            file(revoked, "r.json"),
        ]
        answered = post(client, world.owner, "add/files", {"accept_terms": "on", "files": files, "floor_percent": "15"})
        assert answered.status_code == 200
        rows = [text(row) for row in re.findall(r"<tr data-outcome>(.*?)</tr>", answered.content.decode(), re.S)]
        assert rows == [
            "one.json Added ada@example.test",
            "list.json[0] Added bob@example.test",
            rows[2],
            "bad.json Refused bad.json is not JSON.",
            "r.json Refused The upstream refuses it (token_invalidated).",
        ]
        assert rows[2].startswith("list.json[1] Refused ")
        assert sorted((account.email, account.floor_percent) for account in world.accounts()) == [
            ("ada@example.test", 15),
            ("bob@example.test", 15),
        ]

    def test_no_token_of_a_file_comes_back(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        bad = {"tokens": {"access_token": "private-access", "refresh_token": "private-refresh"}}
        answered = post(client, world.owner, "add/files", {"accept_terms": "on", "files": [file(bad), file(b"private-junk")]})
        assert answered.status_code == 422
        assert "private-" not in answered.content.decode()
        assert answered.content.decode().count("Refused") == 2

    def test_one_file_leads_back_to_the_page(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        answered = post(client, world.owner, "add/files", {"accept_terms": "on", "files": [file(remote.mint())], "label": "Ada"})
        assert notice(client, answered) == "Ada is in the pool and serves from the next request on."

    def test_none_or_a_name_for_several_is_said_and_nothing_is_read(self, world: World, remote: ScriptedUpstream) -> None:
        client = made.signed_in(world.owner)
        none = post(client, world.owner, "add/files", {"accept_terms": "on"})
        assert (none.status_code, "Choose one or more auth.json files." in none.content.decode()) == (422, True)
        files = [file(remote.mint()), file(remote.mint())]
        several = post(client, world.owner, "add/files", {"accept_terms": "on", "label": "Ada", "files": files})
        assert "A name is for one account, and several files were given." in several.content.decode()
        assert world.accounts() == []
        world.organization.refresh_from_db()
        assert world.organization.sign_in_terms_accepted_at is None


class TestKeys:
    @pytest.mark.parametrize("kind", ["openai", "anthropic", "openai_compatible"])
    def test_a_key_is_tried_and_joins(self, world: World, remote: ScriptedUpstream, kind: str) -> None:
        client = made.signed_in(world.lead)
        data = {
            "kind": kind,
            "label": "Company key",
            "api_key": key("sk-ant-" if kind == "anthropic" else "sk-"),
            "models": "gpt-5.5, gpt-5.4",
        }
        if kind == "openai_compatible":
            data["base_url"] = f"{remote.url}/v1"
        answered = post(client, world.lead, "add/key", data)
        assert notice(client, answered) == "Company key is in the pool and serves from the next request on."
        (account,) = world.accounts()
        assert (account.kind, account.label, account.priority, account.models_served) == (
            kind,
            "Company key",
            10,
            ["gpt-5.4", "gpt-5.5"],
        )
        assert data["api_key"] not in client.get(made.path(world.lead, f"pool?open={account.uuid}")).content.decode()

    def test_what_is_refused_is_said_beside_its_field_and_the_key_does_not_come_back(
        self, world: World, remote: ScriptedUpstream
    ) -> None:
        client = made.signed_in(world.lead)
        cases = [
            ({"kind": "openai", "api_key": "a b"}, "add-api_key-error", "That is not an API key"),
            ({"kind": "openai_compatible", "api_key": key()}, "add-base_url-error", "A compatible endpoint needs its base URL."),
            (
                {"kind": "openai_compatible", "api_key": key(), "base_url": "http://10.1.2.3/v1"},
                "add-base_url-error",
                "10.1.2.3 is an address inside a private network.",
            ),
            ({"kind": "openai", "api_key": key(), "floor_percent": "101"}, "add-floor_percent-error", "Ensure this value is less"),
        ]
        for data, field, said in cases:
            answered = post(client, world.lead, "add/key", {"label": "Key", **data})
            page = answered.content.decode()
            assert 400 <= answered.status_code < 500
            assert re.search(rf'id="{field}">{re.escape(said)}', page), (said, page[page.index('id="add"') :][:6000])
            assert not data["api_key"].startswith("sk-") or data["api_key"] not in page
        remote.script({"status": 401, "body": json.dumps({"error": {"code": "invalid_api_key"}})}, path="/v1/models", repeat=0)
        given = key()
        answered = post(client, world.lead, "add/key", {"kind": "openai", "label": "Key", "api_key": given})
        assert answered.status_code == 400
        assert "refuses it" in answered.content.decode()
        assert given not in answered.content.decode()
        assert world.accounts() == []


@pytest.mark.parametrize("way", ["key", "file", "browser", "poll"])
def test_no_transaction_is_open_while_an_upstream_is_asked(world: World, remote: ScriptedUpstream, way: str) -> None:
    """It would keep locks and a connection's snapshot for as long as the upstream takes."""
    client = made.signed_in(world.owner)
    path, url = "/backend-api/wham/usage", f"add/{way}"
    data: dict[str, Any] = {"accept_terms": "on"}
    if way == "key":
        path, data = "/v1/models", {"kind": "openai", "label": "Key", "api_key": key()}
    elif way == "file":
        url, data["files"] = "add/files", [file(remote.mint())]
    elif way == "browser":
        address = begin(client, world.owner)
        url, data = f"add/browser/{flow_of(address)}", {"pasted": signed_in(client, remote, address)}
    else:
        url, data = f"accounts/{factories.chatgpt_account(world.organization, remote.mint()).uuid}/poll", {}
    gate = factories.unique("gate")
    remote.script({"hold": {"name": gate}}, path=path)
    with ThreadPoolExecutor(1) as threads:
        answered = threads.submit(in_thread, client, world.owner, url, data)
        try:
            deadline = time.monotonic() + 10
            while not remote.received(path=path):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            open_ = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
            with connection.cursor() as cursor:
                cursor.execute(open_)
                assert cursor.fetchone() == (0,)
        finally:
            remote.release(gate)
        assert answered.result().status_code == 302


def in_thread(client: Client, member: Member, url: str, data: dict[str, Any]) -> Any:
    try:
        return post(client, member, url, data)
    finally:
        connection.close()


class TestManyFiles:
    """More sign-ins than a page waits for are a job: it tells of each, and keeps no upload."""

    def begun(self, world: World, files: list[Any]) -> Job:
        client = made.signed_in(world.owner)
        answered = post(client, world.owner, "add/files", {"accept_terms": "on", "files": files, "floor_percent": "15"})
        job = Job.objects.get(organization=world.organization)
        assert (answered.status_code, answered["location"]) == (302, f"{made.path(world.owner, 'jobs')}#job-{job.uuid}")
        assert world.accounts() == []
        return job

    def kept(self, job: Job) -> list[str]:
        return sorted(path.name.removeprefix(job.asked["upload"]) for path in import_jobs._folder().glob(f"{job.asked['upload']}*"))

    def test_they_are_taken_in_by_a_worker_and_each_is_told(self, world: World, remote: ScriptedUpstream) -> None:
        minted = [remote.mint(email=f"person{number}@example.test") for number in range(4)]
        files = [file(minted[0], "one.json"), file([minted[1], {"tokens": None}, minted[2]], "list.json"), file(b"{", "bad.json")]
        job = self.begun(world, [*files, file(minted[3], "last.json")])
        assert job.title == "Import of 6 sign-ins"
        sealed = (import_jobs._folder() / job.asked["upload"]).read_text()
        tokens = [one["tokens"]["refresh_token"] for one in minted]
        assert not [token for token in tokens if token in sealed or token in repr(job.asked)]
        assert stat.S_IMODE((import_jobs._folder() / job.asked["upload"]).stat().st_mode) == 0o600
        assert job_running.run(job.pk) == "done"
        job.refresh_from_db()
        assert (job.done, job.total, job.result["joined"], job.result["refused"], job.file_bytes) == (6, 6, 4, 2, None)
        assert [one["source"] for one in job.result["outcomes"]] == [
            "list.json[1]", "bad.json", "one.json", "list.json[0]", "list.json[2]", "last.json",
        ]  # fmt: skip
        assert sorted((account.email, account.floor_percent) for account in world.accounts()) == [
            (f"person{number}@example.test", 15) for number in range(4)
        ]
        assert self.kept(job) == []
        page = text(made.signed_in(world.lead).get(made.path(world.lead, "jobs")).content.decode())
        assert "bad.json : bad.json is not JSON." in page
        assert "last.json · person3@example.test is in the pool" in page
        assert not [token for token in tokens if token in page or token in repr(job.result)]

    def test_a_worker_that_takes_it_up_goes_on_behind_the_last_one(
        self, world: World, remote: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        minted = [remote.mint() for _ in range(6)]
        job = self.begun(world, [file(one, f"{number}.json") for number, one in enumerate(minted)])
        real, asked = joining.add_found, []

        def dies(organization: Any, found: Any, **options: Any) -> Any:
            asked.append(found.source)
            if len(asked) == 4:
                raise OperationalError("the server went away")
            return real(organization, found, **options)

        monkeypatch.setattr(joining, "add_found", dies)
        with pytest.raises(OperationalError):
            job_running.run(job.pk)
        assert len(world.accounts()) == 3
        Job.objects.filter(pk=job.pk).update(moved_at=utc_now() - timedelta(seconds=100))
        assert job_running.run(job.pk) == "running", "three calls for one sign-in may take longer than that"
        Job.objects.filter(pk=job.pk).update(moved_at=utc_now() - timedelta(seconds=151))
        assert job_running.run(job.pk) == "done"
        job.refresh_from_db()
        assert asked == ["0.json", "1.json", "2.json", "3.json", "3.json", "4.json", "5.json"]
        assert (len(world.accounts()), job.result["joined"], self.kept(job)) == (6, 6, [])

    def test_what_is_stopped_or_refused_keeps_no_upload(self, world: World, remote: ScriptedUpstream) -> None:
        files = [remote.mint() for _ in range(6)]
        client = made.signed_in(world.owner)
        refused = post(client, world.owner, "add/files", {"files": [file(one) for one in files]})
        assert "Accept the terms first." in refused.content.decode()
        assert not Job.objects.filter(organization=world.organization).exists()
        job = self.begun(world, [file(one) for one in files])
        assert client.post(made.path(world.owner, f"jobs/{job.uuid}/stop")).status_code == 302
        assert self.kept(job) == []
        assert job_running.run(job.pk) == "stopped"
        assert world.accounts() == []
