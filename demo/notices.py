"""What the demo's organizations were told and had made: alerts, files, an API token, a rule for a model.

Each once: what a user of the demo has changed stays.
"""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from accounts import api_tokens
from accounts.models import ApiToken, Job, Member, Organization
from billing import credits, job_kinds, labels, reports, usage_report
from demo.cast import Tenant
from quotas import job_kinds as own_kinds
from quotas.alerts import telling
from quotas.alerts.found import Found
from quotas.alerts.models import Alert
from quotas.alerts.rules import Holding
from routing import fallbacks
from routing.models import PoolAccount


def tell(tenant: Tenant, organization: Organization, people: dict[str, Member], now: datetime) -> None:
    """Somebody who burns faster than usual, which is open, and an account that needed its person for a day, which is over."""
    if Alert.objects.for_organization(organization).exists():
        return
    busiest = people[max(tenant.people, key=lambda person: person.pace).email]
    account = PoolAccount.objects.for_organization(organization).filter(kind=PoolAccount.Kind.CHATGPT).order_by("pk").first()
    assert account is not None
    facts = {"account": str(account.uuid), "label": account.label, "reason": "its sign-in had ended", "is_sign_in": True}
    began = now - timedelta(days=3)
    out = Found(Alert.Kind.ACCOUNT, f"account:{account.uuid}", f"since:{int(began.timestamp())}", facts=facts)
    telling.tell(organization, Holding([out], {Alert.Kind.ACCOUNT}), now=began)
    telling.tell(organization, Holding([], {Alert.Kind.ACCOUNT}), now=began + timedelta(hours=22))
    day = reports.day_of(now, ZoneInfo(organization.timezone)).toordinal()
    burns = {"credits": credits.parse("96.4"), "usual": credits.parse("21.3"), "tenths": 45, "hours": 38}
    fast = Found(Alert.Kind.ANOMALY, f"member:{busiest.pk}", f"day:{day}", member_id=busiest.pk, facts=burns)
    telling.tell(organization, Holding([fast]), now=now)


def make(organization: Organization, people: dict[str, Member], now: datetime) -> None:
    """Files that the worker makes once it runs, a token whose secret nobody keeps, and what stands in for a model."""
    owner = next(one for one in people.values() if one.role == Member.Role.OWNER)
    if not Job.objects.filter(organization=organization).exists():
        chosen = usage_report.last_period(labels.sight(owner), owner, now)
        job_kinds.start_usage_totals(owner, "member", chosen, now=now)
        own_kinds.start_members(owner, now=now)
    if not ApiToken.objects.filter(member=owner).exists():
        scopes = ("status:read", "usage:read")
        until = now + timedelta(days=90)
        api_tokens.issue(owner, name="Monthly report", by=owner.user, now=now, scopes=scopes, expires_at=until)
    if not fallbacks.of(organization):
        fallbacks.set_fallbacks(organization, "gpt-6-luna", ["gpt-5.4"], by=owner.user)
