"""My key and Overview: what is left, when it resets, what was used. Doors: they parse, call the domain, render."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, forms, keys, permissions, tenancy
from accounts.models import ApiKey, Member
from accounts.permissions import Action, Reach
from billing import overview
from config.clock import utc_now
from config.errors import DomainError
from quotas import remaining
from quotas.errors import Degraded, NoActivePlan

DAYS = 30


def _frame(member: Member, page: str, now: datetime) -> dict[str, Any]:
    zone = ZoneInfo(member.organization.timezone)
    return {**context.navigation(member, page), "now": now, "zone": zone, "zone_name": now.astimezone(zone).tzname()}


def _standing(member: Member, now: datetime) -> dict[str, Any]:
    """Meters for a page, or the sentence that says why there are none."""
    try:
        usage = remaining.of_member(member, now=now)
    except NoActivePlan as error:
        return {"meters": [], "trouble": error.message}
    except Degraded:
        return {"meters": [], "trouble": "The numbers did not arrive. Running answers finish and are metered."}
    found = remaining.meters(usage)
    return {"meters": found, "spendable": remaining.spendable(found), "plan": usage.plan}


def _key_page(
    request: HttpRequest,
    member: Member,
    *,
    form: forms.IssueKeyForm | None = None,
    issued: keys.IssuedKey | None = None,
    status: int = 200,
) -> HttpResponse:
    now = utc_now()
    today = now.astimezone(ZoneInfo(member.organization.timezone)).date()
    days = overview.days_by_model(member.organization, until=today, count=DAYS, members=[member.pk])
    own = list(ApiKey.objects.for_organization(member.organization).filter(member=member).unrevoked())
    page = {
        **_frame(member, "key", now),
        **_standing(member, now),
        "keys": own,
        "issued": issued,
        "form": form or forms.IssueKeyForm(),
        "public_url": settings.PUBLIC_URL,
        "days": days,
        "spark": _spark(days.totals),
        "requests": overview.newest(member.organization, members=[member.pk], count=10),
    }
    return render(request, "quotas/key.html", page, status=status)


def _spark(totals: Sequence[int]) -> list[dict[str, str]]:
    """Bars of 7 in steps of 10, 32 high, in SVG units; the last is today's."""
    most = max(totals, default=0)
    bars = []
    for index, amount in enumerate(totals):
        height = max(5, amount * 300 // most) if most and amount else 5
        bars.append({"x": f"{index * 10 + 1}", "y": f"{(320 - height) / 10:.1f}", "height": f"{height / 10:.1f}"})
    return bars


@never_cache
@require_safe
@tenancy.page(Action.USE_KEYS)
def key(request: HttpRequest, member: Member) -> HttpResponse:
    return _key_page(request, member)


@never_cache
@require_POST
@tenancy.page(Action.USE_KEYS)
def issue_key(request: HttpRequest, member: Member) -> HttpResponse:
    """Answers with the page that shows the secret, this one time: not by a redirect, which would need it kept somewhere."""
    form = forms.IssueKeyForm(request.POST)
    if not form.is_valid():
        return _key_page(request, member, form=form, status=400)
    try:
        issued = keys.issue(member, name=form.cleaned_data["name"], by=member.user, now=utc_now())
    except DomainError as error:
        form.add_error("name", error.message)
        return _key_page(request, member, form=form, status=error.status)
    return _key_page(request, member, issued=issued)


@require_POST
@tenancy.page(Action.USE_KEYS)
def revoke_key(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = tenancy.owned(ApiKey.objects.select_related("member"), member.organization, uuid)
    tenancy.demand(member, Action.USE_KEYS, of=found.member)
    keys.revoke(found, by=member.user, now=utc_now())
    return redirect("key", slug=member.organization.slug)


def _whose(member: Member, action: Action) -> list[int] | None:
    """The members whose usage this one sees; None for everybody's."""
    reach = permissions.reach(member, action)
    if reach is Reach.WHOLE:
        return None
    if reach is Reach.SCOPE:
        return list(
            Member.objects.for_organization(member.organization).filter(team_id=member.team_id).values_list("pk", flat=True)
        )
    return [member.pk]


@never_cache
@require_safe
@tenancy.page(Action.SEE_USAGE)
def overview_page(request: HttpRequest, member: Member) -> HttpResponse:
    now = utc_now()
    zone = ZoneInfo(member.organization.timezone)
    today = now.astimezone(zone).date()
    whose = _whose(member, Action.SEE_USAGE)
    days = overview.days_by_model(member.organization, until=today, count=DAYS, members=whose)
    standing = _standing(member, now)
    sees_requests = permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE
    start = overview.midnight(days.days[0], zone)
    page = {
        **_frame(member, "overview", now),
        **standing,
        "scope": "everybody" if whose is None else "you" if whose == [member.pk] else f"the {member.team} team",
        "quota": next((meter for meter in standing["meters"] if meter.title == "Plan quota"), None),
        "days": days,
        "today": days.totals[-1],
        "chart": {
            "x": [int(datetime(day.year, day.month, day.day, tzinfo=ZoneInfo("UTC")).timestamp()) for day in days.days],
            "series": [{"name": model, "values": [amount / 10**6 for amount in amounts]} for model, amounts in days.series],
        },
        "table": [
            {"day": day, "amounts": [amounts[index] for _, amounts in days.series], "total": days.totals[index]}
            for index, day in enumerate(days.days)
        ],
        "spark": _spark(days.totals),
        "highest": max(days.totals, default=0),
        "spenders": overview.spenders(member.organization, start=start, end=now, members=whose),
        "sees_requests": sees_requests,
        "requests": overview.newest(member.organization, members=whose) if sees_requests else [],
    }
    return render(request, "quotas/overview.html", page)
