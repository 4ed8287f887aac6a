"""The client of the token endpoint: one call that spends a single-use refresh token."""

import ipaddress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from django.conf import settings

from routing.errors import CredentialError

TIMEOUT = httpx.Timeout(10.0, read=20.0)

PERMANENT = frozenset({"refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "invalid_grant"})


class IssuerRefused(CredentialError):
    """The refresh token will never work again. `reason` is the issuer's code."""

    def __init__(self, reason: str) -> None:
        super().__init__("The issuer does not renew this sign-in any more.", reason=reason)
        self.reason = reason


class IssuerUnavailable(CredentialError):
    """No usable answer. The token may have been spent all the same (N45)."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The reply's tokens; an empty one means: keep the old."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    id_token: str = field(repr=False)


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def renew(refresh_token: str, *, reason: str) -> Renewed:
    """Trades a refresh token for new tokens. Blocks for up to half a minute. Raises IssuerRefused, IssuerUnavailable."""
    url = f"{settings.UPSTREAM_AUTH_URL}/oauth/token"
    body = {
        "client_id": settings.OAUTH_CLIENT_ID,
        "grant_type": "refresh_token",
        "refresh_token": refresh_token,
        "refresh_reason": reason,
    }
    try:
        # Refreshes are rare, so a connection of their own each; a proxy of the environment is for hosts outside.
        with httpx.Client(timeout=TIMEOUT, trust_env=not _is_local(url), follow_redirects=False) as client:
            answer = client.post(url, json=body, headers={"user-agent": "weir"})
    except httpx.HTTPError as error:
        raise IssuerUnavailable("The issuer does not answer.", reason=type(error).__name__) from None
    if answer.status_code == 200:
        return _renewed(answer)
    code = _code(answer)
    if answer.status_code == 401 or code in PERMANENT:
        raise IssuerRefused(code or "refused")
    raise IssuerUnavailable("The issuer cannot renew the sign-in now.", reason=f"status {answer.status_code}")


def _object(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _renewed(answer: httpx.Response) -> Renewed:
    found = _object(answer)
    texts = {name: value for name, value in found.items() if isinstance(value, str)}
    if not texts.get("access_token") and not texts.get("refresh_token"):
        raise IssuerUnavailable("The issuer's answer holds no token.", reason="no token")
    return Renewed(texts.get("access_token", ""), texts.get("refresh_token", ""), texts.get("id_token", ""))


def _code(answer: httpx.Response) -> str:
    """The failure code in any of its shapes: `error.code`, `error` as a text, `code`."""
    found = _object(answer)
    error = found.get("error")
    for value in (error.get("code") if isinstance(error, dict) else error, found.get("code")):
        if isinstance(value, str) and value:
            return value[:80]
    return ""
