"""/api/v1/exports: started within what the token may read, found again, stopped, and fetched by a link that ends."""

from typing import Any

import pytest
from django.test import Client

from accounts import api_tokens, job_running, jobs
from accounts.models import Job
from config import scope
from config.clock import utc_now
from quotas import job_kinds as own_kinds
from tests import factories, secrets
from tests.api.calls import Caller, code

pytestmark = pytest.mark.django_db(transaction=True)


class World:
    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = self.caller("owner")

    def caller(self, role: str, **fields: Any) -> Caller:
        return Caller(factories.member(self.organization, role=role), **{"scopes": api_tokens.SCOPES, **fields})


@pytest.fixture
def world(settings: Any, tmp_path: Any) -> World:
    settings.WEIR_VAR = str(tmp_path)
    return World()


def ids(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def finish(uuid: str) -> None:
    job_running.run(Job.objects.get(uuid=uuid).pk)


def test_the_ledger_is_exported_and_fetched_without_a_token(world: World) -> None:
    answer = world.owner.post("exports", {"kind": "ledger"}, key="one")
    assert answer.status_code == 202, answer.content
    started = answer.json()
    assert (started["kind"], started["title"], started["is_own"]) == ("ledger", "The whole ledger", True)
    assert world.owner.post("exports", {"kind": "ledger"}).json()["id"] == started["id"]
    finish(started["id"])
    done = world.owner.get(f"exports/{started['id']}").json()
    assert (done["state"], done["rows"], done["has_file"]) == ("done", 1, True)
    link = world.owner.post(f"exports/{started['id']}/link").json()
    assert (link["file_name"], link["file_bytes"]) == (done["file_name"], done["file_bytes"])
    token = secrets.register(link["url"].rsplit("/", 1)[1], "signed link")
    fetched = Client().get(f"/files/{token}")
    assert fetched.status_code == 200
    content = b"".join(fetched.streaming_content)
    assert len(content) == done["file_bytes"]
    assert content.startswith(b"record,rows,occurred_at")


def test_what_the_token_may_not_read_it_may_not_export(world: World) -> None:
    caller = world.caller("owner", scopes=["exports:write", "usage:read"])
    for body in ({"kind": "ledger"}, {"kind": "members"}, {"kind": "request_log"}, {"kind": "invoice_lines"}):
        assert code(caller.post("exports", body)) == (403, "insufficient_scope"), body
    assert not Job.objects.filter(organization=world.organization).exists()
    assert caller.post("exports", {"kind": "usage_rows"}).status_code == 202
    ledger = world.owner.post("exports", {"kind": "ledger"}).json()["id"]
    assert ledger in ids(caller.get("exports"))
    assert code(caller.post(f"exports/{ledger}/link")) == (403, "insufficient_scope")


def test_a_file_that_is_not_started_here_takes_the_scope_of_what_is_in_it(world: World) -> None:
    """The monthly export is about money, whoever made it; a kind without a scope is not for tokens."""
    now = utc_now()
    about = {"month": "2026-10", "files": ["ledger"]}
    job = jobs.start_for(world.organization, kind="monthly_files", title="Monthly", asked=about, file_name="weir.zip", now=now)
    assert job_running.run(job.pk) == "done"
    trail = own_kinds.start_audit_trail(world.owner.member, now=now)
    assert job_running.run(trail.pk) == "done"
    narrow = world.caller("owner", scopes=["exports:write", "usage:read"])
    for one in (job, trail):
        assert code(narrow.post(f"exports/{one.uuid}/link")) == (403, "insufficient_scope")
        assert world.owner.post(f"exports/{one.uuid}/link").status_code == 200
    Job.objects.filter(pk=job.pk).update(kind="credential_files")
    assert world.owner.post(f"exports/{job.uuid}/link").status_code == 403


def test_what_the_role_may_not_see_it_may_not_export(world: World) -> None:
    developer, finance = world.caller("developer"), world.caller("finance")
    for kind in ("ledger", "members", "invoice_lines"):
        assert code(developer.post("exports", {"kind": kind})) == (403, "permission_denied"), kind
    assert code(finance.post("exports", {"kind": "request_log"})) == (403, "permission_denied")
    assert code(developer.post("exports", {"kind": "usage_totals", "by": "account"}))[0] == 403
    assert not Job.objects.filter(organization=world.organization).exists()


def test_each_sees_their_own_and_what_their_role_shares(world: World) -> None:
    developer = world.caller("developer")
    own = developer.post("exports", {"kind": "usage_totals", "by": "day", "start": "2026-11-01", "end": "2026-11-07"}).json()
    assert own["title"] == "Usage by day, 2026-11-01 to 2026-11-07"
    shared = world.owner.post("exports", {"kind": "ledger"}).json()
    assert ids(developer.get("exports")) == [own["id"]]
    assert ids(world.owner.get("exports")) == [shared["id"]]
    assert ids(world.caller("finance").get("exports")) == [shared["id"]]
    for other in (world.owner, World().owner):
        assert code(other.get(f"exports/{own['id']}")) == (404, "not_found")
    assert code(world.caller("finance").post(f"exports/{shared['id']}/stop")) == (403, "permission_denied")
    assert Job.objects.get(uuid=shared["id"]).state == "waiting"
    assert developer.post(f"exports/{own['id']}/stop").json()["state"] == "stopped"
    assert ids(developer.get("exports", state="waiting")) == []
    refused = developer.post(f"exports/{own['id']}/link")
    assert code(refused) == (410, "file_not_there")


def test_a_lost_right_loses_the_file(world: World) -> None:
    finance = world.caller("finance")
    made = finance.post("exports", {"kind": "ledger"}).json()["id"]
    finish(made)
    assert finance.post(f"exports/{made}/link").status_code == 200
    with scope.everything():
        type(finance.member).objects.filter(pk=finance.member.pk).update(role="developer")
    assert finance.get(f"exports/{made}").json()["has_file"] is False
    assert code(finance.post(f"exports/{made}/link")) == (403, "permission_denied")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"kind": "ledger", "by": "day"}, "by"),
        ({"kind": "members", "start": "2026-11-01", "end": "2026-11-02"}, "start"),
        ({"kind": "usage_totals"}, "by"),
        ({"kind": "ledger", "start": "2026-11-01"}, "end"),
        ({"kind": "usage_rows", "status": "ok"}, "status"),
    ],
)
def test_what_does_not_belong_to_the_kind_is_refused(world: World, body: dict[str, str], param: str) -> None:
    """A19."""
    answer = world.owner.post("exports", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not Job.objects.filter(organization=world.organization).exists()


def test_the_request_log_is_exported_by_its_filter(world: World) -> None:
    member = factories.member(world.organization)
    body = {"kind": "request_log", "member_id": str(member.uuid), "status": "failed"}
    started = world.owner.post("exports", body)
    assert started.status_code == 202, started.content
    asked = Job.objects.get(uuid=started.json()["id"]).asked
    assert asked["wanted"] == {"member_id": member.pk, "status": "failed"}
    foreign = factories.member(factories.organization())
    assert code(world.owner.post("exports", {"kind": "request_log", "member_id": str(foreign.uuid)})) == (404, "not_found")
    assert set(jobs.kinds()) >= {"request_log"}
