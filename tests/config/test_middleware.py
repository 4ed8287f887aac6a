"""Whom to believe about the client, and the admin's own policy."""

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from config.middleware import TrustedProxyMiddleware


def seen(remote: str, **headers: str) -> HttpRequest:
    """The request as the application sees it, sent by `remote`."""
    request = RequestFactory().get("/", REMOTE_ADDR=remote, **{f"HTTP_{name}": value for name, value in headers.items()})
    TrustedProxyMiddleware(lambda _request: HttpResponse())(request)
    return request


@pytest.mark.parametrize("forged", ["127.0.0.1", "10.0.0.1", "::1", "127.0.0.1, 203.0.113.9", "nonsense"])
def test_a_header_from_outside_is_not_believed(forged: str, settings: Any) -> None:
    """N71, J7: X-Forwarded-For of a peer who is no trusted proxy changes nothing and is read by nobody after."""
    for trusted in ([], ["10.0.0.0/8"]):
        settings.TRUSTED_PROXIES = trusted
        request = seen(
            "203.0.113.9", X_FORWARDED_FOR=forged, X_FORWARDED_PROTO="https", X_FORWARDED_HOST="evil.example", X_REAL_IP=forged
        )
        assert request.META["REMOTE_ADDR"] == "203.0.113.9"
        assert not request.is_secure()
        assert not [name for name in request.META if "FORWARDED" in name or "REAL_IP" in name]


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("127.0.0.1, 198.51.100.7", "198.51.100.7"),
        ("198.51.100.7, 10.9.9.9", "198.51.100.7"),
        ("10.1.1.1, 10.9.9.9", "10.1.1.1"),
        ("198.51.100.7, nonsense", "10.0.0.2"),
        ("", "10.0.0.2"),
        ("2001:db8::7", "2001:db8::7"),
    ],
)
def test_a_trusted_proxy_names_the_client(forwarded: str, client: str, settings: Any) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    request = seen("10.0.0.2", X_FORWARDED_FOR=forwarded, X_FORWARDED_PROTO="https")
    assert request.META["REMOTE_ADDR"] == client
    assert request.is_secure()


def test_an_ipv4_proxy_seen_over_ipv6_is_the_same_proxy(settings: Any) -> None:
    settings.TRUSTED_PROXIES = ["10.0.0.0/8"]
    assert seen("::ffff:10.0.0.2", X_FORWARDED_FOR="198.51.100.7").META["REMOTE_ADDR"] == "198.51.100.7"
