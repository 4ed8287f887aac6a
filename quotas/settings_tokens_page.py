"""Settings, API tokens: one's own; who manages the organization sees and revokes everybody's. Doors: they parse, call, render."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import api_tokens, tenancy
from accounts.api_tokens import IssuedToken
from accounts.models import ApiToken, Member
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from quotas import settings_parts

LASTS = (
    ("30", gettext_lazy("30 days")),
    ("90", gettext_lazy("90 days")),
    ("365", gettext_lazy("One year")),
    ("", gettext_lazy("Until it is revoked")),
)


class TokenForm(forms.Form):
    name = forms.CharField(max_length=80, label=gettext_lazy("Name"))
    lasts = forms.ChoiceField(choices=LASTS, required=False, initial="90", label=gettext_lazy("Lasts"))
    scopes = forms.MultipleChoiceField(choices=[(one, one) for one in api_tokens.SCOPES], label=gettext_lazy("May do"))

    def expires_at(self, now: datetime) -> datetime | None:
        days = self.cleaned_data["lasts"]
        return now + timedelta(days=int(days)) if days else None


def _show(
    request: HttpRequest, member: Member, *, form: TokenForm | None = None, issued: IssuedToken | None = None, status: int = 200
) -> HttpResponse:
    now = utc_now()
    rows = list(api_tokens.seen_by(member).order_by("-id"))
    own = [one for one in rows if one.member_id == member.pk]
    is_open = form is not None or "issue" in request.GET
    usable = api_tokens.scopes_of(member)
    form = form or TokenForm(initial={"scopes": usable}, auto_id="token-%s")
    chosen = set(form["scopes"].value() or ())
    page: dict[str, Any] = {
        **settings_parts.frame(member, "settings_tokens", now),
        "own": own,
        "others": [one for one in rows if one.member_id != member.pk],
        "expiring": [
            one
            for one in rows
            if one.member_id == member.pk and one.expires_at and now < one.expires_at <= now + timedelta(days=14)
        ],
        "form": form if is_open else None,
        "scopes": [(scope, scope in chosen) for scope in usable],
        "issued": issued,
    }
    return render(request, "quotas/settings_tokens.html", page, status=status)


@never_cache
@require_safe
@tenancy.page()
def settings_tokens(request: HttpRequest, member: Member) -> HttpResponse:
    return _show(request, member)


@never_cache
@require_POST
@tenancy.page()
def issue_token(request: HttpRequest, member: Member) -> HttpResponse:
    """A token of one's own. Answers with the secret itself, this one time: a redirect would need it kept somewhere."""
    form = TokenForm(request.POST, auto_id="token-%s")
    if not form.is_valid():
        return _show(request, member, form=form, status=422)
    now = utc_now()
    wanted = form.cleaned_data
    try:
        issued = api_tokens.issue(
            member, name=wanted["name"], scopes=wanted["scopes"], expires_at=form.expires_at(now), by=member.user, now=now
        )
    except DomainError as error:
        form.add_error("name", error.message)
        return _show(request, member, form=form, status=error.status)
    return _show(request, member, issued=issued)


@require_POST
@tenancy.page()
def revoke_token(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Revokes if the name was typed in. One's own; others' is for who manages the organization."""
    found = tenancy.owned(ApiToken.objects.select_related("member"), member.organization, uuid)
    if found.member_id != member.pk:
        tenancy.demand(member, Action.MANAGE_ORGANIZATION)
    if request.POST.get("confirm", "").strip() != found.name:
        messages.warning(request, _("Nothing was revoked: the name typed was not %(name)s.") % {"name": found.name})
    else:
        api_tokens.revoke(found, by=member.user, now=utc_now())
        messages.success(request, _("%(name)s is revoked. Its next call is refused.") % {"name": found.name})
    return redirect("settings_tokens", slug=member.organization.slug)
