"""What is posted on Members & limits about limits: set, change, remove, give more for a time, decide a request. Doors."""

from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts import display, tenancy
from accounts.models import ApiKey, Member
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from quotas import bulk, levels, limits, requests, rights, undo_offer
from quotas.boost_forms import AmountForm, DecisionForm, LimitForm, MoreForm, told
from quotas.members_page import EDIT, MORE, NEW, Opened, show_member, show_members
from quotas.models import Limit, LimitBoost, LimitRequest
from quotas.rights import Subject


def _holder(limit: Limit) -> Member | None:
    return limit.member or (limit.key.member if limit.key is not None else None)


def _shown(request: HttpRequest, member: Member, holder: Member | None, opened: Opened, status: int) -> HttpResponse:
    """The page that the form stood on, with the form open."""
    if holder is not None and request.POST.get("page") != "members":
        return show_member(request, member, holder, open_=opened, status=status)
    return show_members(request, member, open_=opened, status=status)


def _back(request: HttpRequest, member: Member, holder: Member | None) -> HttpResponse:
    if holder is not None and request.POST.get("page") != "members":
        return redirect("member", slug=member.organization.slug, uuid=holder.uuid)
    return redirect("members", slug=member.organization.slug)


def _subject(member: Member, level: str) -> tuple[str, Subject, Member | None]:
    """Scope, the row, and whose page it belongs on. Raises Http404, PermissionDenied."""
    scope, _, uuid = level.partition(":")
    try:
        subject = rights.find_subject(member, scope, UUID(uuid) if uuid else None)
    except ValueError:
        raise Http404 from None
    holder = subject.member if isinstance(subject, ApiKey) else subject if isinstance(subject, Member) else None
    return scope, subject, holder


@never_cache
@require_POST
@tenancy.page(Action.SET_LIMITS)
def set_limit(request: HttpRequest, member: Member) -> HttpResponse:
    """A new limit, or another amount for the one that asks the same question."""
    form = LimitForm(request.POST)
    scope, subject, holder = _subject(member, request.POST.get("level", ""))
    if not form.is_valid():
        return _shown(request, member, holder, Opened(NEW, "", form), 422)
    wanted = form.cleaned_data
    options: dict[str, Any] = {}
    if form.model_names:
        options["models"] = form.model_names
    if wanted["is_exact"]:
        options["strategy"] = Limit.Strategy.SLIDING_LOG
    try:
        set_ = limits.set_limit(
            member.organization,
            scope=scope,
            of=rights.name_of(subject),
            metric=wanted["metric"],
            window=wanted["window"],
            amount=wanted["amount"],
            by=member.user,
            setter=member,
            **options,
        )
    except DomainError as error:
        told(form, "amount", error)
        return _shown(request, member, holder, Opened(NEW, "", form), error.status)
    if set_ is not None:
        limit = Limit.objects.select_related(*rights.RELATED).get(uuid=set_)
        _say_set(request, member, limit, bulk.Undo())
    return _back(request, member, holder)


def _say_set(request: HttpRequest, member: Member, limit: Limit, undo: bulk.Undo) -> None:
    text = _("{limit} is {amount} from the next request on.").format(limit=levels.named(limit), amount=levels.amount_text(limit))
    undo_offer.make(request, member, text, undo, row=str(limit.uuid))


@never_cache
@require_POST
@tenancy.page(Action.SET_LIMITS)
def change_limit(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    limit = rights.find_limit(member, uuid)
    form = AmountForm(request.POST)
    holder, was = _holder(limit), limit.amount
    if not form.is_valid():
        return _shown(request, member, holder, Opened(EDIT, str(uuid), form), 422)
    try:
        limits.change(limit, form.cleaned_data["amount"], by=member.user, setter=member)
    except DomainError as error:
        told(form, "amount", error)
        return _shown(request, member, holder, Opened(EDIT, str(uuid), form), error.status)
    changed = Limit.objects.select_related(*rights.RELATED).filter(pk=limit.pk).first()
    if changed is None:
        messages.warning(request, _("Nothing was changed: the limit was removed meanwhile."))
    else:
        undo = bulk.undo_of_amount(changed, was) if changed.amount != was else bulk.Undo()
        _say_set(request, member, changed, undo)
    return _back(request, member, holder)


@require_POST
@tenancy.page(Action.SET_LIMITS)
def remove_limit(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    limit = rights.find_limit(member, uuid)
    whose = levels.named(limit)
    try:
        limits.change(limit, "none", by=member.user, setter=member)
    except DomainError as error:
        messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
    else:
        messages.success(request, _("%(limit)s is gone from the next request on; every other one still holds.") % {"limit": whose})
    return _back(request, member, _holder(limit))


@never_cache
@require_POST
@tenancy.page(Action.SET_LIMITS)
def boost(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """More of a limit for a time."""
    limit = rights.find_limit(member, uuid)
    form = MoreForm(request.POST)
    holder = _holder(limit)
    if not form.is_valid():
        return _shown(request, member, holder, Opened(MORE, str(uuid), form), 422)
    wanted, zone, now = form.cleaned_data, ZoneInfo(member.organization.timezone), utc_now()
    try:
        given = limits.boost(
            limit,
            extra=requests.extra_of(limit, wanted["extra"]),
            until=requests.checked_until(form.ends_at(zone), now=now, zone=zone),
            reason=requests.checked_note(wanted["note"]),
            by=member.user,
            setter=member,
            now=now,
        )
    except DomainError as error:
        told(form, error.facts.get("field", "extra"), error)
        return _shown(request, member, holder, Opened(MORE, str(uuid), form), error.status)
    last = display.day(wanted["until"], wanted["until"])
    text = _("{limit} is raised until the end of {day}, from the next request on.").format(limit=levels.named(limit), day=last)
    undo_offer.make(request, member, text, bulk.Undo((("boost", str(given.uuid)),)), row=str(limit.uuid))
    return _back(request, member, holder)


@require_POST
@tenancy.page(Action.SET_LIMITS)
def end_boost(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    given = tenancy.owned(LimitBoost.objects.select_related("limit"), member.organization, uuid)
    limit = rights.find_limit(member, given.limit.uuid)
    limits.end_boost(given, by=member.user, now=utc_now())
    messages.success(
        request,
        _("What was given on top has ended: %(limit)s is %(amount)s.")
        % {"limit": levels.named(limit), "amount": levels.amount_text(limit)},
    )
    return _back(request, member, _holder(limit))


@never_cache
@require_POST
@tenancy.page(Action.SET_LIMITS)
def decide(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Approves or denies a request for more; of two who do it at once the second is told that it is done."""
    found = tenancy.owned(LimitRequest.objects.select_related("member__user"), member.organization, uuid)
    tenancy.demand(member, Action.SET_LIMITS, of=found.member)
    form = DecisionForm(request.POST)
    if not form.is_valid():
        return show_members(request, member, decided=(str(uuid), _("Approve or deny?")), status=422)
    note, now = form.cleaned_data["note"], utc_now()
    try:
        if form.cleaned_data["decision"] == "approve":
            requests.approve(found, decider=member, note=note, now=now)
            messages.success(request, _("%(member)s has more from the next request on.") % {"member": found.member})
        else:
            requests.deny(found, decider=member, note=note, now=now)
            messages.success(request, _("The request is denied; %(member)s sees why.") % {"member": found.member})
    except DomainError as error:
        if found.status != LimitRequest.Status.PENDING or error.code == "request_decided":
            messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
        return show_members(request, member, decided=(str(uuid), error.message), status=error.status)
    return redirect("members", slug=member.organization.slug)
