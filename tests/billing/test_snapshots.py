"""What the request path knows of rates and subscriptions."""

import logging
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from accounts.models import Organization
from billing import pricing, ratecards, snapshots, subscriptions
from billing.errors import ModelUnknown, ModelUnpriced
from billing.models import Plan
from billing.snapshots import AliasSnapshot, RateCardSnapshot, RateRow, UnpricedSnapshot
from billing.tokens import TokenUsage
from config import snapshot as config_snapshot
from tests import factories
from tests.billing.rates import rate
from tests.billing.test_ratecards import entry, read

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def named(*rows: RateRow) -> dict[str, tuple[RateRow, ...]]:
    by_model: dict[str, tuple[RateRow, ...]] = {}
    for row in sorted(rows, key=lambda one: one.valid_from, reverse=True):
        by_model[row.model] = (*by_model.get(row.model, ()), row)
    return by_model


def card(*rows: RateRow, uses_fallback: bool = False) -> RateCardSnapshot:
    return RateCardSnapshot(named(*rows), uses_fallback=uses_fallback)


@pytest.fixture(autouse=True)
def _nothing_told_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_told", set())


def test_the_row_valid_at_admission_prices_the_request() -> None:
    """C17: the rate changes at 12:00:00Z; 11:59:59 pays the old one, 12:00:00 the new one."""
    rates = card(rate(rate_id=1, model="m", valid_to=NOON), rate(rate_id=2, model="m", valid_from=NOON, input=30_000_000))
    before, after = rates.rate_for("m", NOON - timedelta(seconds=1)), rates.rate_for("m", NOON)
    assert (before.rate_id, after.rate_id) == (1, 2)
    usage = TokenUsage(input=1000)
    assert (pricing.cost(usage, before, fast=False), pricing.cost(usage, after, fast=False)) == (60_000, 30_000)


def test_only_whole_names_and_dated_forms_match() -> None:
    """C24: m-big-2 is unknown though m-big is on the card; m-big-2026-09-01 is m-big."""
    rates = card(rate(model="m-big"))
    assert rates.rate_for("m-big", NOON).model == "m-big"
    assert rates.rate_for("m-big-2026-09-01", NOON).model == "m-big"
    for name in (
        "m-big-2",
        "m-bi",
        "m",
        "M-BIG",
        "m-big-2026-09",
        "m-big-2026-13-01",
        "m-big-20260901",
        "x-m-big",
        "m-big-2026-09-01-2026-09-02",
        "",
    ):
        with pytest.raises(ModelUnknown):
            rates.rate_for(name, NOON)


def test_a_dated_name_of_its_own_comes_before_its_base() -> None:
    rates = card(rate(rate_id=1, model="m"), rate(rate_id=2, model="m-2026-09-01"))
    assert rates.rate_for("m-2026-09-01", NOON).rate_id == 2
    assert rates.rate_for("m-2026-09-02", NOON).rate_id == 1


def test_an_unknown_model_is_refused_and_the_operator_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """C13: never silently 0."""
    rates = card(rate(model="m"))
    with caplog.at_level(logging.WARNING, logger="billing.snapshots"):
        for _ in range(3):
            with pytest.raises(ModelUnknown) as refused:
                rates.rate_for("gpt-9-new", NOON)
    assert (refused.value.code, refused.value.status, refused.value.facts) == (
        "model_not_found",
        400,
        {"model": "gpt-9-new", "param": "model"},
    )
    told = [(record.message, vars(record)["model"], vars(record)["is_refused"]) for record in caplog.records]
    assert told == [("model without a rate", "gpt-9-new", True)]


def test_an_unpriced_model_is_refused_and_the_operator_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """C13: a row without rates is not free."""
    rates = card(UnpricedSnapshot(rate_id=1, model="preview", valid_from=datetime(2026, 4, 2, tzinfo=UTC), valid_to=None))
    with caplog.at_level(logging.WARNING, logger="billing.snapshots"):
        for _ in range(2):
            with pytest.raises(ModelUnpriced) as refused:
                rates.rate_for("preview", NOON)
    assert (refused.value.code, refused.value.status) == ("model_unpriced", 400)
    assert len(caplog.records) == 1


def test_invented_names_cannot_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """C13: what clients choose is bounded; a model of the card is told all the same."""
    rates = card(UnpricedSnapshot(rate_id=1, model="preview", valid_from=datetime(2026, 4, 2, tzinfo=UTC), valid_to=None))
    with caplog.at_level(logging.WARNING, logger="billing.snapshots"):
        for number in range(1100):
            with pytest.raises(ModelUnknown):
                rates.rate_for(f"invented-{number}" * 100, NOON)
        with pytest.raises(ModelUnpriced):
            rates.rate_for("preview", NOON)
    assert len(caplog.records) == 1001
    assert all(len(vars(record)["model"]) <= 120 for record in caplog.records)


def test_a_configured_fallback_prices_what_has_no_rate(caplog: pytest.LogCaptureFixture) -> None:
    """C13: or priced at the configured fallback, and the operator is told all the same."""
    rows = (rate(rate_id=1, model="m"), rate(rate_id=9, model="fallback", input=500_000_000))
    with caplog.at_level(logging.WARNING, logger="billing.snapshots"):
        assert card(*rows, uses_fallback=True).rate_for("gpt-9-new", NOON).rate_id == 9
    assert [vars(record)["is_refused"] for record in caplog.records] == [False]
    with pytest.raises(ModelUnknown):
        card(*rows).rate_for("gpt-9-new", NOON)
    with pytest.raises(ModelUnknown):
        card(rate(model="m"), uses_fallback=True).rate_for("gpt-9-new", NOON)
    assert card(*rows, uses_fallback=True).models_at(NOON) == ("m",)


def test_the_fallbacks_price_keeps_the_models_name() -> None:
    """C13: limits, estimates and reports go by the model, the record's row by the price."""
    rows = (rate(rate_id=9, model="fallback"), UnpricedSnapshot(3, "preview", datetime(2026, 4, 2, tzinfo=UTC), None))
    rates = card(*rows, uses_fallback=True)
    assert (rates.rate_for("gpt-9-new", NOON).model, rates.rate_for("gpt-9-new", NOON).rate_id) == ("gpt-9-new", 9)
    assert rates.rate_for("preview-2026-09-01", NOON).model == "preview"


def test_the_fallbacks_own_name_is_no_model() -> None:
    """C13, C24: asking for it by name is asking for what does not exist."""
    rates = card(rate(rate_id=9, model="fallback"), rate(model="m"))
    for name in ("fallback", "fallback-2026-09-01"):
        with pytest.raises(ModelUnknown):
            rates.rate_for(name, NOON)


def test_an_override_goes_before_the_card_and_a_whole_name_before_a_dated_form() -> None:
    """C17, C24."""
    rates = replace(
        card(rate(rate_id=1, model="m"), rate(rate_id=2, model="m-2026-09-01")),
        overrides=named(rate(rate_id=-5, model="m", valid_from=NOON, valid_to=NOON + timedelta(days=1))),
    )
    assert rates.rate_for("m", NOON).rate_id == -5
    assert rates.rate_for("m-2026-09-02", NOON).rate_id == -5
    assert rates.rate_for("m-2026-09-01", NOON).rate_id == 2
    assert rates.rate_for("m", NOON - timedelta(seconds=1)).rate_id == 1
    assert rates.rate_for("m", NOON + timedelta(days=1)).rate_id == 1


def test_a_name_of_its_own_goes_before_an_alias_and_an_alias_leads_no_further() -> None:
    """C24: an alias stands for a model's name, exactly or dated, never for another alias."""
    always = datetime(2026, 4, 2, tzinfo=UTC)
    stands_for = {"latest": "m-2026-09-01", "m": "other", "chain": "latest", "nowhere": "gone", "any": "fallback"}
    rates = replace(
        card(rate(rate_id=1, model="m"), rate(rate_id=2, model="other"), rate(rate_id=9, model="fallback")),
        aliases={name: (AliasSnapshot(model, always, None),) for name, model in stands_for.items()},
    )
    assert (rates.rate_for("latest", NOON).rate_id, rates.upstream_name("latest", NOON)) == (1, "m-2026-09-01")
    assert (rates.rate_for("m", NOON).rate_id, rates.upstream_name("m", NOON)) == (1, "m")
    for name in ("chain", "nowhere", "any", "latest-2026-09-01"):
        with pytest.raises(ModelUnknown):
            rates.rate_for(name, NOON)
    assert rates.models_at(NOON) == ("latest", "m", "other")


def test_before_its_first_row_and_after_its_last_a_model_has_no_price() -> None:
    rates = card(rate(model="m", valid_from=NOON, valid_to=NOON + timedelta(days=1)))
    for moment in (NOON - timedelta(seconds=1), NOON + timedelta(days=1)):
        with pytest.raises(ModelUnknown):
            rates.rate_for("m", moment)
        assert rates.models_at(moment) == ()
    assert rates.models_at(NOON) == ("m",)


@pytest.mark.django_db
def test_the_loaded_card_prices_the_models_of_the_file() -> None:
    """C24: by the packaged card."""
    rates = snapshots.load_rates()
    assert rates.rate_for("gpt-5.6-sol", datetime(2026, 8, 20, 23, 59, 59, tzinfo=UTC)).output == 750_000_000
    assert rates.rate_for("gpt-5.6-sol", datetime(2026, 8, 21, tzinfo=UTC)).output == 500_000_000
    assert rates.rate_for("gpt-5.4-2026-03-05", NOON).input == 62_500_000
    with pytest.raises(ModelUnpriced):
        rates.rate_for("gpt-5.3-codex-spark", NOON)
    with pytest.raises(ModelUnknown):
        rates.rate_for("gpt-5.4-nano", NOON)
    assert "gpt-5.3-codex-spark" not in rates.models_at(NOON)
    # Other tests may have committed names of their own.
    assert len([name for name in rates.models_at(NOON) if name.startswith("gpt-")]) == 16


@pytest.mark.django_db
def test_the_organizations_snapshot_holds_its_subscriptions_in_six_queries(django_assert_num_queries: object) -> None:
    organization = factories.organization(plan=None, timezone="Asia/Tokyo")
    member = factories.member(organization)
    factories.organization(plan="pro")
    Plan.objects.filter(slug="pro").update(models_allowed=["gpt-5.4"], fast_allowed=False)
    own = subscriptions.start(organization, Plan.objects.get(slug="free"), now=NOON, anchor=date(2026, 11, 15))
    seat = subscriptions.start(organization, Plan.objects.get(slug="pro"), now=NOON, member=member)
    with django_assert_num_queries(6):  # type: ignore[operator]
        loaded = snapshots.load(organization.pk)
    first, second = loaded.subscriptions
    assert (first.subscription_id, first.member_id, first.quota, first.models) == (own.pk, None, 100_000_000_000, None)
    assert first.period_at(NOON).start == datetime(2026, 11, 14, 15, tzinfo=UTC)
    assert (second.subscription_id, second.member_id, second.quota) == (seat.pk, member.pk, 20_000_000_000_000)
    assert (second.models, second.fast_allowed) == (frozenset({"gpt-5.4"}), False)
    assert config_snapshot.load(organization.pk).billing == loaded


@pytest.mark.django_db
def test_a_plan_whose_quota_was_unset_grants_nothing() -> None:
    organization = factories.organization(plan="plus")
    Plan.objects.filter(slug="plus").update(multiplier_thousandths=None)
    assert snapshots.load(organization.pk).subscriptions[0].quota == 0


@pytest.mark.django_db
def test_the_fallback_is_the_organizations_choice() -> None:
    organization = factories.organization(plan=None)
    ratecards.import_card(read([entry("fallback", price="500")]))
    with pytest.raises(ModelUnknown):
        snapshots.load(organization.pk).rates.rate_for("gpt-9-new", NOON)
    Organization.objects.filter(pk=organization.pk).update(unpriced_models=Organization.UnpricedModels.FALLBACK)
    assert snapshots.load(organization.pk).rates.rate_for("gpt-9-new", NOON).input == 500_000_000
