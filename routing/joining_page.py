"""What is posted in the dialog that adds an account: sign-ins are begun and ended, files and keys are taken. Doors.

All of it asks an upstream, so none of it runs in a transaction (requests are not wrapped in one). What was typed and is secret (a
key, a file, the address that a sign-in ended at) goes to the domain function and is rendered nowhere.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django import forms as django_forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts import permissions, tenancy
from accounts.forms import listed
from accounts.models import Member
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from routing import device, import_jobs, joining, oauth, terms, upkeep
from routing.errors import CallbackInvalid, TermsNotAccepted
from routing.joining import Joined, Outcome
from routing.models import PoolAccount
from routing.pool_forms import BY_KEY, CallbackForm, FilesForm, KeyForm, PlaceForm, SignInForm, told
from routing.pool_page import BROWSER, DEVICE, ENDPOINT, FILES, KEY, Shown, path, show

REFUSED = 422
AUTO_ID = "add-%s"
NOT_THEIRS = gettext_lazy("Sign-in accounts are off until an owner has accepted the terms below.")


def _accepted(member: Member, form: SignInForm) -> bool:
    """Whether the terms are accepted with this form."""
    return terms.accepted_by(member, said=form.cleaned_data["accept_terms"] is True)


def _again(
    request: HttpRequest,
    member: Member,
    way: str,
    form: django_forms.Form,
    error: DomainError | None = None,
    *,
    field: str = "label",
    flow_id: str = "",
) -> HttpResponse:
    """The dialog with the form in it and what was wrong with it."""
    if isinstance(error, TermsNotAccepted):
        is_owner = permissions.can(member, Action.MANAGE_ORGANIZATION)
        form.add_error("accept_terms", _("Accept the terms first.") if is_owner else NOT_THEIRS)
    elif error is not None:
        told(form, field, error)
    return show(request, member, shown=Shown(way=way, join_form=form, flow_id=flow_id), status=_status(error))


def _status(error: DomainError | None) -> int:
    """A refusal of an upstream is none of ours: the page is here."""
    return error.status if error is not None and error.status < 500 else REFUSED


def _placed(joined: Joined, form: PlaceForm, member: Member) -> None:
    if place := form.place():
        upkeep.change(joined.account, place, by=member.user)


def _welcome(request: HttpRequest, member: Member, joined: Joined) -> HttpResponseRedirect:
    """Back to the page, which says what became of it."""
    account = joined.account
    if account.status == PoolAccount.Status.PAUSED:
        said = _("%(account)s has a new credential. It was paused, and stays so until it is resumed.")
    elif joined.is_new:
        said = _("%(account)s is in the pool and serves from the next request on.")
    else:
        said = _("%(account)s was here already; its credential is renewed, and it serves.")
    messages.success(request, said % {"account": account.label})
    return redirect(path(member))


def _flow(member: Member, way: str, flow_id: UUID) -> HttpResponse:
    return redirect(f"{path(member)}?add={way}&flow={flow_id}")


# ---------------------------------------------------------------------------------------------------------- sign-ins


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def begin_browser(request: HttpRequest, member: Member) -> HttpResponse:
    return _begin(request, member, BROWSER)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def begin_device(request: HttpRequest, member: Member) -> HttpResponse:
    return _begin(request, member, DEVICE)


def _begin(request: HttpRequest, member: Member, way: str) -> HttpResponse:
    form = SignInForm(request.POST, auto_id=AUTO_ID)
    if not form.is_valid():
        return _again(request, member, way, form)
    wanted = form.cleaned_data
    start = oauth.start if way == BROWSER else device.start
    try:
        started = start(
            member.organization,
            label=wanted["label"],
            plan=wanted["plan"] or None,
            accept_terms=_accepted(member, form),
            by=member.user,
            now=utc_now(),
        )
    except DomainError as error:
        return _again(request, member, way, form, error)
    return _flow(member, way, started.flow_id)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def end_browser(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Takes the address that the sign-in ended at. One that is not this sign-in's leaves it open."""
    form = CallbackForm(request.POST, auto_id=AUTO_ID)
    flow_id = str(uuid)
    if not form.is_valid():
        return _again(request, member, BROWSER, form, flow_id=flow_id)
    try:
        joined = oauth.finish(member.organization, uuid, form.cleaned_data["pasted"], by=member.user, now=utc_now())
    except CallbackInvalid as error:
        return _again(request, member, BROWSER, form, error, field="pasted", flow_id=flow_id)
    except DomainError as error:
        # The sign-in is used up: what follows is a new one.
        return _again(request, member, BROWSER, SignInForm({}, auto_id=AUTO_ID), error)
    _placed(joined, form, member)
    return _welcome(request, member, joined)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def poll_device(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Asks once whether the code has been entered; htmx asks again when it may."""
    form = PlaceForm(request.POST, auto_id=AUTO_ID)
    is_htmx = "HX-Request" in request.headers
    if not form.is_valid():
        if is_htmx:
            return _device_part(request, member, uuid, note=_("What its person keeps is 0 to 100 percent, a tier −100 to 100."))
        return _again(request, member, DEVICE, form, flow_id=str(uuid))
    try:
        found = device.poll(member.organization, uuid, by=member.user, now=utc_now())
    except DomainError as error:
        if is_htmx:
            return _device_part(request, member, uuid, over=error.message, status=_status(error))
        return _again(request, member, DEVICE, SignInForm({}, auto_id=AUTO_ID), error)
    if not isinstance(found, Joined):
        return _device_part(request, member, uuid, retry_after=found.retry_after) if is_htmx else _flow(member, DEVICE, uuid)
    _placed(found, form, member)
    welcome = _welcome(request, member, found)
    return HttpResponse(headers={"HX-Redirect": welcome.url}) if is_htmx else welcome


def _device_part(
    request: HttpRequest, member: Member, flow_id: UUID, *, over: str = "", note: str = "", retry_after: int = 2, status: int = 200
) -> HttpResponse:
    """The line that waits, which asks again by itself; `over`: why there is nothing to wait for any more."""
    part = {
        "organization": member.organization,
        "flow_id": flow_id,
        "over": over,
        "note": note,
        "retry_after": retry_after,
        "path": path(member),
    }
    return render(request, "routing/_device_wait.html", part, status=status)


# ------------------------------------------------------------------------------------------------------ files and keys


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def add_files(request: HttpRequest, member: Member) -> HttpResponse:
    """Takes `auth.json` files; each sign-in in them is told on its own."""
    form = FilesForm(request.POST, auto_id=AUTO_ID)
    given = request.FILES.getlist("files")
    if not form.is_valid():
        return _again(request, member, FILES, form)
    wanted = form.cleaned_data
    if not given:
        form.add_error(None, _("Choose one or more auth.json files."))
        return _again(request, member, FILES, form)
    if len(given) > 1 and wanted["label"]:
        form.add_error("label", _("A name is for one account, and several files were given."))
        return _again(request, member, FILES, form)
    files = [(str(file.name or "file")[:120], file.read(joining.LARGEST_FILE_BYTES + 1)) for file in given]
    try:
        if import_jobs.are_many(files):
            return _import(request, member, form, files)
        outcomes = joining.add_files(
            member.organization,
            files,
            label=wanted["label"],
            plan=wanted["plan"] or None,
            accept_terms=_accepted(member, form),
            by=member.user,
            now=utc_now(),
        )
    except DomainError as error:
        return _again(request, member, FILES, form, error)
    return _told(request, member, form, outcomes)


def _import(request: HttpRequest, member: Member, form: FilesForm, files: Sequence[tuple[str, bytes]]) -> HttpResponse:
    """Many sign-ins are shown to their upstream by a worker; the page of exports tells what became of each. Raises DomainError."""
    wanted = form.cleaned_data
    job = import_jobs.start(
        member,
        files,
        plan=wanted["plan"] or None,
        accept_terms=_accepted(member, form),
        place=form.place(),
        now=utc_now(),
    )
    messages.success(request, _("The import has begun. You can leave this page; it goes on, and tells of each sign-in here."))
    return redirect(f"{reverse('jobs', kwargs={'slug': member.organization.slug})}#job-{job.uuid}")


def _told(request: HttpRequest, member: Member, form: FilesForm, outcomes: Sequence[Outcome]) -> HttpResponse:
    joined = [outcome.joined for outcome in outcomes if outcome.joined is not None]
    for one in joined:
        _placed(one, form, member)
    if len(outcomes) == 1 and joined:
        return _welcome(request, member, joined[0])
    member.organization.refresh_from_db()
    status = 200 if joined else REFUSED
    return show(request, member, shown=Shown(way=FILES, outcomes=outcomes, join_form=FilesForm(auto_id=AUTO_ID)), status=status)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def add_key(request: HttpRequest, member: Member) -> HttpResponse:
    form = KeyForm(request.POST, auto_id=AUTO_ID)
    way = KEY if request.POST.get("kind") in dict(BY_KEY) else ENDPOINT
    if not form.is_valid():
        return _again(request, member, way, form)
    wanted: dict[str, Any] = form.cleaned_data
    try:
        joined = joining.add_key(
            member.organization,
            wanted["api_key"],
            kind=wanted["kind"],
            label=wanted["label"],
            base_url=wanted["base_url"] or None,
            models=listed(wanted["models"]),
            by=member.user,
            now=utc_now(),
        )
    except DomainError as error:
        fields = {"address_refused": "base_url", "account_invalid": "base_url" if way == ENDPOINT else "label"}
        return _again(request, member, way, form, error, field=fields.get(error.code, "api_key"))
    _placed(joined, form, member)
    return _welcome(request, member, joined)
