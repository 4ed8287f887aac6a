"""The client of webhook receivers: one POST each, to the address that was judged, within a time that nobody can draw out."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from config import addresses, tls
from quotas.alerts.endpoints import MARKS, NAME

TIMEOUT = httpx.Timeout(10.0, connect=5.0)
TOTAL_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Post:
    """What is posted where."""

    url: str = field(repr=False)
    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`status`: what was answered, None if nothing was; then `error` says why, without the URL. `duration_ms` of the whole."""

    status: int | None
    error: str
    duration_ms: int

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def send(posts: Sequence[Post]) -> list[Outcome]:
    """All at once, in order; a slow receiver delays nobody but itself. Raises nothing of the network's."""
    return asyncio.run(_send(posts))


async def _send(posts: Sequence[Post]) -> list[Outcome]:
    # A proxy of the environment would look names up itself, and not connect to what was judged.
    trusted = tls.authorities(trusts_env=False)
    async with httpx.AsyncClient(timeout=TIMEOUT, verify=trusted, trust_env=False, follow_redirects=False) as client:
        return list(await asyncio.gather(*(_one(client, post) for post in posts)))


async def _one(client: httpx.AsyncClient, post: Post) -> Outcome:
    started = time.monotonic()
    status, error = None, ""
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            status = await _post(client, post)
    except addresses.Refused as refused:
        error = refused.message
    except TimeoutError:
        error = f"no answer within {TOTAL_SECONDS:g} seconds"
    except (httpx.HTTPError, httpx.InvalidURL) as failed:
        error = _NAMES.get(type(failed), "the connection failed")
    return Outcome(status, error, int((time.monotonic() - started) * 1000))


_NAMES: dict[type[Exception], str] = {
    httpx.ConnectTimeout: "no connection within 5 seconds",
    httpx.ReadTimeout: "no answer within 10 seconds",
    httpx.ConnectError: "no connection",
    httpx.RemoteProtocolError: "the answer was not HTTP",
}


async def _post(client: httpx.AsyncClient, post: Post) -> int:
    found = await asyncio.to_thread(addresses.judged, post.url, name=str(NAME), marks=MARKS)
    target = httpx.URL(post.url)
    headers = {**post.headers, "host": target.netloc.decode("ascii"), "user-agent": "Weir"}
    pinned = target.copy_with(host=str(found[0]))
    extensions = {"sni_hostname": target.host}
    # What is answered beside the status is of no use, and may be endless: it is not read.
    async with client.stream("POST", pinned, content=post.body, headers=headers, extensions=extensions) as answer:
        return answer.status_code
