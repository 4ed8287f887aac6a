"""Exports: started from pages, seen by whom, progress, files that add up to the page, signed links and what they do not tell."""

import csv
import io
import re
from datetime import timedelta
from urllib.parse import urlencode
from uuid import uuid4

import pytest
import time_machine
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import job_files, job_running, jobs, members
from accounts.models import AuditEvent, Job, Member, Organization
from billing import csvfile, invoicing, rolling, subscriptions, usage
from billing.invoice_files import InvoiceLinesFile
from billing.usage_report import between
from config.clock import utc_now
from quotas import limits
from quotas.models import Refusal
from tests import factories
from tests.billing.plans import plan
from tests.billing.usage_events import event_for
from tests.pages import made

pytestmark = pytest.mark.django_db(transaction=True)

EVIL = '=HYPERLINK("https://evil.example")'


class World:
    """Two teams; names that a spreadsheet would run; use by two developers, and refusals of one."""

    def __init__(self) -> None:
        self.organization: Organization = factories.organization(timezone="Europe/Berlin")
        self.owner = factories.member(self.organization, role="owner")
        self.finance = factories.member(self.organization, role="finance")
        self.team = factories.team(self.organization, "@Quality")
        self.lead = factories.member(self.organization, role="lead", team=self.team)
        self.ada = factories.member(self.organization, team=self.team)
        self.bob = factories.member(self.organization)
        self.key = factories.api_key(self.ada, name=EVIL).row
        self.other = factories.api_key(self.bob, name="laptop").row
        now = utc_now()
        for number in range(5):
            made.used(
                self.key,
                1_000_001 * (number + 1),
                at=now - timedelta(minutes=9 - number),
                model="gpt-5.5" if number % 2 else "gpt-5.4",
            )
        made.used(self.other, 70_000_007, at=now - timedelta(minutes=3), status="failed")
        Refusal.objects.create(
            organization=self.organization, team_id=self.team.pk, member_id=self.ada.pk, key_id=self.key.pk, minute=now, count=3,
            code="limit_reached", message="Your daily limit would have been passed.", last_at=now - timedelta(minutes=4),
        )  # fmt: skip

    def start(self, member: Member, what: str, /, **fields: str) -> Job:
        answered = made.signed_in(member).post(made.path(member, "jobs"), {"what": what, **fields})
        assert answered.status_code == 302, answered.content.decode()
        job = Job.objects.filter(organization=self.organization).latest("pk")
        assert answered["location"] == f"{made.path(member, 'jobs')}#job-{job.uuid}"
        return job

    def done(self, member: Member, what: str, /, **fields: str) -> tuple[Job, list[dict[str, str]]]:
        """The job, done, and its records as the download gives them."""
        job = self.start(member, what, **fields)
        assert job_running.run(job.pk) == "done", Job.objects.get(pk=job.pk).error
        job.refresh_from_db()
        return job, records(fetched(made.signed_in(member), made.path(member, f"jobs/{job.uuid}/file")))

    def range(self) -> dict[str, str]:
        today = utc_now().astimezone(csvfile.ZoneInfo("Europe/Berlin")).date()
        return {"range": "custom", "from": (today - timedelta(days=1)).isoformat(), "to": today.isoformat()}


@pytest.fixture
def world() -> World:
    return World()


def fetched(client: Client, path: str) -> str:
    answered = client.get(path)
    assert answered.status_code == 200
    return b"".join(answered.streaming_content).decode()  # type: ignore[attr-defined]


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_an_export_is_started_watched_and_fetched(world: World) -> None:
    client = made.signed_in(world.owner)
    job = world.start(world.owner, "usage_rows", **world.range())
    page = client.get(made.path(world.owner, "jobs")).content.decode()
    fragment = (
        f'id="job-{job.uuid}" data-state="waiting" hx-get="{made.path(world.owner, f"jobs/{job.uuid}")}" hx-trigger="every 3s"'
    )
    assert fragment in page
    assert "Waiting for its turn" in page
    Job.objects.filter(pk=job.pk).update(state="running", done=1_500, total=6_000)
    line = client.get(made.path(world.owner, f"jobs/{job.uuid}"), headers={"HX-Request": "true"}).content.decode()
    assert "1,500 of 6,000" in line
    assert f'<progress value="1500" max="6000" aria-labelledby="title-{job.uuid}">' in line
    assert 'hx-trigger="every 1s"' in line
    assert "<html" not in line
    early = client.get(made.path(world.owner, f"jobs/{job.uuid}/file"))
    assert (early.status_code, "The file is not ready yet." in early.content.decode()) == (410, True)
    Job.objects.filter(pk=job.pk).update(state="waiting")
    assert job_running.run(job.pk) == "done"
    line = client.get(made.path(world.owner, f"jobs/{job.uuid}"), headers={"HX-Request": "true"}).content.decode()
    assert "hx-trigger" not in line
    assert 'id="jobs-said" role="status" hx-swap-oob="true"' in line
    assert "6 records" in line
    answered = client.get(made.path(world.owner, f"jobs/{job.uuid}/file"))
    assert {name: answered[name] for name in ("Cache-Control", "Referrer-Policy", "X-Content-Type-Options", "Content-Type")} == {
        "Cache-Control": "private, no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff",
        "Content-Type": "text/csv; charset=utf-8",
    }  # fmt: skip
    assert answered["Content-Disposition"].startswith(f'attachment; filename="{world.organization.slug}-usage-')
    content = b"".join(answered.streaming_content)  # type: ignore[attr-defined]
    assert int(answered["Content-Length"]) == len(content) == Job.objects.get(pk=job.pk).file_bytes
    assert AuditEvent.objects.get(organization=world.organization, action="job.fetched").data == {
        "kind": "usage_rows",
        "by": "page",
    }
    # Who follows the address comes to the page.
    assert client.get(made.path(world.owner, f"jobs/{job.uuid}"))["location"] == f"{made.path(world.owner, 'jobs')}#job-{job.uuid}"


def test_the_files_of_usage_add_up_to_the_page_whoever_asks(world: World) -> None:
    for member, credits in (
        (world.owner, "85.000022"),
        (world.finance, "85.000022"),
        (world.lead, "15.000015"),
        (world.bob, "70.000007"),
    ):
        _, rows = world.done(member, "usage_rows", **world.range())
        assert (rows[-1]["record"], rows[-1]["credits"]) == ("total", credits)
        assert int(rows[-1]["rows"]) == len(rows) - 1
        _, sums = world.done(member, "usage_totals:day", **world.range())
        assert sums[-1]["credits"] == credits
        page = made.signed_in(member).get(f"{made.path(member, 'usage')}?{urlencode(world.range())}").content.decode()
        assert credits in re.sub(r"<[^>]+>", "", page)


def test_the_request_log_is_exported_as_it_is_filtered(world: World) -> None:
    """The page's form carries the filter; the sums of the file are those that the page names."""
    client = made.signed_in(world.lead)
    query = {"range": "7d", "member": str(world.ada.uuid)}
    page = client.get(f"{made.path(world.lead, 'requests')}?{urlencode(query)}").content.decode()
    form = re.search(r'<form method="post" action="[^"]+/jobs">(.*?)</form>', page, re.S)
    assert form is not None
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form[1]))
    fields.pop("csrfmiddlewaretoken", None)
    assert fields == {"what": "request_log", **query}
    what = fields.pop("what")
    _, found = world.done(world.lead, what, **fields)
    *rows, total = found
    assert [row["record"] for row in rows].count("refused") == 1
    assert (total["record"], total["rows"], total["credits"], total["refusals"]) == ("total", "6", "15.000015", "3")
    assert [row["admitted_at"] for row in rows] == sorted((row["admitted_at"] for row in rows), reverse=True)
    assert all(row["admitted_at_utc"].endswith("+00:00") for row in rows)
    assert {csvfile.unguarded(row["key_name"]) for row in rows} == {EVIL}
    assert {row["key_name"][0] for row in rows} == {"'"}
    assert {row["team"] for row in rows} == {"'@Quality"}
    assert {row["account"] for row in rows} == {""}
    assert "15.00 credits" in re.sub(r"<[^>]+>", "", page)
    assert "3 refused" in page
    # By model; refused ones carried another name.
    _, narrowed = world.done(world.lead, what, range="7d", model="gpt-5.4")
    assert [row["credits"] for row in narrowed] == ["5.000005", "3.000003", "1.000001", "9.000009"]
    _, own = world.done(world.ada, what, range="all")
    assert own[-1]["credits"] == "15.000015"


def test_a_long_request_log_is_written_page_by_page_without_gaps(world: World) -> None:
    from billing import labels
    from billing.usage_log import Wanted
    from quotas.request_files import RequestsFile

    file = RequestsFile(labels.sight(world.owner), Wanted(), now=utc_now(), page=2)
    text = ""
    while (piece := file.next_piece()) is not None:
        text += piece
    *rows, total = records(text)
    names = [row["request_id"] for row in rows]
    assert len(names) == len(set(names)) == int(total["rows"]) == file.count == 7
    assert total["credits"] == "85.000022"


def test_members_and_limits_are_exported_in_the_readers_reach(world: World) -> None:
    assert world.ada.user is not None
    limits.set_limit(
        world.organization, scope="member", of=world.ada.user.email, metric="credits", window="day", amount="12.5", by=None
    )
    limits.set_limit(world.organization, scope="team", of="@Quality", metric="tokens", window="week", amount="900", by=None)
    direct = records(fetched(made.signed_in(world.owner), made.path(world.owner, "members.csv")))
    _, rows = world.done(world.owner, "members")
    for row in (*direct, *rows):
        row.pop("resets_at"), row.pop("resets_at_utc")
    assert direct == rows
    by = {record: [row for row in rows if row["record"] == record] for record in ("member", "limit", "total")}
    assert len(by["member"]) == 5
    assert [(row["scope"], row["metric"], row["amount"]) for row in by["limit"]] == [
        ("member", "credits", "12.5"),
        ("team", "tokens", "900"),
    ]
    assert by["limit"][1]["limit_of"].startswith("'@Quality")
    assert by["total"][0]["rows"] == "7"
    _, of_team = world.done(world.lead, "members")
    assert {row["member_id"] for row in of_team if row["record"] == "member"} == {str(world.lead.uuid), str(world.ada.uuid)}
    assert made.signed_in(world.ada).get(made.path(world.ada, "members.csv")).status_code == 403


def test_invoice_lines_of_a_time_add_up_and_credit_notes_take_back(world: World) -> None:
    now = utc_now()
    organization = factories.organization(plan=None)
    subscription = subscriptions.start(
        organization, plan(100, price="20.00", overage="invoice", name="=Team"), now=now - timedelta(days=31)
    )
    key = factories.api_key(factories.member(organization)).row
    at = now - timedelta(days=31)
    start = subscriptions.period_of(subscription, at).start
    usage.record(
        organization.pk, [event_for(key, credits=3_000_001, funds=(3_000_001, 0, 0, 0), admitted_at=at, period_start=start)]
    )
    rolling.open_due_periods(now)
    (invoice,) = invoicing.close_due(organization.pk, now=now).invoices
    chosen = between(now - timedelta(days=1), now + timedelta(days=1), csvfile.ZoneInfo("UTC"))
    *rows, total = records("".join(iter(InvoiceLinesFile(organization, chosen).next_piece, None)))
    assert (total["amount"], total["credits"], total["currency"]) == (str(invoice.total), "3.000001", invoice.currency)
    assert [row["invoice_id"] for row in rows] == [str(invoice.uuid)] * len(rows)
    assert any(csvfile.unguarded(row["description"]).startswith("=Team") for row in rows) or rows[0]["description"].startswith(
        "'=Team"
    )
    invoicing.credit_note(invoice, reason="wrong", by=None, now=now)
    *_, total = records("".join(iter(InvoiceLinesFile(organization, chosen).next_piece, None)))
    assert total["amount"] == "0.00"
    later = between(now + timedelta(days=2), now + timedelta(days=3), csvfile.ZoneInfo("UTC"))
    (total,) = records("".join(iter(InvoiceLinesFile(organization, later).next_piece, None)))
    assert (total["rows"], total["amount"]) == ("0", "0.00")


def test_the_audit_trail_is_an_owners_to_export(world: World) -> None:
    job, rows = world.done(world.owner, "audit_trail")
    *events, total = rows
    assert (total["number"], total["time_utc"]) == ("total", str(len(events)))
    assert (events[0]["action"], events[0]["object"]) == ("job.started", str(job.uuid))
    assert [row["previous"] for row in events[:-1]] == [row["digest"] for row in events[1:]]
    refused = made.signed_in(world.finance).post(made.path(world.finance, "jobs"), {"what": "audit_trail"})
    assert refused.status_code == 403


@pytest.mark.parametrize(
    ("role", "what", "status"),
    [
        ("ada", "ledger", 403), ("ada", "invoice_lines", 403), ("ada", "members", 403),
        ("ada", "usage_totals:account", 403), ("lead", "ledger", 403), ("lead", "usage_totals:account", 403),
        ("finance", "members", 403), ("finance", "request_log", 403), ("owner", "no_such", 404),
        ("owner", "monthly_files", 404), ("owner", "credential_files", 404), ("owner", "usage_totals:x", 404),
    ],
)  # fmt: skip
def test_what_the_role_may_not_have_is_not_started(world: World, role: str, what: str, status: int) -> None:
    member: Member = getattr(world, role)
    answered = made.signed_in(member).post(made.path(member, "jobs"), {"what": what, **world.range()})
    assert answered.status_code == status
    assert not Job.objects.filter(organization=world.organization).exists()
    page = made.signed_in(member).get(made.path(member, "jobs")).content.decode()
    assert f'<option value="{what}"' not in page


def test_a_wrong_time_starts_nothing_and_says_why(world: World) -> None:
    answered = made.signed_in(world.owner).post(
        made.path(world.owner, "jobs"), {"what": "usage_rows", "range": "custom", "from": "x", "to": ""}
    )
    assert answered.status_code == 400
    assert "Nothing was started." in answered.content.decode()
    assert not Job.objects.filter(organization=world.organization).exists()


def test_who_sees_stops_and_fetches_a_job(world: World) -> None:
    own, _ = world.done(world.ada, "usage_rows", **world.range())
    money, _ = world.done(world.finance, "ledger", range="all")
    stranger = factories.member(factories.organization(), role="owner")
    expected = {
        world.ada: (200, 404), world.bob: (404, 404), world.lead: (404, 404), world.finance: (404, 200), world.owner: (404, 200),
        stranger: (404, 404),
    }  # fmt: skip
    for member, statuses in expected.items():
        client = made.signed_in(member)
        for job, status in zip((own, money), statuses, strict=True):
            answered = client.get(made.path(member, f"jobs/{job.uuid}/file"))
            assert answered.status_code == status
            answered.close()
            assert client.get(made.path(member, f"jobs/{job.uuid}"), headers={"HX-Request": "true"}).status_code == status
            listed = client.get(made.path(member, "jobs")).content.decode()
            assert (f"job-{job.uuid}" in listed) is (status == 200)
    waiting = world.start(world.finance, "invoice_lines", **world.range())
    of_team = factories.member(world.organization, role="finance", team=world.team)
    assert made.signed_in(of_team).post(made.path(of_team, f"jobs/{waiting.uuid}/stop")).status_code == 404
    other = factories.member(world.organization, role="finance")
    assert made.signed_in(other).post(made.path(other, f"jobs/{waiting.uuid}/stop")).status_code == 403
    waiting.refresh_from_db()
    assert waiting.state == "waiting"
    assert made.signed_in(world.owner).post(made.path(world.owner, f"jobs/{waiting.uuid}/stop")).status_code == 302
    waiting.refresh_from_db()
    assert waiting.state == "stopped"
    assert AuditEvent.objects.get(organization=world.organization, action="job.stopped").actor == world.owner.user
    assert made.signed_in(world.ada).get(made.path(world.ada, f"jobs/{uuid4()}/file")).status_code == 404


def test_another_reach_since_takes_the_file_away(world: World) -> None:
    """Who led the whole organization and now leads a team may not keep the file of the whole."""
    boss = factories.member(world.organization, role="lead")
    job, rows = world.done(boss, "usage_rows", **world.range())
    assert rows[-1]["credits"] == "85.000022"
    Member.objects.filter(pk=boss.pk).update(team=world.team)
    client = made.signed_in(boss)
    assert client.get(made.path(boss, f"jobs/{job.uuid}/file")).status_code == 403
    assert "your role has changed since: start it again" in client.get(made.path(boss, "jobs")).content.decode()


def test_a_signed_link_opens_one_file_and_nothing_else(world: World) -> None:
    job, _ = world.done(world.finance, "ledger", range="all")
    token = jobs.link(job, world.finance)
    nobody = Client()
    answered = nobody.get(f"/files/{token}")
    assert answered.status_code == 200
    assert {"private", "no-store"} <= set(answered["Cache-Control"].split(", "))
    assert answered["Referrer-Policy"] == "no-referrer"
    assert answered["Content-Disposition"] == f'attachment; filename="{job.file_name}"'
    assert b"".join(answered.streaming_content) == job_files.path(job.uuid).read_bytes()  # type: ignore[attr-defined]
    head = nobody.head(f"/files/{token}")
    assert (head.status_code, head.content) == (200, b"")
    assert nobody.post(f"/files/{token}").status_code == 405
    event = AuditEvent.objects.get(organization=world.organization, action="job.fetched", data__by="link")
    assert event.actor == world.finance.user
    wrong = nobody.get(f"/files/{token[:-2]}xx")
    gone = nobody.get(f"/files/{jobs.link(Job(uuid=uuid4()), world.finance)}")
    assert wrong.status_code == gone.status_code == 404
    assert wrong["Referrer-Policy"] == "no-referrer"
    assert world.organization.slug not in wrong.content.decode()
    assert world.organization.name not in gone.content.decode()
    with time_machine.travel(utc_now() + timedelta(days=15)):
        expired = nobody.get(f"/files/{token}")
    assert expired.status_code == 410
    assert "This link has expired" in expired.content.decode()
    assert f'href="/o/{world.organization.slug}/jobs"' in expired.content.decode()
    jobs.remove_file(job)
    removed = nobody.get(f"/files/{token}")
    assert (removed.status_code, "The file is not there any more" in removed.content.decode()) == (410, True)
    members.remove(world.finance, by=world.owner.user, now=utc_now())
    assert nobody.get(f"/files/{token}").status_code == 404


def test_the_number_of_queries_does_not_grow(world: World) -> None:
    client = made.signed_in(world.owner)
    world.start(world.owner, "ledger", range="all")
    client.get(made.path(world.owner, "jobs"))
    with CaptureQueriesContext(connection) as few:
        client.get(made.path(world.owner, "jobs"))
    for number in range(6):
        world.start(world.finance, "invoice_lines", **{**world.range(), "from": f"2026-01-0{number + 1}"})
    with CaptureQueriesContext(connection) as many:
        assert client.get(made.path(world.owner, "jobs")).status_code == 200
    assert len(many) == len(few)
