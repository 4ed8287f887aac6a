"""The client of identity providers: JSON from addresses that were judged, bounded in size and in time; no redirect is followed."""

import asyncio
import json
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from accounts.errors import ProviderUnreachable
from config import addresses, tls

TIMEOUT = httpx.Timeout(5.0, connect=5.0)
TOTAL_SECONDS = 8.0
MOST_BYTES = 256 * 1024
MOST_AT_ONCE = 8
"""Calls of one host that a process waits for: a provider that is slow must not hold the threads of everybody's pages."""
WAIT_SECONDS = 1.0
_waiting: defaultdict[str, threading.BoundedSemaphore] = defaultdict(lambda: threading.BoundedSemaphore(MOST_AT_ONCE))


@dataclass(frozen=True, slots=True)
class Answer:
    """`body`: the JSON object; empty if the answer holds none."""

    status: int
    body: Mapping[str, Any] = field(repr=False)


def checked(url: object, *, name: str) -> str:
    """A URL that may be called: judged by `config.addresses`, https but inside networks that the operator allowed.

    `name` begins the sentence of a refusal. May take as long as a name server does. Raises ProviderUnreachable.
    """
    _judged(url, name)
    return str(url)


def fetch(
    url: str, *, name: str, form: Mapping[str, str] | None = None, bearer: str = "", basic: tuple[str, str] | None = None
) -> Answer:
    """GET, or POST of a form. `name` names the URL in refusals: "The token endpoint". Raises ProviderUnreachable."""
    # In no coding: a few bytes of one unpack to all the memory there is.
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": "Weir"}
    if bearer:
        headers["authorization"] = f"Bearer {bearer}"
    try:
        with _a_turn(url, name):
            return asyncio.run(_fetch(url, name, form, headers, basic))
    except TimeoutError:
        raise ProviderUnreachable(f"{name} gave no answer within {TOTAL_SECONDS:g} seconds.") from None
    except (httpx.HTTPError, httpx.InvalidURL):
        # Without its cause: a traceback would carry the form.
        raise ProviderUnreachable(f"{name} cannot be reached: the connection failed.") from None


@contextmanager
def _a_turn(url: str, name: str) -> Iterator[None]:
    turns = _waiting[urlsplit(url).netloc]
    if not turns.acquire(timeout=WAIT_SECONDS):
        raise ProviderUnreachable(f"{name} is slow, and too many are waiting for it already.")
    try:
        yield
    finally:
        turns.release()


async def _fetch(
    url: str, name: str, form: Mapping[str, str] | None, headers: dict[str, str], basic: tuple[str, str] | None
) -> Answer:
    async with asyncio.timeout(TOTAL_SECONDS):
        found = await asyncio.to_thread(_judged, url, name)
        target = httpx.URL(url)
        headers["host"] = target.netloc.decode("ascii")
        # A proxy of the environment would look names up itself, and not connect to what was judged.
        async with httpx.AsyncClient(
            timeout=TIMEOUT, verify=tls.authorities(trusts_env=False), trust_env=False, follow_redirects=False
        ) as client:
            request = client.build_request(
                "GET" if form is None else "POST",
                target.copy_with(host=str(found[0])),
                data=dict(form) if form is not None else None,
                headers=headers,
                extensions={"sni_hostname": target.host},
            )
            answer = await client.send(request, auth=httpx.BasicAuth(*basic) if basic else None, stream=True)
            try:
                if answer.headers.get("content-encoding", "identity").strip().lower() != "identity":
                    raise ProviderUnreachable(f"{name} answered in a coding that was not asked for.")
                return Answer(answer.status_code, _object(await _read(answer, name), name))
            finally:
                await answer.aclose()


async def _read(answer: httpx.Response, name: str) -> bytes:
    content = bytearray()
    async for chunk in answer.aiter_raw(16 * 1024):
        content += chunk
        if len(content) > MOST_BYTES:
            raise ProviderUnreachable(f"{name} answered more than {MOST_BYTES // 1024} KiB.")
    return bytes(content)


def _object(content: bytes, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
        is_text = can_be_kept(found)
    except (ValueError, RecursionError):
        return {}
    if not is_text:
        raise ProviderUnreachable(f"{name} answered with text that cannot be kept: a NUL, or half a surrogate pair.")
    return found if isinstance(found, dict) else {}


def can_be_kept(value: Any) -> bool:
    """Is every text of what JSON gave one that the database and a page take: without NUL and half surrogate pairs?

    May raise RecursionError.
    """
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, dict):
        return all(can_be_kept(name) and can_be_kept(inner) for name, inner in value.items())
    return all(map(can_be_kept, value)) if isinstance(value, list) else True


def _judged(url: object, name: str) -> list[addresses.Address]:
    if not isinstance(url, str) or not url:
        raise ProviderUnreachable(f"{name} is not named.")
    try:
        found = addresses.judged(url, name=name, marks="#\\\x7f")
    except addresses.Refused as error:
        raise ProviderUnreachable(error.message) from None
    if urlsplit(url).scheme != "https" and any(addresses.is_public(address) for address in found):
        raise ProviderUnreachable(f"{name} begins with https://.")
    return found
