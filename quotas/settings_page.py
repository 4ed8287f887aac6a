"""Settings, Organization: name, zone, models without a rate, who sees the pool, terms. Doors: they parse, call, render."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import forms, organizations, tenancy
from accounts.models import Member, Organization
from accounts.permissions import Action
from billing.models import Rate
from billing.snapshots import FALLBACK_MODEL
from config.clock import utc_now
from config.errors import DomainError
from quotas import first_run, pool_door, settings_parts, zones
from quotas.alerts.models import WebhookEndpoint


def _show(
    request: HttpRequest, member: Member, *, name: str | None = None, error: dict[str, str] | None = None, status: int = 200
) -> HttpResponse:
    """The page. `error`: a sentence by field; `name`: what was typed and not taken. Eight queries, whatever there is."""
    now = utc_now()
    frame = settings_parts.frame(member, "settings", now)
    organization = member.organization
    routing = pool_door.routing()
    page: dict[str, Any] = {
        **frame,
        "name": organization.name if name is None else name,
        "error": error or {},
        "zones": _zone_names(organization),
        **_wanted_zone(request, organization, now, error),
        "rules": Organization.UnpricedModels.choices,
        "has_fallback_rate": Rate.objects.filter(model=FALLBACK_MODEL).exclude(input=None).exists(),
        "terms": routing.terms,
        "accepted_by": organization.sign_in_terms_accepted_by,
        "sign_ins": routing.sign_ins(organization),
        "endpoints": WebhookEndpoint.objects.present().filter(organization=organization).count(),
        "path": reverse("settings", kwargs={"slug": organization.slug}),
    }
    return render(request, "quotas/settings.html", page, status=status)


def _zone_names(organization: Organization) -> list[str]:
    names = [name for name, _label in forms.zones()]
    return names if organization.timezone in names else [organization.timezone, *names]


def _wanted_zone(request: HttpRequest, organization: Organization, now: datetime, error: dict[str, str] | None) -> dict[str, Any]:
    """The zone that the query asks to be told about (`?zone=`): what a change to it would do."""
    wanted = request.GET.get("zone", "")
    if not wanted or wanted == organization.timezone or error:
        return {"wanted": ""}
    try:
        moved = zones.preview(organization, wanted, now=now)
    except DomainError as refused:
        return {"wanted": "", "error": {"zone": refused.message}}
    zone = ZoneInfo(wanted)
    return {"wanted": wanted, "wanted_clock": f"{now.astimezone(zone):%H:%M}", "moved": moved}


def _back(member: Member, part: str = "") -> HttpResponse:
    return redirect(reverse("settings", kwargs={"slug": member.organization.slug}) + part)


@never_cache
@require_safe
@tenancy.page(Action.MANAGE_ORGANIZATION)
def settings_page(request: HttpRequest, member: Member) -> HttpResponse:
    return _show(request, member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def rename(request: HttpRequest, member: Member) -> HttpResponse:
    typed = request.POST.get("name", "")[:1000]
    try:
        changed = organizations.rename(member.organization, typed, by=member.user)
    except DomainError as error:
        return _show(request, member, name=typed, error={"name": error.message}, status=error.status)
    messages.success(request, _("The organization is called %(name)s. Its address stays /o/%(slug)s.") % {
        "name": changed.name, "slug": changed.slug,
    })  # fmt: skip
    return _back(member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def change_zone(request: HttpRequest, member: Member) -> HttpResponse:
    """What it does was shown before (`?zone=`)."""
    try:
        changed = zones.change(member.organization, request.POST.get("zone", "")[:100], by=member.user, now=utc_now())
    except DomainError as error:
        return _show(request, member, error={"zone": error.message}, status=error.status)
    messages.success(request, _("Days, weeks and months are those of %(zone)s from now on.") % {"zone": changed.timezone})
    return _back(member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def set_unpriced_models(request: HttpRequest, member: Member) -> HttpResponse:
    try:
        changed = organizations.set_unpriced_models(member.organization, request.POST.get("rule", ""), by=member.user)
    except DomainError as error:
        return _show(request, member, error={"rule": error.message}, status=error.status)
    is_refused = changed.unpriced_models == Organization.UnpricedModels.REFUSE
    messages.success(
        request,
        _("Models without a rate are refused.") if is_refused else _("Models without a rate are priced at the fallback rate."),
    )
    return _back(member, "#unpriced")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def show_pool(request: HttpRequest, member: Member) -> HttpResponse:
    shown = {"1": True, "0": False}.get(request.POST.get("shown", ""))
    if shown is None:
        messages.warning(request, _("Nothing was changed: say whether developers see the pool or not."))
        return _show(request, member, status=422)
    organizations.show_pool_to_developers(member.organization, shown, by=member.user)
    messages.success(
        request, _("Developers see how the pool stands.") if shown else _("The pool is for owners and leads of everything.")
    )
    return _back(member, "#pool")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def accept_terms(request: HttpRequest, member: Member) -> HttpResponse:
    """`accept` says so; `withdraw` takes it back."""
    if request.POST.get("withdraw") == "1":
        pool_door.routing().withdraw_terms(member.organization, member.user)
        messages.success(
            request, _("Withdrawn. No sign-in account joins any more; those in the pool serve on until they are removed.")
        )
        return _back(member, "#terms")
    try:
        pool_door.routing().accept_terms(member.organization, request.POST.get("accept") == "1", member.user, utc_now())
    except DomainError as error:
        told = _("Nothing was accepted: tick that you have read them.")
        return _show(request, member, error={"terms": told}, status=error.status)
    messages.success(request, _("Accepted, under your name. Sign-in accounts may join the pool."))
    return _back(member, "#terms")


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def put_away_first_run(request: HttpRequest, member: Member) -> HttpResponse:
    """The list of first steps, from the overview of everybody who would see it."""
    tenancy.demand(member, Action.MANAGE_POOL)
    first_run.put_away(member.organization, by=member.user)
    messages.success(request, _("Put away. Each step is found on its own page."))
    return redirect("overview", slug=member.organization.slug)
