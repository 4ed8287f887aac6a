"""What every Django request goes through first: whom to believe about the client, an id for logs, the admin's own policy."""

import ipaddress
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from zoneinfo import ZoneInfo

from csp.constants import SELF, UNSAFE_EVAL, UNSAFE_INLINE
from django.conf import settings
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from psycopg.errors import QueryCanceled

from accounts import administration
from config import logging as weir_logging
from config import patience, scope

logger = logging.getLogger(__name__)


class RequestContextMiddleware:
    """Sets the log context; a client's own X-Request-Id is not believed."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = "page_" + secrets.token_hex(8)
        with weir_logging.context(request_id=request_id):
            response = self.get_response(request)
        response["X-Request-Id"] = request_id
        return response


class TrustedProxyMiddleware:
    """Forwarded headers count only from TRUSTED_PROXIES: from anyone else they are removed before anything reads them (N71, J7).

    From a trusted proxy, REMOTE_ADDR becomes the right-most address of X-Forwarded-For that is not a trusted proxy's: what stands
    left of it was written by the client itself. Comes first in MIDDLEWARE.
    """

    OTHERS = ("HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PORT", "HTTP_X_REAL_IP", "HTTP_FORWARDED")

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        peer = request.META.get("REMOTE_ADDR")
        forwarded = request.META.pop("HTTP_X_FORWARDED_FOR", "")
        if not _is_trusted(peer):
            for name in self.OTHERS:
                request.META.pop(name, None)
        else:
            for hop in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
                if _address(hop) is None:
                    break
                peer = hop
                if not _is_trusted(hop):
                    break
            request.META["REMOTE_ADDR"] = peer
        return self.get_response(request)


def _address(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_trusted(text: str | None) -> bool:
    address = _address(text)
    return address is not None and any(address in ipaddress.ip_network(network) for network in settings.TRUSTED_PROXIES)


class ScopeMiddleware:
    """A request begins with no tenant's rows in sight. In the admin operators see all, and an owner or lead of a whole organization
    sees that one (`accounts.administration`), with times in that one's zone. Comes after AuthenticationMiddleware.

    Which organization a page is about is found out by `accounts.tenancy.page`, the API's by its authentication.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with self._scope(request):
            return self.get_response(request)

    @contextmanager
    def _scope(self, request: HttpRequest) -> Iterator[None]:
        administrator = administration.note(request) if request.path_info.startswith("/admin/") else None
        if administrator is not None:
            zone = ZoneInfo(administrator.organization.timezone)
            with scope.organization(administrator.organization_id), timezone.override(zone):
                yield
            return
        is_all = request.path_info.startswith("/admin/") and administration.is_operator(request)
        with scope.everything() if is_all else scope.nothing():
            yield


class PatienceMiddleware:
    """No statement of a page may take longer than it should: the page fails, and the database stays there for everybody (H5)."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        with patience.statements_within(patience.PAGE_SECONDS):
            return self.get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, OperationalError) or not isinstance(error.__cause__, QueryCanceled):
            return None
        logger.error("a page asked for too much", extra={"path": request.path_info})
        return render(request, "503.html", status=503)


class AdminPolicyMiddleware:
    """The admin's own content policy: its theme evaluates expressions and writes style attributes. Comes after CSPMiddleware."""

    POLICY = {"script-src": [SELF, UNSAFE_EVAL], "style-src": [SELF, UNSAFE_INLINE]}

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path_info.startswith("/admin/"):
            response._csp_update = self.POLICY  # type: ignore[attr-defined]  # django-csp's way to say it
        return response
