"""Adding accounts on the page by files and by keys; many files as a job; no transaction while an upstream is asked."""

import json
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test import Client

from accounts import job_running
from accounts.models import Job, Member
from config.clock import utc_now
from routing import import_jobs, joining
from tests import factories
from tests.pages import made
from tests.pages.adding import World, begin, file, flow_of, key, lead_to, notice, post, signed_in, text
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def remote(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    return lead_to(upstream, settings)


@pytest.fixture
def world() -> World:
    return World()


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
