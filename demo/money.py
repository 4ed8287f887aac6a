"""What the demo's organizations were sold, given and asked for: a price, granted and bought credits, a request, a boost, invoices.

Each once: what a user of the demo has changed stays.
"""

from datetime import datetime, timedelta
from decimal import Decimal

from accounts.models import Member, Organization, User
from billing import credits, ledger, purchases, rolling
from billing.models import Plan, Purchase
from demo.cast import OPERATOR, Tenant
from quotas import limits, requests
from quotas.models import Limit, LimitBoost, LimitRequest

PROVIDER = "demo"


def price_plans() -> None:
    """So that invoices have something to say. Plans are installed without prices; these are invented like the rest of the demo."""
    for slug, price in (("business", "1200.00"), ("plus", "90.00")):
        Plan.objects.filter(slug=slug, price=None).update(price=Decimal(price), overage_policy=Plan.OveragePolicy.PURCHASED)


def sell(tenant: Tenant, organization: Organization, now: datetime) -> None:
    """Credits that the operator granted, and a purchase that was paid."""
    operator = User.objects.get(email=OPERATOR)
    ledger.grant(
        organization,
        credits.parse("250"),
        reason="Welcome credits",
        actor=operator,
        now=now,
        reference=f"grant:demo:{tenant.slug}",
    )
    payment = f"pay_{tenant.slug}"
    if not Purchase.objects.filter(provider=PROVIDER, payment_id=payment).exists():
        purchases.complete(
            PROVIDER,
            payment,
            organization=organization,
            amount=credits.parse("2000"),
            price=Decimal("80.00"),
            currency="USD",
            now=now,
            actor=operator,
        )


def ask(tenant: Tenant, organization: Organization, people: dict[str, Member], now: datetime) -> None:
    """One developer has more for two days, another waits for an answer."""
    if (
        LimitRequest.objects.filter(organization=organization).exists()
        or LimitBoost.objects.filter(organization=organization).exists()
    ):
        return
    capped = [cap for cap in tenant.caps if cap.scope == "member" and cap.metric == "credits"]
    for number, cap in enumerate(capped[:2]):
        member = people[cap.of]
        limit = Limit.objects.for_organization(organization).get(member=member, metric=cap.metric, window=cap.window)
        until = now + timedelta(days=2)
        request = requests.ask(member, limit, extra="150", until=until, note="Release week", by=member.user, now=now)
        if number:
            lead = next(one for one in people.values() if one.role == Member.Role.OWNER)
            requests.approve(request, decider=lead, note="Good luck", now=now)


def limit_models(organization: Organization) -> None:
    """A limit that looks at some models only."""
    if not Limit.objects.for_organization(organization).exclude(model_filter=None).exists():
        limits.set_limit(
            organization, scope="organization", of="", metric="credits", window="7d", amount="4000", models=("gpt-6.1-sol",)
        )


def close_periods(now: datetime) -> int:
    """Opens the weeks that nobody used, closes and invoices what is over; how many. The worker does the same every few minutes."""
    rolling.open_due_periods(now)
    return rolling.close_due_periods(now)
