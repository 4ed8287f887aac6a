"""Settings, Models: which nobody uses, which stand in for which, and what the plan says. Owners only."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import tenancy
from accounts.models import Member
from accounts.permissions import Action
from config import snapshot
from config.clock import utc_now
from config.errors import DomainError
from quotas import model_rules, pool_door, settings_parts
from quotas.models import Limit

FALLBACK, BLOCK = "fallback", "block"


def _show(
    request: HttpRequest,
    member: Member,
    *,
    opened: str = "",
    typed: dict[str, str] | None = None,
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    """The page. `opened`: which form stands open (FALLBACK, BLOCK), with what was `typed` and why it was refused."""
    now = utc_now()
    organization = member.organization
    rules = pool_door.routing().fallbacks(organization)
    edited = request.GET.get("edit", "")
    if not opened and edited in rules:
        opened, typed = FALLBACK, {"model": edited, "chain": ", ".join(rules[edited])}
    opened = opened or (FALLBACK if "fallback" in request.GET else BLOCK if "block" in request.GET else "")
    loaded = snapshot.current(organization.pk)
    starting = {one.filter_id for one in loaded.quotas.filters if not one.is_filled}
    page: dict[str, Any] = {
        **settings_parts.frame(member, "settings_models", now),
        "rules": list(rules.items()),
        "blocked": [
            {"row": row, "models": list(row.model_filter.model_names), "is_starting": row.model_filter_id in starting}
            for row in model_rules.blocked(organization)
            if row.model_filter is not None
        ],
        "plans": model_rules.plans(organization),
        "prices": model_rules.own_prices(organization, now),
        "without_fast": model_rules.without_fast_mode(organization),
        "names": model_rules.names(loaded, now),
        "opened": opened,
        "typed": typed or {},
        "error": error,
        "is_edit": bool(edited) and edited in rules,
        "path": reverse("settings_models", kwargs={"slug": organization.slug}),
    }
    return render(request, "quotas/settings_models.html", page, status=status)


def _back(member: Member, part: str) -> HttpResponse:
    return redirect(reverse("settings_models", kwargs={"slug": member.organization.slug}) + part)


def _listed(text: str) -> list[str]:
    return [name for part in text[:4000].replace("\n", ",").split(",") if (name := part.strip())]


@never_cache
@require_safe
@tenancy.page(Action.MANAGE_ORGANIZATION)
def settings_models(request: HttpRequest, member: Member) -> HttpResponse:
    return _show(request, member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def set_fallback(request: HttpRequest, member: Member) -> HttpResponse:
    """An empty chain takes the rule away."""
    model, chain = request.POST.get("model", "")[:1000], request.POST.get("chain", "")
    try:
        wanted = pool_door.routing().set_fallbacks(member.organization, model, _listed(chain), member.user)
    except DomainError as error:
        typed = {"model": model, "chain": chain[:4000]}
        return _show(request, member, opened=FALLBACK, typed=typed, error=error.message, status=error.status)
    told = _("%(chain)s stand in for %(model)s.") if len(wanted) > 1 else _("%(chain)s stands in for %(model)s.")
    if not wanted:
        told = _("Nothing stands in for %(model)s any more.")
    messages.success(request, told % {"chain": ", ".join(wanted), "model": model.strip()})
    return _back(member, "#fallbacks")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def block_models(request: HttpRequest, member: Member) -> HttpResponse:
    text = request.POST.get("models", "")
    names = _listed(text)
    try:
        model_rules.block(member.organization, names, by=member.user)
    except DomainError as error:
        typed = {"models": text[:4000]}
        return _show(request, member, opened=BLOCK, typed=typed, error=error.message, status=error.status)
    messages.success(request, _("Nobody uses %(models)s, within a minute.") % {"models": ", ".join(sorted(set(names)))})
    return _back(member, "#blocked")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def unblock_models(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = tenancy.owned(Limit.objects.all(), member.organization, uuid)
    rule = next((one for one in model_rules.blocked(member.organization) if one.pk == found.pk), None)
    if rule is None:
        # A limit, but none of these rules: its own page is Members & limits.
        raise Http404
    names = ", ".join(rule.model_filter.model_names) if rule.model_filter is not None else ""
    model_rules.unblock(rule, by=member.user)
    messages.success(request, _("%(models)s may be used again.") % {"models": names})
    return _back(member, "#blocked")
