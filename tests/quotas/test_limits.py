"""Setting limits: as people write them, for every scope, metric and window."""

import io
import json
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from accounts.errors import NotFound
from accounts.models import AuditEvent, Organization
from billing import events, usage
from billing.events import UsageEvent
from config import snapshot
from config.clock import utc_now
from quotas import limits
from quotas.errors import AboveScope, LimitsError
from quotas.models import Limit
from tests import factories
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant

pytestmark = pytest.mark.django_db


@pytest.fixture
def tenant() -> Tenant:
    return tenancy.make(team=True)


def of(tenant: Tenant, scope: str) -> str | None:
    user, team = tenant.member.user, tenant.member.team
    assert user is not None
    assert team is not None
    return {"organization": None, "team": team.name, "member": user.email, "key": tenant.key.row.public_id}[scope]


def test_a_key_may_be_named_with_wr_in_front(tenant: Tenant) -> None:
    named = f"wr_{tenant.key.row.public_id}"
    limits.set_limit(tenant.organization, scope="key", of=named, metric="requests", window="day", amount="1")
    assert Limit.objects.get(organization=tenant.organization).key == tenant.key.row


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("set_limit", *arguments, "--json", stdout=out)
    printed: dict[str, Any] = json.loads(out.getvalue())
    return printed


@pytest.mark.parametrize("scope", Limit.Scope.values)
@pytest.mark.parametrize(
    ("metric", "window", "amount", "stored"),
    [
        ("credits", "5h", "0.25", 250_000),
        ("credits", "period", "12", 12 * CREDIT),
        ("tokens", "30d", "5000000", 5_000_000),
        ("requests", "day", "0", 0),
        ("requests_per_second", "", "5", 5),
        ("requests_per_minute", "", "60", 60),
        ("concurrent", "", "4", 4),
    ],
)
def test_every_scope_takes_every_kind_of_limit(
    tenant: Tenant, scope: str, metric: str, window: str, amount: str, stored: int
) -> None:
    made = limits.set_limit(tenant.organization, scope=scope, of=of(tenant, scope), metric=metric, window=window, amount=amount)
    (limit,) = snapshot.load(tenant.organization.pk).quotas.limits
    assert (limit.uuid, limit.scope, limit.metric, limit.window, limit.amount) == (str(made), scope, metric, window, stored)
    targets = {"organization": None, "team": tenant.member.team_id, "member": tenant.member.pk, "key": tenant.key.row.pk}
    assert limit.target_id == targets[scope]


def test_the_same_question_again_replaces_the_answer_and_none_removes_it(tenant: Tenant) -> None:
    first = tenant.set_limit("10")
    second = tenant.set_limit("20")
    other = tenant.set_limit("30", window="week")
    assert first == second != other
    assert sorted(Limit.objects.filter(organization=tenant.organization).values_list("amount", flat=True)) == [
        20 * CREDIT,
        30 * CREDIT,
    ]
    assert tenant.set_limit("none") == first
    assert tenant.set_limit("none") is None
    assert [limit.uuid for limit in Limit.objects.filter(organization=tenant.organization)] == [other]


def test_every_change_moves_the_version_and_is_audited(tenant: Tenant) -> None:
    before = Organization.objects.get(pk=tenant.organization.pk).config_version
    made = tenant.set_limit("10")
    tenant.set_limit("none")
    assert Organization.objects.get(pk=tenant.organization.pk).config_version == before + 2
    told = AuditEvent.objects.filter(organization=tenant.organization, object_id=str(made)).order_by("id")
    assert [(event.action, event.data["was"], event.data["amount"]) for event in told] == [
        ("limit.set", None, 10 * CREDIT),
        ("limit.removed", 10 * CREDIT, None),
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"scope": "galaxy"}, "no scope 'galaxy'"),
        ({"metric": "tokenz"}, "no metric 'tokenz'"),
        ({"window": "6h"}, "no window '6h'"),
        ({"window": ""}, "credits needs a window"),
        ({"metric": "concurrent"}, "concurrent takes no window"),
        ({"metric": "requests_per_second"}, "requests_per_second takes no window"),
        ({"strategy": "sliding"}, "no strategy 'sliding'"),
        ({"strategy": "sliding_log"}, "Only rolling windows"),
        ({"strategy": "sliding_log", "window": "period"}, "Only rolling windows"),
        ({"strategy": "sliding_log", "metric": "concurrent", "window": ""}, "Only rolling windows"),
        ({"models": ["gtp-5.5"]}, "no model 'gtp-5.5'"),
        ({"amount": "-1"}, "not between 0"),
        ({"amount": "1e3"}, "not a decimal number"),
        ({"amount": "0.0000001"}, "more than 6 decimal places"),
        ({"amount": "9999999999999"}, "above the largest amount"),
        ({"amount": ""}, "not a decimal number"),
        ({"metric": "tokens", "amount": "1.5"}, "not a whole number"),
        ({"metric": "tokens", "amount": "9999999999999999999"}, "largest amount"),
        ({"scope": "member", "of": ""}, "needs the member's e-mail"),
        ({"scope": "key", "of": "0000000000"}, "no key"),
        ({"scope": "key", "of": "wr_"}, "no key"),
        ({"scope": "organization", "of": "x"}, "names no team"),
    ],
)
def test_what_cannot_be_a_limit_is_refused_and_changes_nothing(tenant: Tenant, fields: dict[str, Any], said: str) -> None:
    wanted: dict[str, Any] = {"scope": "organization", "of": "", "metric": "credits", "window": "day", "amount": "1", **fields}
    before = Organization.objects.get(pk=tenant.organization.pk).config_version
    with pytest.raises(LimitsError, match=said):
        limits.set_limit(tenant.organization, **wanted)
    assert not Limit.objects.filter(organization=tenant.organization).exists()
    assert Organization.objects.get(pk=tenant.organization.pk).config_version == before


def test_another_organization_s_people_and_keys_are_not_found(tenant: Tenant) -> None:
    """J5 for limits: a foreign object is as a missing one."""
    other = tenancy.make(team=True)
    wanted: dict[str, Any] = {"metric": "credits", "window": "day", "amount": "1"}
    for scope, error in (("team", NotFound), ("member", NotFound), ("key", LimitsError)):
        with pytest.raises(error):
            limits.set_limit(tenant.organization, scope=scope, of=of(other, scope), **wanted)


def test_limits_of_other_models_or_strategies_are_told_apart(tenant: Tenant) -> None:
    wanted: dict[str, Any] = {"scope": "organization", "of": None, "metric": "credits", "window": "7d"}
    plain = limits.set_limit(tenant.organization, **wanted, amount="10")
    assert plain is not None
    some = limits.set_limit(tenant.organization, **wanted, amount="5", models=["gpt-5.5"])
    exact = limits.set_limit(tenant.organization, **wanted, amount="7", strategy="sliding_log")
    assert plain == exact != some
    loaded = {limit.uuid: limit for limit in snapshot.load(tenant.organization.pk).quotas.limits}
    assert [(limit.amount, limit.is_exact, limit.models) for limit in loaded.values()] == [
        (7 * CREDIT, True, ""),
        (5 * CREDIT, False, "gpt-5.5"),
    ]
    # Another amount alone leaves how it is counted.
    limits.set_limit(tenant.organization, **wanted, amount="8")
    assert Limit.objects.get(uuid=plain).strategy == "sliding_log"
    limits.set_limit(tenant.organization, **wanted, amount="8", strategy="")
    assert Limit.objects.get(uuid=plain).strategy == ""
    told = AuditEvent.objects.filter(organization=tenant.organization, object_id=str(some)).get()
    assert (told.data["models"], told.data["strategy"]) == (["gpt-5.5"], "")


def use(tenant: Tenant, hours: int) -> None:
    """One request in the log, so many hours ago."""
    at = int(utc_now().timestamp()) - hours * 3600
    about: dict[str, Any] = {"member_id": tenant.member.pk, "team_id": tenant.member.team_id, "key_id": tenant.key.row.pk}
    event = UsageEvent(
        request_id=tenancy.request_id(),
        part=0,
        state="S",
        admitted_at=at,
        ended_ms=at * 1000,
        credits=1,
        tokens=1,
        requests=1,
        from_quota=1,
        from_purchased=0,
        from_overage=0,
        overdraft=0,
        source="o",
        period_start=at - at % 86400,
        stream_id="0-0",
        body=events.Body(model_asked="gpt-5.5", status="ok", **about),
    )
    usage.record(tenant.organization.pk, [event])


def test_a_window_with_too_many_requests_is_not_counted_by_the_second(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_LOGGED", 2)
    wanted: dict[str, Any] = {"scope": "organization", "of": None, "metric": "credits", "window": "1d", "amount": "9"}
    for hours in (1, 30, 2):
        use(tenant, hours)
        assert limits.set_limit(tenant.organization, **wanted, strategy="sliding_log") is not None
    use(tenant, 3)
    with pytest.raises(LimitsError, match="too many to be counted by the second"):
        limits.set_limit(tenant.organization, **wanted, strategy="sliding_log")


@pytest.mark.parametrize("scope", ["team", "organization"])
def test_a_lead_sets_no_limit_above_the_own_scopes(tenant: Tenant, scope: str) -> None:
    """The table: for a team's lead the team's limit, for an organization's the organization's; the same question only."""
    team = tenant.member.team if scope == "team" else None
    lead = factories.member(tenant.organization, role="lead", team=team)
    limits.set_limit(tenant.organization, scope=scope, of=of(tenant, scope), metric="credits", window="week", amount="100")
    below = {"team": ("member", "key"), "organization": ("team", "member", "key")}[scope]
    for own in below:
        wanted: dict[str, Any] = {"scope": own, "of": of(tenant, own), "metric": "credits", "setter": lead, "by": lead.user}
        with pytest.raises(AboveScope):
            limits.set_limit(tenant.organization, **wanted, window="week", amount="100.000001")
        assert not Limit.objects.filter(organization=tenant.organization, scope=own).exists()
        made = limits.set_limit(tenant.organization, **wanted, window="week", amount="100")
        assert made is not None
        row = Limit.objects.get(uuid=made)
        with pytest.raises(AboveScope):
            limits.change(row, "101", by=lead.user, setter=lead)
        with pytest.raises(AboveScope):
            limits.boost(row, extra=1, until=utc_now() + timedelta(days=1), reason="", by=lead.user, setter=lead)
        limits.change(row, "99", by=lead.user, setter=lead)
        limits.boost(row, extra=CREDIT, until=utc_now() + timedelta(days=1), reason="", by=lead.user, setter=lead)
        # What asks another question is held by the scope's limit all the same, and no raise of it.
        limits.set_limit(tenant.organization, **wanted, window="day", amount="500")
        limits.change(row, "none", by=lead.user, setter=lead)
    bound = Limit.objects.get(organization=tenant.organization, scope=scope)
    for amount in ("101", "none"):
        with pytest.raises(AboveScope):
            limits.change(bound, amount, by=lead.user, setter=lead)
    limits.change(bound, "90", by=lead.user, setter=lead)
    owner = factories.member(tenant.organization, role="owner")
    limits.change(bound, "200", by=owner.user, setter=owner)
    bound.refresh_from_db()
    assert bound.amount == 200 * CREDIT


class TestCommand:
    def test_it_prints_the_id(self, tenant: Tenant) -> None:
        member = of(tenant, "member") or ""
        common = [tenant.organization.slug, "--scope", "member", "--of", member, "--metric", "credits", "--window", "week"]
        made = run(*common, "--amount", "2.5")
        assert list(made) == ["id"]
        assert Limit.objects.get(uuid=UUID(made["id"])).amount == 2_500_000
        assert run(*common, "--amount", "3") == made
        assert run(*common, "--amount", "none") == made
        assert run(*common, "--amount", "none") == {"id": None}

    def test_models_and_exact_counting_are_options(self, tenant: Tenant) -> None:
        common = [tenant.organization.slug, "--scope", "organization", "--metric", "tokens", "--window", "1d", "--amount", "9"]
        made = run(*common, "--models", "gpt-5.5, gpt-5.4-mini", "--exact")
        row = Limit.objects.select_related("model_filter").get(uuid=UUID(made["id"]))
        assert row.model_filter is not None
        assert (row.strategy, row.model_filter.model_names) == ("sliding_log", ["gpt-5.4-mini", "gpt-5.5"])
        assert run(*common) != made

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ("no-such-org --scope organization --metric tokens --window day --amount 1", "no organization"),
            ("SLUG --scope organization --metric tokens --amount 1", "tokens needs a window"),
            ("SLUG --scope organization --metric tokens --window day --amount x", "not a whole number"),
            ("SLUG --scope organization --metric tokens --window hour --amount 1", "invalid choice"),
            ("SLUG --scope organization --metric tokens --window day", "--amount"),
            ("SLUG --scope member --of a@b.c --metric tokens --window day --amount 1", "no member"),
        ],
    )
    def test_a_wrong_argument_is_named(self, tenant: Tenant, arguments: str, said: str) -> None:
        with pytest.raises(CommandError, match=said):
            run(*arguments.replace("SLUG", tenant.organization.slug).split())
        assert not Limit.objects.filter(organization=tenant.organization).exists()
