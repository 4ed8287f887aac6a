"""How good estimates were: held against cost, from the log."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command

from accounts.models import Organization
from billing import estimates, usage
from billing.events import Body, UsageEvent
from config.clock import utc_now
from tests import factories

pytestmark = pytest.mark.django_db
CREDIT = 1_000_000


def settled(organization: Organization, pairs: list[tuple[int | None, int]], **fields: bool) -> None:
    member = factories.member(organization)
    key = factories.api_key(member)
    at = int(utc_now().timestamp()) - 60
    made = [
        UsageEvent(
            request_id=factories.unique("req"),
            part=0,
            state="S",
            admitted_at=at,
            ended_ms=at * 1000,
            credits=cost,
            tokens=1,
            requests=1,
            from_quota=cost,
            from_purchased=0,
            from_overage=0,
            overdraft=0,
            source="o",
            period_start=at - at % 86400,
            stream_id=f"{number}-1",
            body=Body(member_id=member.pk, key_id=key.row.pk, model_asked="gpt-5.5", status="ok", held=held, **fields),
        )
        for number, (held, cost) in enumerate(pairs)
    ]
    assert usage.record(organization.pk, made) == len(made)


def test_ratios_shortfalls_and_sums_are_of_real_counts_alone() -> None:
    organization = factories.organization()
    settled(organization, [(2 * CREDIT, CREDIT), (4 * CREDIT, 2 * CREDIT), (CREDIT, 2 * CREDIT), (3 * CREDIT, CREDIT)])
    settled(organization, [(None, CREDIT), (CREDIT, 0)])
    settled(organization, [(CREDIT, 9 * CREDIT)], is_estimated=True)
    settled(factories.organization(), [(CREDIT, 7 * CREDIT)])
    now = utc_now()
    assert estimates.errors(organization, now - timedelta(days=1), now) == [
        estimates.EstimateError(
            model="gpt-5.5",
            requests=4,
            short=1,
            ratio_thousandths=(2000, 3000, 3000),
            short_credits=CREDIT,
            credits=6 * CREDIT,
            held=10 * CREDIT,
        )
    ]
    assert estimates.errors(organization, now - timedelta(days=2), now - timedelta(days=1)) == []


def test_the_command_prints_them() -> None:
    organization = factories.organization()
    settled(organization, [(3 * CREDIT, 2 * CREDIT)])
    out = StringIO()
    call_command("estimates", organization.slug, as_json=True, stdout=out)
    (row,) = json.loads(out.getvalue())["models"]
    assert row == {
        "model": "gpt-5.5",
        "requests": 1,
        "short": 0,
        "ratio_p50": "1.500",
        "ratio_p90": "1.500",
        "ratio_p99": "1.500",
        "short_credits": "0",
        "credits": "2",
        "held": "3",
    }
