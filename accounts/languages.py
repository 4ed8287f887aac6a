"""In which language a page speaks: the person's choice, else the browser's. The API speaks English whatever a client asks for."""

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils import translation
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts import vouching
from accounts.models import User

ENGLISH_ONLY = ("/api/", "/health/", "/webhooks/")


class LanguageMiddleware:
    """Comes after Django's LocaleMiddleware, which reads cookie and header, and after the user is known."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        language = translation.get_language()
        if request.path_info.startswith(ENGLISH_ONLY):
            language = "en"
        elif isinstance(request.user, User) and request.user.language:
            language = request.user.language
        with translation.override(language):
            request.LANGUAGE_CODE = translation.get_language()
            return self.get_response(request)


def of_socket(scope: Mapping[str, Any], user: User | None) -> str:
    """As the page speaks that opened a socket (an ASGI scope with its cookies)."""
    if user is not None and user.language:
        return user.language
    request = HttpRequest()
    request.COOKIES = dict(scope.get("cookies", {}))
    accepted = dict(scope.get("headers", ())).get(b"accept-language", b"")
    request.META["HTTP_ACCEPT_LANGUAGE"] = accepted.decode("latin-1")
    return translation.get_language_from_request(request)


@never_cache
@require_POST
def choose(request: HttpRequest) -> HttpResponseBase:
    """Keeps the choice with the person, and in a cookie for the pages before the sign-in; `next` is where they were.

    A session that one of several organizations vouches for has the cookie only.
    """
    language = request.POST.get("language", "")
    there = request.POST.get("next", "")
    if not url_has_allowed_host_and_scheme(there, allowed_hosts={request.get_host()}, require_https=request.is_secure()):
        there = "/"
    response = redirect(there)
    if language not in dict(settings.LANGUAGES):
        return response
    if isinstance(request.user, User) and vouching.speaks_for_person(request.user):
        User.objects.filter(pk=request.user.pk).update(language=language)
    response.set_cookie(
        settings.LANGUAGE_COOKIE_NAME,
        language,
        max_age=365 * 86400,
        httponly=True,
        samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )
    return response
