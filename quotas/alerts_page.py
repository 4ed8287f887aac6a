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
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, display, permissions, tenancy
from accounts.models import Member
from accounts.permissions import Action, Reach
from config.clock import utc_now
from config.errors import DomainError
from quotas.alerts import audience, board, delivery, endpoints, telling
from quotas.alerts.models import Alert, WebhookEndpoint


class EndpointForm(forms.Form):
    """A new endpoint. Its URL is never rendered again."""

    name = forms.CharField(max_length=80, label="Name")
    url = forms.CharField(max_length=endpoints.LONGEST_URL, label="URL")
    format = forms.ChoiceField(choices=WebhookEndpoint.Format.choices, label="Format")


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
    open_, earlier = board.alerts(member, now=now)
    sent, after = board.sent(member, before=request.GET.get("before", ""), now=now)
    may_manage = permissions.can(member, Action.MANAGE_ORGANIZATION)
    is_adding = may_manage and (form is not None or "add" in request.GET)
    frame = context.frame(member, "alerts", now)
    page: dict[str, Any] = {
        **frame,
        "month": f"{now.astimezone(frame['zone']):%b}",
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
        messages.success(request, "Acknowledged. It is not told again in its period.")
    else:
        messages.warning(request, "It was acknowledged already.")
    return _back(member)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def set_rule(request: HttpRequest, member: Member) -> HttpResponse:
    form = RuleForm(request.POST)
    if not form.is_valid():
        messages.warning(request, "Nothing was changed: there is no such rule.")
        return _show(request, member, status=422)
    is_on = form.cleaned_data["on"]
    telling.set_rule(member.organization, form.cleaned_data["kind"], is_on=is_on, by=member.user)
    messages.success(request, "Told from now on." if is_on else "Not told from now on. What is open stays so.")
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
    messages.success(request, f"{made.endpoint} gets every alert from now on. Send it a test.")
    return _back(member, "#endpoints")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def test_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Posts a test now, and says what was answered."""
    found = _endpoint(member, uuid)
    sent = delivery.test(found, now=utc_now())
    if sent.status == "sent":
        messages.success(request, f"{found} took the test: {sent.response_code}, {sent.duration_ms} ms.")
    else:
        said = f"it answered {sent.response_code}" if sent.response_code else sent.error
        messages.warning(request, f"{found} did not take the test: {said}. Alerts to it are tried {delivery.TRIES} times in a day.")
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
        messages.warning(request, f"Nothing was changed: {error.message}")
        return _back(member, "#endpoints")
    return _show(request, member, made=made)


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def resume_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = _endpoint(member, uuid)
    if endpoints.resume(found, by=member.user):
        messages.success(request, f"{found} gets every alert from now on.")
    return _back(member, "#endpoints")


@require_POST
@tenancy.page(Action.MANAGE_ORGANIZATION)
def remove_endpoint(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Removes if the name was typed in."""
    found = _endpoint(member, uuid)
    if request.POST.get("confirm", "").strip() != found.name:
        messages.warning(request, f"Nothing was removed: the name typed was not {found.name}.")
        return _back(member, "#endpoints")
    endpoints.remove(found, by=member.user, now=utc_now())
    messages.success(request, f"{found} is removed. What was sent to it stays in the list.")
    return _back(member, "#endpoints")
