"""Joining by a one-time link. Here and not in accounts, because the first owner's organization starts on a plan."""

from allauth.account.adapter import get_adapter
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from accounts import forms, invitations
from accounts.adapter import signed_in_by_password
from accounts.errors import InvitationInvalid
from billing import joining
from config.clock import utc_now
from config.errors import DomainError


@never_cache
@csrf_protect
@require_http_methods(["GET", "HEAD", "POST"])
def join(request: HttpRequest, token: str) -> HttpResponse:
    """Shows what the link offers; a POST uses it up and signs the person in; who has a second factor is asked for it first.

    A link that does not hold answers 404.
    """
    now = utc_now()
    try:
        offer = invitations.look_up(token, now=now)
    except InvitationInvalid:
        return render(request, "accounts/join.html", {"invitation": None}, status=404)
    form = forms.JoinForm(request.POST or None)
    page = {"invitation": offer.invitation, "form": form, "has_password": offer.has_password, "name": offer.name}
    if request.method != "POST":
        return render(request, "accounts/join.html", page)
    if not form.is_valid():
        return render(request, "accounts/join.html", page, status=400)
    if offer.has_password:
        # Who made the link holds it too: tries at the person's password count as they do at sign-in.
        try:
            get_adapter(request).authenticate(request, email=offer.email, password=form.cleaned_data["password"])
        except ValidationError as error:
            form.add_error(None, error)
            return render(request, "accounts/join.html", page, status=429)
    try:
        accepted = joining.accept_link(
            token,
            password=form.cleaned_data["password"],
            email=form.cleaned_data["email"],
            organization_name=form.cleaned_data["organization"],
            timezone=form.cleaned_data["timezone"] or "UTC",
            name=form.cleaned_data["name"],
            now=now,
        )
    except DomainError as error:
        form.add_error(None, error.message)
        return render(request, "accounts/join.html", page, status=error.status)
    to = reverse("organization", kwargs={"slug": accepted.member.organization.slug})
    return signed_in_by_password(request, accepted.user, to=to)
