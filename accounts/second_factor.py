"""Leads who lacks a required second factor to set one up, before any page of the organization that requires it.

The door is `accounts.tenancy.membership`: it knows nobody of whom a factor is missing, so a page, a form, a fetched part and a live
socket alike find no organization. Here that becomes the way to Security, for whoever can be led.
"""

from collections.abc import Callable

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django_htmx.http import HttpResponseClientRedirect

from accounts import factors, tenancy
from accounts.models import User

GO_ON = "second_factor_go_on"
"""Where in the session it stands what was asked for."""
OPERATORS_PREFIXES = ("/admin/", "/ratecards/")
ALWAYS_OPEN = ("/admin/login/", "/admin/logout/")


class SecondFactorMiddleware:
    """Comes after AuthenticationMiddleware."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path_info.startswith(OPERATORS_PREFIXES) and _is_barred(request):
            return led(request)
        return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        return led(request) if isinstance(error, tenancy.SecondFactorMissing) else None


def led(request: HttpRequest) -> HttpResponse:
    """The answer that leads to Security; a page that was asked for is gone on to from there."""
    url = reverse("security")
    if request.headers.get("HX-Request") == "true":
        return HttpResponseClientRedirect(url)
    if request.method == "GET":
        request.session[GO_ON] = request.get_full_path()
    return HttpResponseRedirect(url)


def _is_barred(request: HttpRequest) -> bool:
    """The operators' pages show all organizations, or all that a person belongs to: one that requires a factor bars them."""
    if not isinstance(request.user, User) or request.path_info in ALWAYS_OPEN:
        return False
    if request.user.is_superuser:
        return bool(settings.ADMIN_SECOND_FACTOR) and not factors.has_one(request.user.pk)
    return tenancy.is_barred_anywhere(request.user)
