"""Setting limits: as people write them, for every scope, metric and window."""

import io
import json
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from accounts.errors import NotFound
from accounts.models import AuditEvent, Organization
from config import snapshot
from quotas import limits
from quotas.errors import LimitsError
from quotas.models import Limit
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
def test_what_cannot_be_a_limit_is_refused_and_changes_nothing(tenant: Tenant, fields: dict[str, str], said: str) -> None:
    wanted = {"scope": "organization", "of": "", "metric": "credits", "window": "day", "amount": "1", **fields}
    before = Organization.objects.get(pk=tenant.organization.pk).config_version
    with pytest.raises(LimitsError, match=said):
        limits.set_limit(tenant.organization, **wanted)
    assert not Limit.objects.filter(organization=tenant.organization).exists()
    assert Organization.objects.get(pk=tenant.organization.pk).config_version == before


def test_another_organization_s_people_and_keys_are_not_found(tenant: Tenant) -> None:
    """J5 for limits: a foreign object is as a missing one."""
    other = tenancy.make(team=True)
    wanted = {"metric": "credits", "window": "day", "amount": "1"}
    for scope, error in (("team", NotFound), ("member", NotFound), ("key", LimitsError)):
        with pytest.raises(error):
            limits.set_limit(tenant.organization, scope=scope, of=of(other, scope), **wanted)


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
