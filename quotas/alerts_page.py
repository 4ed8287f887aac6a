"""Alerts: what is open, what needs somebody, who was told; endpoints for owners. Doors: they parse, call the domain, render."""

from typing import Any
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, display, locales, permissions, tenancy
from accounts.models import Member
from accounts.permissions import Action, Reach
from config.clock import utc_now
from config.errors import DomainError
from quotas import live
from quotas.alerts import audience, board, delivery, endpoints, telling
from quotas.alerts.models import Alert, WebhookEndpoint


class EndpointForm(forms.Form):
    """A new endpoint. Its URL is never rendered again."""

    name = forms.CharField(max_length=80, label=gettext_lazy("Name"))
    url = forms.CharField(max_length=endpoints.LONGEST_URL, label=gettext_lazy("URL"))
    format = forms.ChoiceField(choices=WebhookEndpoint.Format.choices, label=gettext_lazy("Format"))


class RuleForm(forms.Form):
    kind = forms.ChoiceField(choices=Alert.Kind.choices)
    on = forms.TypedChoiceField(choices=[("1", ""), ("0", "")], coerce=lambda value: value == "1")


def _show(
    request: HttpRequest,
    member: Member,
    *,
    form: EndpointForm | None = None,
    made: endpoints.Made | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page. `form`: an endpoint that was not added; `made`: one whose secret is shown this one time."""
    now = utc_now()
    seen = live.seen_all(member, "alerts", now=now)
    open_, earlier = board.alerts(member, now=now)
    sent, after = board.sent(member, before=request.GET.get("before", ""), now=now)
    may_manage = permissions.can(member, Action.MANAGE_ORGANIZATION)
    is_adding = may_manage and (form is not None or "add" in request.GET)
    frame = context.frame(member, "alerts", now)
    page: dict[str, Any] = {
        **frame,
        "live_seen": seen,
        "month": locales.current().months_above[now.astimezone(frame["zone"]).month - 1],
        "open": open_,
        "urgent": [one for one in open_ if one.is_urgent],
        "earlier": earlier,
        "sent": sent,
        "after": after,
        "before": request.GET.get("before", ""),
        "rules": board.rules(member, now=now),
        "endpoints": board.endpoints_of(member),
        "forecast": board.outlook(member, now=now),
        "is_own": permissions.reach(member, Action.SEE_ALERTS) is Reach.OWN,
        "may_manage": may_manage,
        "is_adding": is_adding,
        "form": (form or EndpointForm(auto_id="endpoint-%s")) if is_adding else None,
        "made": made,
        "tries": delivery.TRIES,
        "grace_text": display.duration(settings.KEY_ROTATION_GRACE_SECONDS),
        "path": reverse("alerts", kwargs={"slug": member.organization.slug}),
    }
    return render(request, "quotas/alerts.html", page, status=status)


def _back(member: Member, part: str = "") -> HttpResponse:
    return redirect(reverse("alerts", kwargs={"slug": member.organization.slug}) + part)


def _endpoint(member: Member, uuid: UUID) -> WebhookEndpoint:
    return tenancy.owned(WebhookEndpoint.objects.present().select_related("organization"), member.organization, uuid)


@never_cache
@require_safe
@tenancy.page(Action.SEE_ALERTS)
def alerts_page(request: HttpRequest, member: Member) -> HttpResponse:
    return _show(request, member)


@require_POST
@tenancy.page(Action.SEE_ALERTS)
def acknowledge(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """By who looks after the scope that it is about."""
    found = tenancy.owned(Alert.objects.select_related(*audience.RELATED), member.organization, uuid)
    if not audience.may_acknowledge(member, found):
        raise PermissionDenied
    if telling.acknowledge(found, by=member, now=utc_now()):
        messages.success(request, _("Acknowledged. It is not told again in its period."))
    else:
        messages.warning(request, _("It was acknowledged already."))
    return _back(member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def set_rule(request: HttpRequest, member: Member) -> HttpResponse:
    form = RuleForm(request.POST)
    if not form.is_valid():
        messages.warning(request, _("Nothing was changed: there is no such rule."))
        return _show(request, member, status=422)
    is_on = form.cleaned_data["on"]
    telling.set_rule(member.organization, form.cleaned_data["kind"], is_on=is_on, by=member.user)
    messages.success(request, _("Told from now on.") if is_on else _("Not told from now on. What is open stays so."))
    return _back(member, "#rules")


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def add_endpoint(request: HttpRequest, member: Member) -> HttpResponse:
    """Answers with the secret itself, this one time: a redirect would need it kept somewhere."""
    form = EndpointForm(request.POST, auto_id="endpoint-%s")
    if not form.is_valid():
        return _show(request, member, form=form, status=422)
    wanted = form.cleaned_data
    try:
        made = endpoints.add(member.organization, **wanted, by=member.user, now=utc_now())
    except DomainError as error:
        form.add_error(error.facts.get("field", "name"), error.message)
        return _show(request, member, form=form, status=error.status)
    if made.secret:
        return _show(request, member, made=made)
    messages.success(request, _("%(endpoint)s gets every alert from now on. Send it a test.") % {"endpoint": made.endpoint})
    return _back(member, "#endpoints")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def test_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Posts a test now, and says what was answered."""
    found = _endpoint(member, uuid)
    sent = delivery.test(found, now=utc_now())
    if sent.status == "sent":
        messages.success(
            request,
            _("%(endpoint)s took the test: %(code)s, %(ms)s ms.")
            % {"endpoint": found, "code": sent.response_code, "ms": sent.duration_ms},
        )
    else:
        said = _("it answered %(code)s") % {"code": sent.response_code} if sent.response_code else sent.error
        messages.warning(
            request,
            _("%(endpoint)s did not take the test: %(said)s. Alerts to it are tried %(tries)s times in a day.")
            % {"endpoint": found, "said": said, "tries": delivery.TRIES},
        )
    return _back(member, "#endpoints")


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def rotate_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """A new secret, shown in this answer only."""
    found = _endpoint(member, uuid)
    try:
        made = endpoints.rotate(found, by=member.user, now=utc_now(), seen=request.POST.get("seen"))
    except DomainError as error:
        messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
        return _back(member, "#endpoints")
    return _show(request, member, made=made)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def resume_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = _endpoint(member, uuid)
    if endpoints.resume(found, by=member.user):
        messages.success(request, _("%(endpoint)s gets every alert from now on.") % {"endpoint": found})
    return _back(member, "#endpoints")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def remove_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Removes if the name was typed in."""
    found = _endpoint(member, uuid)
    if request.POST.get("confirm", "").strip() != found.name:
        messages.warning(request, _("Nothing was removed: the name typed was not %(name)s.") % {"name": found.name})
        return _back(member, "#endpoints")
    endpoints.remove(found, by=member.user, now=utc_now())
    messages.success(request, _("%(endpoint)s is removed. What was sent to it stays in the list.") % {"endpoint": found})
    return _back(member, "#endpoints")
