"""Security: which factors one has, and who is signed in as oneself. Above a person's organizations, so it lies below /accounts/."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.views import AddWebAuthnView, EditWebAuthnView, RemoveWebAuthnView
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse_lazy
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, factors, mfa_adapter, policies, second_factor, sessions, tenancy
from accounts.models import Member, User
from config.clock import utc_now

PLAIN = "account/frame.html"
"""The frame of who has no organization, or none that is open yet."""


@dataclass(frozen=True, slots=True)
class Passkey:
    name: str
    title: str
    is_alone: bool
    """Does it sign in without a password?"""
    added_at: datetime
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Codes:
    left: int
    made: int


@never_cache
@require_safe
@login_required
def security(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    rows = list(Authenticator.objects.filter(user=user).order_by("pk"))
    app = next((row for row in rows if row.type == Authenticator.Type.TOTP), None)
    codes = next((row for row in rows if row.type == Authenticator.Type.RECOVERY_CODES), None)
    passkeys = [_passkey(row) for row in rows if row.type == Authenticator.Type.WEBAUTHN]
    demanding = policies.demanding(user)
    is_protected = app is not None or bool(passkeys)
    page = {
        "app": app,
        "passkeys": passkeys,
        "codes": _codes(codes) if codes is not None else None,
        "demanding": demanding,
        "is_protected": is_protected,
        "is_alone_enough": any(one.is_alone for one in passkeys),
        "is_missing": bool(demanding) and not is_protected,
        "is_only": len(passkeys) + (app is not None) == 1,
        "go_on": request.session.get(second_factor.GO_ON) if is_protected else None,
        "sessions": sessions.listed(user, request.session.session_key),
        "has_password": user.has_usable_password(),
        "is_by_number": mfa_adapter.is_number(request.get_host().rpartition(":")[0] or request.get_host()),
    }
    if is_protected:
        request.session.pop(second_factor.GO_ON, None)
    return render(request, "account/security.html", {**_frame(request, is_missing=bool(page["is_missing"])), **page})


@require_POST
@login_required
def end_session(request: HttpRequest) -> HttpResponse:
    """Ends one session of the person's. It may have ended meanwhile: then that is said."""
    user = _user(request)
    if sessions.end(user, request.POST.get("session", "")):
        factors.record(user, "session.ended", by=user, data={"sessions_ended": 1})
        messages.success(request, _("That browser is signed out."))
    else:
        messages.info(request, _("That session had ended already."))
    return redirect("security")


@require_POST
@login_required
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    user = _user(request)
    ended = sessions.end_others(user, request)
    if ended:
        factors.record(user, "session.ended", by=user, data={"sessions_ended": ended})
    messages.success(request, _("Only this browser is signed in as you now."))
    return redirect("security")


@login_required
def gone(request: HttpRequest, pk: int) -> HttpResponse:
    """allauth's addresses of passkeys, which count rows; ours are others."""
    raise Http404


class AddPasskey(AddWebAuthnView):  # type: ignore[misc]  # allauth has no types
    """With its codes, its event and its message, or not at all."""

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
        return response


class _Own:
    """A passkey of one's own by its name; another's is as missing as none."""

    kwargs: dict[str, Any]
    request: HttpRequest

    def get_object(self, queryset: Any = None) -> Authenticator:
        found = factors.passkey(_user(self.request), self.kwargs["name"])
        if found is None:
            raise Http404
        return found


class RemovePasskey(_Own, RemoveWebAuthnView):  # type: ignore[misc]
    success_url = reverse_lazy("security")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        found = self.get_object()
        refusal = (
            None if get_adapter().can_delete_authenticator(found) else get_adapter().error_messages["cannot_delete_authenticator"]
        )
        return {**super().get_context_data(**kwargs), "passkey": _passkey(found), "refusal": refusal}

    def form_valid(self, form: Any) -> HttpResponse:
        if not get_adapter().can_delete_authenticator(self.get_object()):
            refused: HttpResponse = self.render_to_response(self.get_context_data(form=form), status=409)
            return refused
        with transaction.atomic():
            response: HttpResponse = super().form_valid(form)
        return response


class RenamePasskey(_Own, EditWebAuthnView):  # type: ignore[misc]
    success_url = reverse_lazy("security")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "passkey": _passkey(self.get_object())}


add_passkey: Callable[..., HttpResponseBase] = never_cache(AddPasskey.as_view())
remove_passkey: Callable[..., HttpResponseBase] = login_required(RemovePasskey.as_view())
rename_passkey: Callable[..., HttpResponseBase] = login_required(RenamePasskey.as_view())


def _user(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    return request.user


def _passkey(row: Authenticator) -> Passkey:
    wrapped = row.wrap()
    return Passkey(factors.name_of(row), wrapped.name, wrapped.is_passwordless is True, row.created_at, row.last_used_at)


def _codes(row: Authenticator) -> Codes:
    wrapped = row.wrap()
    return Codes(left=len(wrapped.get_unused_codes()), made=len(wrapped.generate_codes()))


def _frame(request: HttpRequest, *, is_missing: bool) -> dict[str, Any]:
    """The last used organization's frame, if it is open to the person; else a plain one with times in UTC."""
    now = utc_now()
    member: Member | None = None if is_missing else tenancy.last_used(request)
    if member is None:
        return {"frame": PLAIN, "now": now, "zone": ZoneInfo("UTC")}
    return {"frame": "shell.html", **context.frame(member, "security", now)}
