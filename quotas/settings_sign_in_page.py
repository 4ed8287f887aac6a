"""Settings, Sign-in: of whom a second factor is required, and the organization's own provider. Owners only."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import identity_page, policies, tenancy
from accounts.models import Member, Organization
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from quotas import settings_parts

MOST_NAMED = 8


def _show(request: HttpRequest, member: Member, *, trouble: str = "", status: int = 200) -> HttpResponse:
    organization = member.organization
    lacking = policies.lacking(organization, Organization.SecondFactor.EVERYONE)
    choices = [
        {
            "value": value,
            "text": text,
            "is_chosen": value == organization.second_factor,
            "lacking": [one for one in lacking if policies.requires(value, one.role)],
        }
        for value, text in Organization.SecondFactor.choices
    ]
    page: dict[str, Any] = {
        **settings_parts.frame(member, "settings_sign_in", utc_now()),
        **identity_page.context_for(member),
        "choices": choices,
        "lacking": next(one["lacking"] for one in choices if one["is_chosen"]),
        "most": MOST_NAMED,
        "trouble": trouble,
    }
    return render(request, "quotas/settings_sign_in.html", page, status=status)


@never_cache
@require_safe
@tenancy.page(Action.MANAGE_ORGANIZATION)
def settings_sign_in(request: HttpRequest, member: Member) -> HttpResponse:
    return _show(request, member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def set_policy(request: HttpRequest, member: Member) -> HttpResponse:
    try:
        policies.set_second_factor(member.organization, request.POST.get("policy", "")[:40], by=member.user)
    except DomainError as error:
        return _show(request, member, trouble=error.message, status=error.status)
    messages.success(request, _("Holds from everybody’s next page on. Keys and API tokens are not touched."))
    return redirect("settings_sign_in", slug=member.organization.slug)
