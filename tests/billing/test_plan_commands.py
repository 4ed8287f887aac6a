"""Commands about plans, seats, periods and invoices: what they print, what they refuse; plans by an operator's hand."""

import csv
import io
import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounts.models import AuditEvent, Organization
from billing import joining, plans, rolling, subscriptions
from billing.errors import PlanRefused
from billing.models import Invoice, Plan, Subscription
from config.clock import utc_now
from tests import factories
from tests.billing.plans import CREDIT, allowance, plan

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    printed: dict[str, Any] = json.loads(out.getvalue())
    return printed


def started(to: Plan, *, days_ago: int = 0) -> Organization:
    organization = factories.organization(plan=None)
    subscriptions.start(organization, to, now=utc_now() - timedelta(days=days_ago))
    return organization


@pytest.mark.parametrize("when", ["now", "next", "renewal"])
def test_a_preview_says_what_the_change_then_does(when: str) -> None:
    organization = started(plan(100, price="10.00", name="Small"))
    to = plan(300, price="30.00", name="Large")
    before = run("change_plan", organization.slug, to.slug, "--when", when, "--preview")
    subscription = Subscription.objects.get(organization=organization)
    assert (before["changed"], subscription.plan.name, subscription.next_plan) == (False, "Small", None)
    after = run("change_plan", organization.slug, to.slug, "--when", when)
    assert after["changed"] is True
    same = {name for name in before if name not in ("changed", "effective_at")}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    subscription.refresh_from_db()
    assert to in (subscription.plan, subscription.next_plan)


def test_a_change_names_a_plan_and_a_subscription_that_are_there() -> None:
    organization = started(plan(100))
    with pytest.raises(CommandError, match="no plan 'nothing'"):
        run("change_plan", organization.slug, "nothing")
    with pytest.raises(CommandError, match="no such active subscription"):
        run("change_plan", factories.organization(plan=None).slug, "pro")
    with pytest.raises(CommandError, match="has no quota yet"):
        run("change_plan", organization.slug, "enterprise")


def test_a_plan_is_made_and_changed_by_hand() -> None:
    slug = factories.unique("own")
    made = run("set_plan", slug, "--quota", "250.5", "--price", "19.90", "--reset", "weekly", "--overage", "invoice",
               "--overage-cap", "10", "--overage-price", "0.002")  # fmt: skip
    assert (made["made"], made["quota"], made["price"], made["overage_price"]) == (True, "250.5", "19.90 USD", "0.002")
    organization = started(Plan.objects.get(slug=slug))
    version = Organization.objects.get(pk=organization.pk).config_version
    changed = run("set_plan", slug, "--quota", "300", "--price", "none", "--fast", "no", "--models", "gpt-5.4,gpt-5.5")
    assert (changed["made"], changed["quota"], changed["price"], changed["overage_cap"]) == (False, "300", None, "10")
    row = Plan.objects.get(slug=slug)
    assert (row.fast_allowed, row.models_allowed, row.reset_period) == (False, ["gpt-5.4", "gpt-5.5"], "weekly")
    assert Organization.objects.get(pk=organization.pk).config_version == version + 1
    assert AuditEvent.objects.filter(action="plan.changed", object_id=slug).count() == 1
    period = Subscription.objects.get(organization=organization).periods.get()
    assert (period.quota, allowance(period)) == (250_500_000, 250_500_000)
    rolling.open_due_periods(period.ends_at)
    assert Subscription.objects.get(organization=organization).periods.get(starts_at=period.ends_at).quota == 300 * CREDIT


def test_enterprise_can_be_started_once_its_quota_is_set() -> None:
    run("set_plan", "enterprise", "--quota", "5000000")
    assert started(Plan.objects.get(slug="enterprise")).subscriptions.get().periods.get().quota == 5_000_000 * CREDIT


@pytest.mark.parametrize(
    "fields",
    [{"overage_policy": "invoice"}, {"reset_period": "daily"}, {"base_quota": -1}, {"multiplier": 2}, {"price": Decimal("1.001")}],
)
def test_a_plan_that_cannot_be_is_not_made(fields: dict[str, Any]) -> None:
    """A19 for plans: an unknown field is refused, not dropped."""
    slug = factories.unique("wrong")
    with pytest.raises(PlanRefused):
        plans.set_plan(slug, fields, by=None)
    assert not Plan.objects.filter(slug=slug).exists()


def test_the_reset_period_of_a_plan_in_use_stays() -> None:
    own = plan(100)
    started(own)
    with pytest.raises(PlanRefused, match="in use"):
        plans.set_plan(own.slug, {"reset_period": "weekly"}, by=None)
    own.refresh_from_db()
    assert own.reset_period == "monthly"


@pytest.mark.parametrize("amount", ["nan", "-1", "ten", "inf"])
def test_an_amount_that_is_none_is_refused(amount: str) -> None:
    with pytest.raises(CommandError, match="is not an amount"):
        run("set_plan", "pro", "--price", amount)


def test_periods_are_closed_and_invoices_shown_and_taken_back() -> None:
    organization = started(plan(100, price="10.00"), days_ago=40)
    closed = run("close_periods", organization.slug)
    number = f"{organization.slug.upper()}-000001"
    assert closed == {"closed": 1, "invoices": [number]}
    assert run("close_periods", organization.slug) == {"closed": 0, "invoices": []}
    shown = run("show_invoice", number.lower())
    assert (shown["total"], shown["kind"], shown["customer"]) == ("10.00 USD", "invoice", organization.name)
    note = run("credit_note", number, "--reason", "An outage", "--amount", "4.00")
    assert (note["corrects"], note["total"], note["number"]) == (number, "4.00 USD", f"{organization.slug.upper()}-000002")
    with pytest.raises(CommandError, match=r"6\.00 USD are left"):
        run("credit_note", number, "--reason", "Again", "--amount", "6.01")
    assert Invoice.objects.for_organization(organization).count() == 2
    with pytest.raises(CommandError, match="no invoice"):
        run("show_invoice", "NOBODY-000001")


def test_an_invoices_file_is_printed_as_it_is() -> None:
    organization = started(plan(100, price="10.00"), days_ago=40)
    (number,) = run("close_periods", organization.slug)["invoices"]
    out = io.StringIO()
    call_command("show_invoice", number, "--csv", stdout=out)
    assert [row["record"] for row in csv.DictReader(io.StringIO(out.getvalue()))] == ["line", "total"]


def test_a_seat_is_given_and_ended() -> None:
    organization = started(plan(100))
    member = factories.member(organization)
    assert member.user is not None
    given = run("seat", organization.slug, member.user.email, "pro")
    assert Subscription.objects.get(uuid=given["id"]).member == member
    with pytest.raises(CommandError, match="active subscription already"):
        run("seat", organization.slug, member.user.email, "plus")
    assert run("seat", organization.slug, member.user.email, "--end")["ended"] is True
    for wrong in (("--end",), ()):
        with pytest.raises(CommandError):
            run("seat", organization.slug, member.user.email, *wrong)


def test_a_plan_is_suspended_and_resumed() -> None:
    organization = started(plan(100))
    assert run("suspend_plan", organization.slug)["suspended"] is True
    assert Subscription.objects.get(organization=organization).suspended_at is not None
    assert run("suspend_plan", organization.slug, "--resume")["suspended"] is False
    actions = AuditEvent.objects.filter(organization=organization, object_type="subscription").values_list("action", flat=True)
    assert list(actions) == ["subscription.resumed", "subscription.suspended"]


def test_who_leaves_gives_up_the_seat() -> None:
    organization = started(plan(100))
    member = factories.member(organization)
    seat = subscriptions.add_seat(member, plan(10), by=None, now=utc_now())
    joining.leave(member, by=None, now=utc_now())
    seat.refresh_from_db()
    member.refresh_from_db()
    assert member.removed_at is not None
    assert seat.ended_at is not None
