"""One call that asks an upstream whether it takes a credential, before the account serves anybody. Never an inference."""

from typing import NoReturn

import httpx
from django.conf import settings

from routing import addresses
from routing.errors import CredentialRefused, CredentialUnverified
from routing.models import PoolAccount
from routing.snapshots import ANTHROPIC_VERSION

TIMEOUT = httpx.Timeout(10.0, read=20.0)

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
        with httpx.Client(timeout=TIMEOUT, trust_env=trusts, follow_redirects=False) as client:
            answer = client.get(target, headers={**headers, "user-agent": "weir"}, extensions=extensions)
    except httpx.HTTPError as error:
        raise CredentialUnverified("The upstream does not answer, so nothing was changed.", reason=type(error).__name__) from None
    _judge(answer)


def _judge(answer: httpx.Response) -> None:
    """A path that an upstream does not have (404, 405) says nothing about the credential, and a limit (429) that it is known."""
    status = answer.status_code
    if status in REFUSED:
        _refuse(answer)
    if status >= UNAVAILABLE_FROM or 300 <= status < 400:
        raise CredentialUnverified("The upstream cannot tell now, so nothing was changed.", reason=f"status {status}")


def _refuse(answer: httpx.Response) -> NoReturn:
    """With the upstream's own code, which is not its sentence: that may quote the key."""
    try:
        found = answer.json()
        error = found.get("error") if isinstance(found, dict) else None
        # Anthropic's errors have a type alone.
        code = (error.get("code") or error.get("type")) if isinstance(error, dict) else None
    except ValueError:
        code = None
    reason = code[:80] if isinstance(code, str) and code else f"status {answer.status_code}"
    raise CredentialRefused(f"The upstream refuses it ({reason}).", reason=reason)
