"""Plan & invoices: who sees it, what it says, how a plan is changed, and its files."""

import csv
import html
import io
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts.models import Member
from billing import changes, invoicing, ledger, rolling, statement, subscriptions, usage
from billing.models import Invoice, LedgerEntry, Plan, Subscription
from config.clock import utc_now
from tests import factories
from tests.api.calls import Caller
from tests.billing.plans import CREDIT, plan
from tests.billing.usage_events import event_for
from tests.pages import made

pytestmark = pytest.mark.django_db

NBSP = "\N{NO-BREAK SPACE}"


class World:
    """An organization whose last period is invoiced, with use from the quota and above it."""

    def __init__(self) -> None:
        self.now = utc_now()
        self.plan = plan(100, price="20.00", overage="invoice", overage_cap=50 * CREDIT, name="Team")
        self.organization = factories.organization(plan=None)
        self.subscription = subscriptions.start(self.organization, self.plan, now=self.now - timedelta(days=31))
        self.key = factories.api_key(factories.member(self.organization)).row
        at = self.now - timedelta(days=31)
        start = subscriptions.period_of(self.subscription, at).start
        events = [
            event_for(self.key, credits=CREDIT * 3, funds=(3 * CREDIT, 0, 0, 0), admitted_at=at, period_start=start),
            event_for(self.key, credits=1_500_000, funds=(0, 0, 1_500_000, 0), admitted_at=at, period_start=start),
        ]
        usage.record(self.organization.pk, events)
        rolling.open_due_periods(self.now)
        (self.invoice,) = invoicing.close_due(self.organization.pk, now=self.now).invoices

    def member(self, role: str = "owner", **fields: Any) -> Member:
        return factories.member(self.organization, role=role, **fields)

    def page(self, member: Member | None = None, page: str = "invoices") -> str:
        answered = made.signed_in(member or self.member()).get(made.path(member or self.member(), page))
        assert answered.status_code == 200
        return answered.content.decode()


@pytest.fixture
def world() -> World:
    return World()


def body(answered: Any) -> str:
    content = b"".join(answered.streaming_content) if answered.streaming else answered.content
    return str(content.decode())


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def hidden(page: str) -> dict[str, str]:
    """The fields of the form that confirms a preview."""
    return dict(re.findall(r'<input type="hidden" name="(plan|when|promise)" value="([^"]*)"', page))


@pytest.mark.parametrize(
    ("role", "has_team", "status"),
    [("owner", False, 200), ("finance", False, 200), ("finance", True, 403), ("lead", False, 403), ("developer", False, 403)],
)
def test_money_is_for_owners_and_finance_of_the_whole(world: World, role: str, has_team: bool, status: int) -> None:
    """J6 for money: the rule is asked by every door, and the navigation says the same."""
    team = factories.team(world.organization) if has_team else None
    member = world.member(role, team=team)
    client = made.signed_in(member)
    paths = ["invoices", f"invoices/{world.invoice.uuid}", f"invoices/{world.invoice.uuid}.csv", "invoices/ledger.csv"]
    assert [client.get(made.path(member, one)).status_code for one in paths] == [status] * 4
    overview = client.get(made.path(member, "overview")).content.decode()
    assert (f"{made.path(member, 'invoices')}" in overview) is (status == 200)


def test_the_page_tells_plan_period_credits_lots_ledger_and_invoices(world: World) -> None:
    ledger.grant(
        world.organization, 7 * CREDIT, expires_at=world.now + timedelta(days=3), reason="Welcome", actor=None,
        reference="welcome", now=world.now,
    )  # fmt: skip
    page = world.page()
    assert "<strong>100 of 100 credits</strong> of Team are left" in page
    assert "<strong>7.00</strong> of what was granted and bought" in page
    assert "on the invoice at 0.05 USD a credit" in page
    assert world.invoice.frozen["number"] in page
    assert "20.08 USD" in page
    assert "Welcome" in page
    assert re.findall(r'data-entry="([^"]+)"', page) == [
        str(uuid)
        for uuid in LedgerEntry.objects.for_organization(world.organization).order_by("-id").values_list("uuid", flat=True)
    ]


def test_an_organization_without_a_plan_is_told_so() -> None:
    member = factories.member(factories.organization(plan=None), role="owner")
    page = made.signed_in(member).get(made.path(member, "invoices")).content.decode()
    assert "There is no active plan" in page
    assert "No invoice yet" in page


def test_a_period_that_nobody_opened_is_shown_all_the_same(world: World) -> None:
    world.subscription.periods.filter(closed_at=None).update(
        starts_at=world.now + timedelta(days=40), ends_at=world.now + timedelta(days=50)
    )
    count = world.subscription.periods.count()
    assert "<strong>100 of 100 credits</strong>" in world.page()
    assert world.subscription.periods.count() == count


def test_the_ledger_is_paged_by_its_entries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement, "PAGE", 2)
    member, seen, query = world.member(), [], ""
    for _ in range(20):
        page = world.page(member, f"invoices{query}")
        seen += re.findall(r'data-entry="([^"]+)"', page)
        older = re.search(r'href="\?before=([0-9a-f-]+)#ledger"', page)
        if older is None:
            break
        query = f"?before={older[1]}"
    rows = LedgerEntry.objects.for_organization(world.organization).order_by("-id").values_list("uuid", flat=True)
    assert seen == [str(uuid) for uuid in rows]
    assert len(seen) == 5
    without = world.page(member, "invoices?entries=moves")
    assert "Usage from quota" not in without.partition('id="ledger"')[2]


def test_an_address_that_names_no_entry_is_the_first_page(world: World) -> None:
    stranger = World()
    foreign = LedgerEntry.objects.for_organization(stranger.organization).order_by("id").values_list("uuid", flat=True)[0]
    first = re.findall(r'data-entry="([^"]+)"', world.page())
    for before in ("x", str(uuid4()), str(foreign)):
        assert re.findall(r'data-entry="([^"]+)"', world.page(page=f"invoices?before={before}")) == first


def test_the_queries_do_not_grow_with_the_rows(world: World) -> None:
    member = world.member()
    client = made.signed_in(member)

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert client.get(made.path(member, "invoices")).status_code == 200
        return len(captured)

    client.get(made.path(member, "invoices"))
    before = queries()
    for number in range(5):
        subscriptions.add_seat(world.member("developer"), world.plan, by=None, now=world.now)
        ledger.grant(
            world.organization, CREDIT, expires_at=None, reason="More", actor=None, reference=f"more-{number}", now=world.now
        )
        invoicing.credit_note(world.invoice, reason="A cent", by=None, now=world.now, amount=Decimal("0.01"))
    assert queries() == before


# ------------------------------------------------------------------------------------------------------------- the plan


def test_an_owner_changes_the_plan_by_preview_and_confirmation(world: World) -> None:
    owner = world.member()
    client = made.signed_in(owner)
    to = plan(500, price="80.00", name="Large")
    expected = changes.preview_change(world.subscription, to, now=world.now)
    page = client.get(made.path(owner, "invoices/plan"), {"plan": to.slug, "when": "now"}).content.decode()
    assert f'id="price-difference">{expected.price_difference} USD' in page
    assert world.subscription.plan == Plan.objects.get(pk=world.plan.pk)
    answered = client.post(made.path(owner, "invoices/plan"), hidden(page))
    assert (answered.status_code, answered["Location"]) == (302, made.path(owner, "invoices"))
    world.subscription.refresh_from_db()
    assert world.subscription.plan == to
    period = world.subscription.periods.get(closed_at=None)
    assert (period.quota, period.plan) == (expected.quota_after, to)


def test_the_next_plan_is_announced_and_can_be_taken_back(world: World) -> None:
    owner = world.member()
    client = made.signed_in(owner)
    to = plan(500, price="80.00", name="Large")
    page = client.get(made.path(owner, "invoices/plan"), {"plan": to.slug, "when": "next"}).content.decode()
    client.post(made.path(owner, "invoices/plan"), hidden(page))
    world.subscription.refresh_from_db()
    assert (world.subscription.plan, world.subscription.next_plan) == (world.plan, to)
    assert "Large takes over" in client.get(made.path(owner, "invoices")).content.decode()
    client.post(made.path(owner, "invoices/plan/keep"))
    world.subscription.refresh_from_db()
    assert world.subscription.next_plan is None


@pytest.mark.parametrize("promise", ["", "another"])
def test_what_was_not_previewed_is_not_done(world: World, promise: str) -> None:
    owner = world.member()
    to = plan(500, price="80.00")
    answered = made.signed_in(owner).post(made.path(owner, "invoices/plan"), {"plan": to.slug, "when": "now", "promise": promise})
    assert answered.status_code == 409
    assert "Look at the new preview" in answered.content.decode()
    world.subscription.refresh_from_db()
    assert world.subscription.plan == world.plan


def test_finance_sees_the_plan_and_cannot_change_it(world: World) -> None:
    finance = world.member("finance")
    client = made.signed_in(finance)
    to = plan(500)
    assert "Change the plan" not in client.get(made.path(finance, "invoices")).content.decode()
    preview = {"plan": to.slug, "when": "now", "promise": changes.preview_change(world.subscription, to, now=world.now).promise}
    assert client.get(made.path(finance, "invoices/plan"), preview).status_code == 403
    assert client.post(made.path(finance, "invoices/plan"), preview).status_code == 403
    assert client.post(made.path(finance, "invoices/plan/keep")).status_code == 403
    world.subscription.refresh_from_db()
    assert world.subscription.plan == world.plan


@pytest.mark.parametrize("asked", [{"plan": "no-such-plan"}, {"plan": "", "when": "now"}, {"when": "yesterday"}])
def test_an_unknown_choice_is_not_found(world: World, asked: dict[str, str]) -> None:
    owner = world.member()
    assert made.signed_in(owner).get(made.path(owner, "invoices/plan"), {"plan": "plus", **asked}).status_code == 404


def test_a_plan_without_a_quota_is_neither_offered_nor_taken(world: World) -> None:
    owner = world.member()
    client = made.signed_in(owner)
    assert 'value="enterprise"' not in client.get(made.path(owner, "invoices")).content.decode()
    answered = client.post(made.path(owner, "invoices/plan"), {"plan": "enterprise", "when": "now", "promise": "x"})
    assert answered.status_code == 400
    assert "has no quota yet" in answered.content.decode()


def test_a_plan_that_was_made_for_one_customer_is_nobody_elses(world: World) -> None:
    """Neither its name is shown nor can it be taken; the page answers as for a plan that does not exist."""
    secret = plan(7, name="Made for Another", is_offered=False)
    owner = world.member()
    client = made.signed_in(owner)
    assert "Made for Another" not in client.get(made.path(owner, "invoices")).content.decode()
    before = Subscription.objects.get(organization=owner.organization, ended_at=None).plan_id
    for method in (client.get, client.post):
        answered = method(made.path(owner, "invoices/plan"), {"plan": secret.slug, "when": "now", "promise": "x"})
        assert answered.status_code == 404
    assert Subscription.objects.get(organization=owner.organization, ended_at=None).plan_id == before


# ---------------------------------------------------------------------------------------------------------------- files


def test_an_invoice_is_printed_as_it_was_issued(world: World) -> None:
    page = world.page(page=f"invoices/{world.invoice.uuid}")
    assert f"Invoice {world.invoice.frozen['number']}" in page
    assert 'id="total">20.08 USD' in page
    assert 'id="credits">4<span class="micro">.500000</span>' in page
    assert "css/invoice" in page
    assert not re.search(r"<style|style=|onclick", page)
    note = invoicing.credit_note(world.invoice, reason="An outage", by=None, now=world.now, amount=Decimal("5.00"))
    assert f"is taken back from {world.invoice.frozen['number']}" in world.page(page=f"invoices/{note.uuid}")
    assert f"{note.frozen['number']}</a> (5.00 USD)" in world.page(page=f"invoices/{world.invoice.uuid}")


@pytest.mark.parametrize(
    ("language", "total", "quota", "overage"),
    [
        ("en", "12,345.67", "2,500,000", "1,234.50"),
        ("ru", f"12{NBSP}345,67", f"2{NBSP}500{NBSP}000", f"1{NBSP}234,50"),
        ("vi", "12.345,67", "2.500.000", "1.234,50"),
    ],
)
def test_large_sums_are_set_apart_on_pages_and_plain_in_files_and_answers(
    language: str, total: str, quota: str, overage: str
) -> None:
    now = utc_now()
    large = plan(2_500_000, price="12345.67", overage="invoice", overage_price="1234.5", name="Vast")
    organization = factories.organization(plan=None)
    subscriptions.start(organization, large, now=now - timedelta(days=31))
    rolling.open_due_periods(now)
    (invoice,) = invoicing.close_due(organization.pk, now=now).invoices
    owner = factories.member(organization, role="owner")
    assert owner.user is not None
    owner.user.language = language
    owner.user.save()
    client = made.signed_in(owner)
    pages = [client.get(made.path(owner, one)).content.decode() for one in ("invoices", f"invoices/{invoice.uuid}")]
    page, paper = (html.unescape(one) for one in pages)
    assert f'<td class="num nowrap">{total} USD</td>' in page
    assert f'<dd class="note">{total} USD' in page
    assert quota in page
    assert f"{overage} USD" in page
    assert f'id="total">{total} USD' in paper
    assert f'<td class="num">{total}</td>' in paper
    *_lines, sums = records(body(client.get(made.path(owner, f"invoices/{invoice.uuid}.csv"))))
    assert sums["amount"] == "12345.67"
    assert Caller(owner).get(f"invoices/{invoice.uuid}").json()["total"] == "12345.67"


def test_an_invoices_file_sums_to_its_total(world: World) -> None:
    owner = world.member()
    answered = made.signed_in(owner).get(made.path(owner, f"invoices/{world.invoice.uuid}.csv"))
    assert answered["Content-Type"] == "text/csv; charset=utf-8"
    *lines, total = records(body(answered))
    assert [(line["line"], line["credits"], line["amount"]) for line in lines] == [
        ("plan", "0", "20.00"), ("usage_quota", "3", "0.00"), ("overage", "1.5", "0.08"),
    ]  # fmt: skip
    assert (total["record"], total["rows"], total["credits"], total["amount"]) == ("total", "3", "4.5", "20.08")
    assert sum(Decimal(line["amount"]) for line in lines) == Decimal(total["amount"])


def test_what_is_written_in_a_file_is_no_formula(world: World) -> None:
    """I1: a plan's name and a note's reason are text, also in a spreadsheet."""
    note = invoicing.credit_note(world.invoice, reason='=HYPERLINK("http://x","y")', by=None, now=world.now)
    owner = world.member()
    text = body(made.signed_in(owner).get(made.path(owner, f"invoices/{note.uuid}.csv")))
    assert records(text)[0]["description"] == '\'=HYPERLINK("http://x","y")'


def test_the_ledgers_file_has_every_entry_and_the_sum_of_what_was_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statement, "FILE_PAGE", 2)
    owner = world.member()
    text = body(made.signed_in(owner).get(made.path(owner, "invoices/ledger.csv"), {"bom": "1"}))
    assert text.startswith("\ufeffrecord,")
    *lines, total = records(text.removeprefix("\ufeff"))
    rows = list(LedgerEntry.objects.for_organization(world.organization).order_by("id"))
    assert [line["entry_id"] for line in lines] == [str(row.uuid) for row in rows]
    assert (total["record"], total["rows"], total["used"]) == ("total", str(len(rows)), "4.5")
    assert sum(Decimal(line["used"] or 0) for line in lines) == Decimal("4.5")
    assert {line["member_id"] for line in lines if line["kind"] == "overage"} == {str(world.key.member.uuid)}


def test_a_foreign_invoice_is_as_a_missing_one(world: World) -> None:
    """J5: 404 for both, on every route."""
    stranger = factories.member(factories.organization(), role="owner")
    client: Client = made.signed_in(stranger)
    for uuid in (world.invoice.uuid, uuid4()):
        for end in ("", ".csv"):
            assert client.get(made.path(stranger, f"invoices/{uuid}{end}")).status_code == 404
    assert Invoice.objects.for_organization(stranger.organization).count() == 0
