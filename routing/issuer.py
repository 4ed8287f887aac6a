"""The client of the issuer: refresh tokens and authorization codes are traded for tokens, devices ask for a code and wait.

Refresh tokens and authorization codes work once, so a call whose answer does not come is told apart by whether it left: what was
never sent has spent nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
from django.conf import settings
from django.utils.translation import gettext as _

from config import tls
from routing import addresses
from routing.errors import CredentialError

TIMEOUT = httpx.Timeout(10.0, read=20.0)

PERMANENT = frozenset({"refresh_token_expired", "refresh_token_reused", "refresh_token_invalidated", "invalid_grant"})

NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.ProxyError)
DEFAULT_INTERVAL, LONGEST_INTERVAL = 5, 60
SLOW_DOWN_SECONDS = 5
"""What a poller adds to its interval when it is told to slow down (RFC 8628, 3.5)."""


class IssuerRefused(CredentialError):
    """The token or code will never work again. `reason` is the issuer's code."""

    def __init__(self, reason: str) -> None:
        super().__init__("The issuer does not take this sign-in any more.", reason=reason)
        self.reason = reason


class IssuerUnavailable(CredentialError):
    """No usable answer, and nothing was spent, or it cannot be said."""


class AnswerLost(IssuerUnavailable):
    """The request left and its answer did not arrive: the token may have been spent (N45)."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The reply's tokens; an empty one means: keep the old."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    id_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What a device was given: a code for its person to enter at `verification_url`. `interval` seconds between polls."""

    device_auth_id: str = field(repr=False)
    user_code: str
    verification_url: str
    interval: int


@dataclass(frozen=True, slots=True)
class Approved:
    """A device's person has said yes: a code and its verifier, to be exchanged."""

    code: str = field(repr=False)
    verifier: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pending:
    """Not yet. `slower`: seconds to add to the interval."""

    slower: int = 0


def device_redirect_uri() -> str:
    return f"{settings.UPSTREAM_AUTH_URL}/deviceauth/callback"


def device_page() -> str:
    """Where a person enters a device's code."""
    return f"{settings.UPSTREAM_AUTH_URL}/codex/device"


# ------------------------------------------------------------------------------------------------------------- calls


def renew(refresh_token: str, *, reason: str) -> Renewed:
    """Trades a refresh token for new tokens. Blocks for up to half a minute. Raises IssuerRefused, IssuerUnavailable."""
    body = {
        "client_id": settings.OAUTH_CLIENT_ID,
        "grant_type": "refresh_token",
        "refresh_token": refresh_token,
        "refresh_reason": reason,
    }
    answer = _post("/oauth/token", json=body)
    if answer.status_code == 200:
        return _renewed(answer)
    code = _code(answer)
    if answer.status_code == 401 or code in PERMANENT:
        raise IssuerRefused(code or "refused")
    raise IssuerUnavailable(_("The issuer cannot renew the sign-in now."), reason=f"status {answer.status_code}")


def exchange(code: str, *, redirect_uri: str, verifier: str) -> Renewed:
    """Trades an authorization code for the tokens of a new sign-in: all three. Raises IssuerRefused, IssuerUnavailable."""
    form = {
        "grant_type": "authorization_code",
        "client_id": settings.OAUTH_CLIENT_ID,
        "code": code,
        "redirect_uri": redirect_uri,
        "code_verifier": verifier,
    }
    answer = _post("/oauth/token", data=form)
    if answer.status_code == 200:
        renewed = _renewed(answer)
        if not (renewed.access_token and renewed.refresh_token and renewed.id_token):
            raise IssuerRefused("tokens_missing")
        return renewed
    if 400 <= answer.status_code < 500 and answer.status_code != 429:
        raise IssuerRefused(_code(answer) or f"status {answer.status_code}")
    raise IssuerUnavailable(_("The issuer cannot complete the sign-in now."), reason=f"status {answer.status_code}")


def device_code() -> DeviceCode:
    """Asks for a code that a person enters on another device. Raises IssuerRefused, IssuerUnavailable."""
    answer = _post("/api/accounts/deviceauth/usercode", json={"client_id": settings.OAUTH_CLIENT_ID})
    if answer.status_code == 404:
        raise IssuerRefused("device_code_not_enabled")
    found = _object(answer)
    device_auth_id, user_code = (found.get(name) for name in ("device_auth_id", "user_code"))
    if answer.status_code != 200 or not isinstance(device_auth_id, str) or not isinstance(user_code, str):
        raise IssuerUnavailable(_("The issuer gives no device code now."), reason=f"status {answer.status_code}")
    return DeviceCode(device_auth_id, user_code[:40], device_page(), _interval(found.get("interval")))


def device_poll(device_auth_id: str, user_code: str) -> Approved | Pending:
    """Asks whether the person has said yes. A passing failure is Pending. Raises IssuerRefused once it can only be no."""
    body = {"device_auth_id": device_auth_id, "user_code": user_code}
    try:
        answer = _post("/api/accounts/deviceauth/token", json=body)
    except IssuerUnavailable:
        return Pending()
    found, code = _object(answer), _code(answer)
    if answer.status_code == 200:
        granted, verifier = found.get("authorization_code"), found.get("code_verifier")
        if isinstance(granted, str) and granted and isinstance(verifier, str) and verifier:
            return Approved(granted, verifier)
        raise IssuerRefused("code_missing")
    if code in ("access_denied", "expired_token"):
        raise IssuerRefused(code)
    if code == "slow_down" or answer.status_code == 429:
        return Pending(slower=SLOW_DOWN_SECONDS)
    if code == "authorization_pending" or answer.status_code in (403, 404) or answer.status_code >= 500:
        return Pending()
    raise IssuerRefused(code or f"status {answer.status_code}")


# --------------------------------------------------------------------------------------------------------- the wire


def _post(path: str, *, json: Mapping[str, str] | None = None, data: Mapping[str, str] | None = None) -> httpx.Response:
    """Raises AnswerLost, IssuerUnavailable."""
    url = f"{settings.UPSTREAM_AUTH_URL}{path}"
    try:
        # Such calls are rare, so a connection of their own each; a proxy of the environment is for hosts outside.
        trusts = not addresses.is_local(url)
        trusted = tls.authorities(trusts_env=trusts)
        with httpx.Client(timeout=TIMEOUT, verify=trusted, trust_env=trusts, follow_redirects=False) as client:
            return client.post(url, json=json, data=data, headers={"user-agent": "weir"})
    except NOT_SENT as error:
        raise IssuerUnavailable(_("The issuer cannot be reached."), reason=type(error).__name__) from None
    except httpx.HTTPError as error:
        raise AnswerLost(_("The issuer's answer did not arrive."), reason=type(error).__name__) from None


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
        # It said yes, so what was traded is gone; what came for it cannot be read.
        raise AnswerLost(_("The issuer's answer holds no token."), reason="no token")
    return Renewed(texts.get("access_token", ""), texts.get("refresh_token", ""), texts.get("id_token", ""))


def _interval(value: object) -> int:
    """The pause between polls, which comes as a text; within bounds."""
    try:
        seconds = int(str(value))
    except ValueError:
        return DEFAULT_INTERVAL
    return max(1, min(seconds, LONGEST_INTERVAL))


def _code(answer: httpx.Response) -> str:
    """The failure code in any of its shapes: `error.code`, `error` as a text, `code`."""
    found = _object(answer)
    error = found.get("error")
    for value in (error.get("code") if isinstance(error, dict) else error, found.get("code")):
        if isinstance(value, str) and value:
            return value[:80]
    return ""
