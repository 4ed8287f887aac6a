"""/api/v1/plan, credits, ledger, invoices: exact amounts, a change of plan by preview and once, gapless pieces."""

from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing import changes, invoicing, ledger, subscriptions
from billing.models import LedgerEntry
from tests import factories
from tests.api.calls import Caller, code
from tests.billing.plans import CREDIT, plan
from tests.flows.untouched import rows_of
from tests.pages.test_invoices import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def owner(world: World) -> Caller:
    return Caller(world.member())


def pieces(caller: Caller, path: str, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page = caller.get(path, **query).json()
    while True:
        found += page["results"]
        if page["next"] is None:
            return found
        page = caller.get(path, **dict(parse_qsl(urlsplit(page["next"]).query))).json()


def test_the_plan_and_its_period(world: World, owner: Caller) -> None:
    found = owner.get("plan").json()["subscription"]
    assert (found["plan"]["name"], found["plan"]["quota"], found["plan"]["price"]) == ("Team", "100", "20.00")
    assert (found["plan"]["overage_policy"], found["plan"]["overage_price"]) == ("invoice", "0.050000")
    period = found["period"]
    assert (period["quota"], period["used_from_quota"], period["left"], period["overage"]) == ("100", "0", "100", "0")
    assert (found["next_plan"], found["next_plan_at"]) == (None, None)
    finance = Caller(world.member("finance"))
    assert finance.get("plan").json()["subscription"] == found
    without = factories.member(factories.organization(plan=None), role="owner")
    assert Caller(without).get("plan").json() == {"subscription": None}


def test_a_plan_is_changed_as_previewed_and_once(world: World, owner: Caller) -> None:
    """C21: the same key again is the same answer, with another body it is refused, without one nothing is done."""
    to = plan(500, price="80.00", name="Large")
    expected = changes.preview_change(world.subscription, to, now=world.now)
    preview = owner.get("plan/change", plan=to.slug).json()
    assert (preview["plan_now"], preview["plan_after"], preview["when"]) == ("Team", "Large", "now")
    assert preview["price_difference"] == str(expected.price_difference)
    assert preview["promise"] == expected.promise
    body = {"plan": to.slug, "when": "now", "promise": preview["promise"]}
    before = rows_of(world.organization)
    assert code(owner.post("plan/change", body)) == (400, "idempotency_key_required")
    assert code(owner.post("plan/change", {**body, "promise": "another"}, key="a")) == (409, "change_moved")
    assert code(Caller(world.member("finance"), scopes=["money:write"]).post("plan/change", body, key="b")) == (
        403,
        "permission_denied",
    )
    assert code(owner.post("plan/change", {**body, "plan": "no-such"}, key="c")) == (404, "not_found")
    after = {
        name: rows for name, rows in rows_of(world.organization).items() if name not in ("accounts_member", "accounts_apitoken")
    }
    assert {name: before[name] for name in after if name != "accounts_auditevent"} == {
        name: rows for name, rows in after.items() if name != "accounts_auditevent"
    }
    changed = owner.post("plan/change", body, key="once")
    assert changed.status_code == 200, changed.content
    assert changed.json()["plan_after"] == "Large"
    again = owner.post("plan/change", body, key="once")
    assert (again.json(), again["Idempotency-Replayed"]) == (changed.json(), "true")
    assert code(owner.post("plan/change", {**body, "when": "next"}, key="once")) == (422, "idempotency_mismatch")
    world.subscription.refresh_from_db()
    assert world.subscription.plan == to
    assert LedgerEntry.objects.filter(organization=world.organization, reason="Team to Large").count() == 1


def test_the_next_plan_is_announced_and_taken_back(world: World, owner: Caller) -> None:
    to = plan(500, price="80.00", name="Large")
    preview = owner.get("plan/change", plan=to.slug, when="next").json()
    made = owner.post("plan/change", {"plan": to.slug, "when": "next", "promise": preview["promise"]}, key="1")
    assert made.status_code == 200, made.content
    assert owner.get("plan").json()["subscription"]["next_plan"]["name"] == "Large"
    assert code(owner.post("plan/keep")) == (400, "idempotency_key_required")
    assert owner.post("plan/keep", key="2").json()["subscription"]["next_plan"] is None
    world.subscription.refresh_from_db()
    assert world.subscription.next_plan is None


def test_plans_of_one_customer_are_nobody_elses(world: World, owner: Caller) -> None:
    hidden = plan(500, name="Acme only", is_offered=False)
    offered = plan(500, name="Large")
    slugs = [one["slug"] for one in owner.get("plans").json()["plans"]]
    assert slugs[0] == world.plan.slug
    assert offered.slug in slugs
    assert hidden.slug not in slugs
    assert owner.get("plan/change", plan=hidden.slug).json() == owner.get("plan/change", plan="no-such").json()


def test_credits_and_lots_are_decimal_text(world: World, owner: Caller) -> None:
    expires = world.now + timedelta(days=3)
    lot = ledger.grant(
        world.organization, 7_250_001, expires_at=expires, reason="Welcome", actor=None, reference="welcome", now=world.now
    )
    balance = owner.get("credits").json()
    assert (balance["granted"], balance["drawn"], balance["left"], balance["expiring"]) == ("7.250001", "0", "7.250001", "7.250001")
    [found] = owner.get("credit-lots").json()["results"]
    assert (found["kind"], found["amount"], found["left"], found["note"]) == ("grant", "7.250001", "7.250001", lot.note or None)


def test_the_ledger_in_pieces_adds_up_to_what_was_used(world: World, owner: Caller) -> None:
    entries = pieces(owner, "ledger", limit="2")
    rows = list(LedgerEntry.objects.for_organization(world.organization).order_by("-id"))
    assert [one["id"] for one in entries] == [str(row.uuid) for row in rows]
    assert sum(Decimal(one["used"]) for one in entries) == Decimal("4.5")
    used = next(one for one in entries if one["kind"] == "overage")
    assert (used["amount"], used["debit"], used["credit"]) == ("1.5", "usage", "receivable")
    assert used["member_id"] == str(world.key.member.uuid)
    assert {one["kind"] for one in pieces(owner, "ledger", with_usage="false")} == {"allowance", "expiry"}
    assert [one["id"] for one in pieces(owner, "ledger", kind="overage")] == [used["id"]]


def test_an_invoice_as_it_was_issued(world: World, owner: Caller) -> None:
    note = invoicing.credit_note(world.invoice, reason="A cent", by=None, now=world.now, amount=Decimal("0.01"))
    listed = owner.get("invoices").json()["results"]
    assert [(one["kind"], one["total"]) for one in listed] == [("credit_note", "0.01"), ("invoice", "20.08")]
    assert listed[0]["corrects"] == world.invoice.frozen["number"]
    assert [one["id"] for one in owner.get("invoices", kind="invoice").json()["results"]] == [str(world.invoice.uuid)]
    found = owner.get(f"invoices/{world.invoice.uuid}").json()
    assert {name: found[name] for name in listed[1]} == listed[1]
    assert sum(Decimal(line["amount"]) for line in found["lines"]) == Decimal("20.08")
    assert found["credit_notes"] == [note.frozen["number"]]
    assert (found["number"], found["currency"]) == (world.invoice.frozen["number"], "USD")


def test_a_foreign_invoice_is_as_a_missing_one(world: World) -> None:
    stranger = Caller(World().member())
    missing = stranger.get("invoices/00000000-0000-4000-8000-000000000000")
    foreign = stranger.get(f"invoices/{world.invoice.uuid}")
    assert (foreign.status_code, foreign.json()) == (404, missing.json())
    assert code(Caller(world.member("lead"), scopes=["money:read"]).get(f"invoices/{world.invoice.uuid}")) == (
        403,
        "permission_denied",
    )


def test_the_queries_do_not_grow_with_the_rows(world: World, owner: Caller) -> None:
    """H6."""
    paths = ("ledger", "invoices", "seats", "credit-lots", "plan")

    def queries(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert owner.get(path).status_code == 200
        return len(captured)

    def more(count: int) -> None:
        for number in range(count):
            subscriptions.add_seat(world.member("developer"), world.plan, by=None, now=world.now)
            reference = factories.unique(f"more-{number}")
            ledger.grant(world.organization, CREDIT, expires_at=None, reason="More", actor=None, reference=reference, now=world.now)
            invoicing.credit_note(world.invoice, reason="A cent", by=None, now=world.now, amount=Decimal("0.01"))

    more(1)
    owner.get("me")  # The first call in a minute says on the token that it was used.
    before = {path: queries(path) for path in paths}
    more(8)
    assert {path: queries(path) for path in paths} == before
    [first] = owner.get("seats", limit="1").json()["results"]
    assert (first["plan"], first["period"]["quota"]) == ("Team", "100")
