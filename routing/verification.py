"""One call that asks an upstream whether it takes a credential, before the account serves anybody. Never an inference."""

import json
import time
from typing import NoReturn

import httpx
from django.conf import settings
from django.utils.translation import gettext as _

from config import tls
from routing import addresses
from routing.errors import CredentialRefused, CredentialUnverified
from routing.models import PoolAccount
from routing.snapshots import ANTHROPIC_VERSION

TIMEOUT = httpx.Timeout(10.0, read=20.0)
BODY_SECONDS = 5.0
MOST_BODY_BYTES = 64 * 1024

REFUSED = frozenset({401, 402, 403})
UNAVAILABLE_FROM = 500


def sign_in(access_token: str, chatgpt_account_id: str) -> None:
    """Asks the ChatGPT backend for the account's usage. Raises CredentialRefused, CredentialUnverified."""
    headers = {"authorization": f"Bearer {access_token}", "chatgpt-account-id": chatgpt_account_id}
    _ask(f"{settings.UPSTREAM_CHATGPT_URL}/wham/usage", headers, pinned=None)


def api_key(api_key: str, base_url: str, *, kind: str = PoolAccount.Kind.OPENAI) -> None:
    """Asks the API for its list of models. Raises CredentialRefused, CredentialUnverified, AddressRefused."""
    address = base_url.rstrip("/")
    if kind == PoolAccount.Kind.ANTHROPIC:
        headers = {"x-api-key": api_key, "anthropic-version": ANTHROPIC_VERSION}
    else:
        headers = {"authorization": f"Bearer {api_key}"}
    _ask(f"{address}/models", headers, pinned=addresses.pinned(address))


def _ask(url: str, headers: dict[str, str], *, pinned: str | None) -> None:
    """`pinned`: the address that was judged, which is connected to in place of the URL's host."""
    extensions: dict[str, str] = {}
    target = httpx.URL(url)
    if pinned is not None:
        headers = {**headers, "host": target.netloc.decode("ascii")}
        extensions["sni_hostname"] = target.host
        target = target.copy_with(host=pinned)
    try:
        # A proxy of the environment would look the name up itself, and is of no use for hosts of this machine.
        trusts = pinned is None and not addresses.is_local(url)
        headers = {**headers, "user-agent": "weir", "accept-encoding": "identity"}
        with (
            httpx.Client(
                timeout=TIMEOUT, verify=tls.authorities(trusts_env=trusts), trust_env=trusts, follow_redirects=False
            ) as client,
            client.stream("GET", target, headers=headers, extensions=extensions) as answer,
        ):
            status = answer.status_code
            body = _beginning(answer) if status in REFUSED else b""
    except httpx.HTTPError as error:
        raise CredentialUnverified(
            _("The upstream does not answer, so nothing was changed."), reason=type(error).__name__
        ) from None
    _judge(status, body)


def _beginning(answer: httpx.Response) -> bytes:
    """As much as a refusal has; whoever sends more, or for longer, is not waited for."""
    give_up_at = time.monotonic() + BODY_SECONDS
    body = bytearray()
    for chunk in answer.iter_raw():
        body += chunk
        if len(body) > MOST_BODY_BYTES or time.monotonic() > give_up_at:
            break
    return bytes(body[:MOST_BODY_BYTES])


def _judge(status: int, body: bytes) -> None:
    """A path that an upstream does not have (404, 405) says nothing about the credential, and a limit (429) that it is known."""
    if status in REFUSED:
        _refuse(status, body)
    if status >= UNAVAILABLE_FROM or 300 <= status < 400:
        raise CredentialUnverified(_("The upstream cannot tell now, so nothing was changed."), reason=f"status {status}")


def _refuse(status: int, body: bytes) -> NoReturn:
    """With the upstream's own code, which is not its sentence: that may quote the key."""
    try:
        found = json.loads(body)
        error = found.get("error") if isinstance(found, dict) else None
        # Anthropic's errors have a type alone.
        code = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    except (ValueError, RecursionError):
        code = None
    reason = code[:80] if isinstance(code, str) and code else f"status {status}"
    raise CredentialRefused(_("The upstream refuses it (%(reason)s).") % {"reason": reason}, reason=reason)
