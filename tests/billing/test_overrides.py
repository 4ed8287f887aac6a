"""An organization's own prices: dated, before the card's, named in usage records, heard of by that organization alone."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, Organization, User
from billing import aliases, overrides, pricing, ratecards, snapshots
from billing.errors import ModelUnknown, OverrideRefused
from billing.models import Rate, RateOverride
from billing.overrides import Terms
from billing.snapshots import RateCardSnapshot
from billing.tokens import TokenUsage
from tests import factories
from tests.billing.test_ratecards import entry, fast, read

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)
FASTER = {"fast_thousandths": 10_001}
OWN = Terms(input=30_000_000, cached_input=3_000_000, output=150_000_000)


@pytest.fixture(autouse=True)
def _models() -> None:
    ratecards.import_card(read([entry("m"), entry("preview", price=None)], [fast("m", "2")]))


@pytest.fixture
def organization() -> Organization:
    return factories.organization(plan=None)


def version(organization: Organization) -> int:
    return Organization.objects.get(pk=organization.pk).config_version


def rates(organization: Organization) -> RateCardSnapshot:
    return snapshots.load(organization.pk).rates


def spans(organization: Organization, model: str = "m") -> list[tuple[int | None, datetime, datetime | None]]:
    rows = RateOverride.objects.filter(organization=organization, model=model).order_by("valid_from")
    return list(rows.values_list("input", "valid_from", "valid_to"))


def test_it_goes_before_the_card_for_this_organization_alone_while_it_holds(organization: Organization) -> None:
    """C17: from its second on, not before; for no other organization."""
    other = factories.organization(plan=None)
    until = NOW + timedelta(days=30)
    made = overrides.set_override(organization, "m", OWN, now=NOW, valid_to=until)
    own, card = rates(organization), rates(other).rate_for("m", NOW)
    assert (own.rate_for("m", NOW).input, own.rate_for("m", NOW).rate_id) == (30_000_000, -made.pk)
    for moment in (NOW - timedelta(seconds=1), until):
        assert own.rate_for("m", moment) == card
    assert own.rate_for("m", until - timedelta(seconds=1)).rate_id == -made.pk
    assert own.rate_for("m-2026-09-01", NOW).rate_id == -made.pk
    usage = TokenUsage(input=1000, output=100)
    assert (pricing.cost(usage, own.rate_for("m", NOW), fast=False), pricing.cost(usage, card, fast=False)) == (45_000, 90_000)


def test_an_alias_is_priced_by_the_override_of_the_model_it_stands_for(organization: Organization) -> None:
    """B8."""
    aliases.add("latest", "m", now=NOW)
    made = overrides.set_override(organization, "m", OWN, now=NOW)
    assert rates(organization).rate_for("latest", NOW).rate_id == -made.pk
    with pytest.raises(OverrideRefused, match="alias of m"):
        overrides.set_override(organization, "latest", OWN, now=NOW)


def test_a_usage_record_names_the_row_and_neither_is_taken_for_the_other(organization: Organization) -> None:
    made = overrides.set_override(organization, "m", OWN, now=NOW)
    card = Rate.objects.get(model="m")
    assert overrides.rate_id_of(made) == -made.pk == rates(organization).rate_for("m", NOW).rate_id
    assert overrides.row_of(-made.pk) == made
    assert overrides.row_of(card.pk) == card
    assert overrides.row_of(-(10**9)) is None
    assert overrides.reference(-made.pk) == f"override-{made.pk}"
    assert overrides.reference(card.pk) == f"rate-{card.pk}"
    assert overrides.reference(None) == ""


def test_only_this_organization_hears_of_it_and_its_audit_tells(organization: Organization) -> None:
    other = factories.organization(plan=None)
    before = version(organization), version(other)
    made = overrides.set_override(organization, "m", OWN, now=NOW, reason="contract 7")
    assert (version(organization), version(other)) == (before[0] + 1, before[1])
    told = AuditEvent.objects.get(action="override.set", organization=organization)
    assert (told.object_id, told.data["model"], told.data["input"], told.data["reason"]) == (
        str(made.uuid), "m", 30_000_000, "contract 7",
    )  # fmt: skip
    overrides.end(made, now=NOW + timedelta(hours=1))
    assert (version(organization), version(other)) == (before[0] + 2, before[1])
    assert AuditEvent.objects.filter(action="override.ended", organization=organization).count() == 1


def test_what_is_left_open_is_the_cards_at_that_time(organization: Organization) -> None:
    made = overrides.set_override(organization, "m", OWN, now=NOW)
    assert (made.fast_thousandths, made.cache_write, made.long_context_threshold) == (2000, None, None)
    new = overrides.set_override(organization, "our-own-model", Terms(1, 1, 1, fast_thousandths=1500), now=NOW)
    assert (new.fast_thousandths, new.long_context_input_thousandths) == (1500, 1000)
    assert rates(organization).rate_for("our-own-model", NOW).rate_id == -new.pk
    assert "our-own-model" in rates(organization).models_at(NOW)
    with pytest.raises(ModelUnknown):
        rates(factories.organization(plan=None)).rate_for("our-own-model", NOW)


def test_a_model_without_a_rate_may_have_one_of_an_organizations_own(organization: Organization) -> None:
    """C13."""
    made = overrides.set_override(organization, "preview", OWN, now=NOW)
    assert rates(organization).rate_for("preview", NOW).rate_id == -made.pk


def test_the_fallback_too_may_be_an_organizations_own(organization: Organization) -> None:
    """C13: and only where the organization chose to be priced by it."""
    made = overrides.set_override(organization, "fallback", OWN, now=NOW)
    with pytest.raises(ModelUnknown):
        rates(organization).rate_for("gpt-9-new", NOW)
    Organization.objects.filter(pk=organization.pk).update(unpriced_models=Organization.UnpricedModels.FALLBACK)
    found = rates(organization).rate_for("gpt-9-new", NOW)
    assert (found.rate_id, found.model) == (-made.pk, "gpt-9-new")


def test_a_change_ends_what_held_and_leaves_what_is_past(organization: Organization) -> None:
    """C17: never recomputed: the row that priced yesterday still says so."""
    first = overrides.set_override(organization, "m", OWN, now=NOW, valid_to=NOW + timedelta(days=30))
    later = NOW + timedelta(days=1)
    overrides.set_override(organization, "m", Terms(20_000_000, 2_000_000, 100_000_000), now=later)
    assert spans(organization) == [(30_000_000, NOW, later), (20_000_000, later, None)]
    found = rates(organization)
    assert found.rate_for("m", later - timedelta(seconds=1)).rate_id == -first.pk
    assert found.rate_for("m", later).input == 20_000_000


def test_one_planned_ahead_bounds_one_that_is_set_now(organization: Organization) -> None:
    planned = NOW + timedelta(days=10)
    overrides.set_override(organization, "m", Terms(1, 1, 1), now=NOW, valid_from=planned)
    overrides.set_override(organization, "m", OWN, now=NOW)
    assert spans(organization) == [(30_000_000, NOW, planned), (1, planned, None)]
    with pytest.raises(OverrideRefused, match="already"):
        overrides.set_override(organization, "m", Terms(2, 2, 2), now=NOW, valid_from=planned)
    with pytest.raises(OverrideRefused, match="already"):
        overrides.set_override(organization, "m", Terms(2, 2, 2), now=NOW, valid_to=planned + timedelta(days=1))


def test_the_same_again_changes_nothing(organization: Organization) -> None:
    made = overrides.set_override(organization, "m", OWN, now=NOW)
    assert overrides.set_override(organization, "m", OWN, now=NOW + timedelta(days=1)) == made
    assert len(spans(organization)) == 1


def test_two_changes_within_a_second_are_both_kept(organization: Organization) -> None:
    overrides.set_override(organization, "m", OWN, now=NOW + timedelta(milliseconds=100))
    overrides.set_override(organization, "m", Terms(1, 1, 1), now=NOW + timedelta(milliseconds=900))
    assert spans(organization) == [(30_000_000, NOW, NOW + timedelta(seconds=1)), (1, NOW + timedelta(seconds=1), None)]


def test_after_its_end_the_card_holds_again(organization: Organization) -> None:
    made = overrides.set_override(organization, "m", OWN, now=NOW)
    planned = overrides.set_override(organization, "preview", OWN, now=NOW, valid_from=NOW + timedelta(days=1))
    then = NOW + timedelta(hours=1)
    overrides.end(made, now=then)
    overrides.end(planned, now=then)
    overrides.end(made, now=then + timedelta(hours=1))
    assert spans(organization) == [(30_000_000, NOW, then)]
    assert spans(organization, "preview") == []
    assert rates(organization).rate_for("m", then).input == 60_000_000


@pytest.mark.parametrize(
    ("model", "terms", "says"),
    [
        ("m", Terms(-1, 0, 1), "between 0 and"),
        ("m", Terms(1, 1, pricing.MOST_RATE + 1), "between 0 and"),
        ("m", Terms(1, 2, 1), "dearer than input"),
        ("m", Terms(1, 1, 1, fast_thousandths=10_001), "multiplier"),
        ("m", Terms(1, 1, 1, fast_thousandths=-1), "multiplier"),
        ("m", Terms(1, 1, 1, long_context_threshold=-1), "threshold"),
        ("", OWN, "cannot be a model"),
        ("m*", OWN, "cannot be a model"),
        ("two words", OWN, "cannot be a model"),
    ],
)
def test_what_cannot_be_a_price_is_refused(organization: Organization, model: str, terms: Terms, says: str) -> None:
    before = version(organization)
    with pytest.raises(OverrideRefused, match=says):
        overrides.set_override(organization, model, terms, now=NOW)
    assert not RateOverride.objects.filter(organization=organization).exists()
    assert version(organization) == before


def test_the_past_is_not_repriced(organization: Organization) -> None:
    """C17."""
    with pytest.raises(OverrideRefused, match="is past"):
        overrides.set_override(organization, "m", OWN, now=NOW, valid_from=NOW - timedelta(seconds=1))
    with pytest.raises(OverrideRefused, match="end before"):
        overrides.set_override(organization, "m", OWN, now=NOW, valid_to=NOW)
    assert spans(organization) == []


def test_the_database_forbids_two_prices_at_a_time_and_prices_out_of_bounds(organization: Organization) -> None:
    row: dict[str, Any] = {"organization": organization, "model": "m", "input": 2, "cached_input": 1, "output": 3}
    RateOverride.objects.create(**row, valid_from=NOW, valid_to=NOW + timedelta(days=2))
    with pytest.raises(IntegrityError, match="override_never_over_another"), transaction.atomic():
        RateOverride.objects.create(**row, valid_from=NOW + timedelta(days=1))
    RateOverride.objects.create(**row, valid_from=NOW + timedelta(days=2))
    RateOverride.objects.create(**{**row, "organization": factories.organization(plan=None)}, valid_from=NOW)
    for bad in ({"cached_input": 3}, {"input": 10**11 + 1}, {"output": 10**11 + 1}, {"cache_write": -1}, FASTER):
        with pytest.raises(IntegrityError, match="override_within_bounds"), transaction.atomic():
            RateOverride.objects.create(**{**row, **bad, "model": "other"}, valid_from=NOW)
    card = Rate.objects.get(model="m").card
    with pytest.raises(IntegrityError, match="rate_never_over_another"), transaction.atomic():
        Rate.objects.create(card=card, model="m", input=1, cached_input=1, output=1, valid_from=NOW)


def test_the_command_sets_and_ends(organization: Organization) -> None:
    out = StringIO()
    prices = ("--input", "60", "--cached-input", "6", "--cache-write", "75", "--output", "300")
    call_command("set_override", organization.slug, "m", *prices, "--fast", "1.5", "--json", stdout=out)
    answer = json.loads(out.getvalue())
    row = RateOverride.objects.get(organization=organization)
    assert (row.input, row.cached_input, row.cache_write, row.output) == (60_000_000, 6_000_000, 75_000_000, 300_000_000)
    assert (answer["reference"], answer["fast"], answer["input"]) == (f"override-{row.pk}", "1.5", "60")
    for arguments, says in (
        (("--input", "1", "--output", "1"), "cached_input missing"),
        ((*prices[:-1], "1e3"), "not a decimal"),
        ((*prices, "--fast", "x"), "not a decimal"),
        ((*prices, "--from", "2020-01-01"), "is past"),
    ):
        with pytest.raises(CommandError, match=says):
            call_command("set_override", organization.slug, "m", *arguments, stdout=StringIO())
    with pytest.raises(CommandError, match="no price of its own"):
        call_command("set_override", organization.slug, "preview", "--end", stdout=StringIO())
    call_command("set_override", organization.slug, "m", "--end", stdout=StringIO())
    row.refresh_from_db()
    assert row.valid_to is not None


def test_the_admin_sets_and_ends(organization: Organization) -> None:
    operator = User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())
    client = Client()
    client.force_login(operator)
    page = reverse("admin:billing_rateoverride_set_override")
    assert client.get(page).status_code == 200
    form = {"organization": organization.slug, "model": "m", "input": "60", "cached_input": "6", "output": "300", "reason": "deal"}
    refused = client.post(page, {**form, "cached_input": "61"})
    assert (refused.status_code, b"dearer than input" in refused.content) == (400, True)
    assert client.post(page, {**form, "organization": "nobody"}).status_code == 400
    assert not RateOverride.objects.filter(organization=organization).exists()
    assert client.post(page, form).status_code == 302
    row = RateOverride.objects.get(organization=organization)
    assert (row.created_by, row.reason, row.fast_thousandths) == (operator, "deal", 2000)
    assert b"60" in client.get(reverse("admin:billing_rateoverride_changelist")).content
    chosen = {"action": "end", "_selected_action": [row.pk], "index": "0"}
    assert client.post(reverse("admin:billing_rateoverride_changelist"), chosen).status_code == 302
    row.refresh_from_db()
    assert row.valid_to is not None
