"""Where the relay may connect: the operator's own upstreams, and for accounts with an address of their own only to one that was
judged (`routing.addresses`). What was judged is what is connected to: nobody looks the name up again in between.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from django.conf import settings

from proxy.errors import ConnectFailed
from proxy.origins import Origin, split
from routing import addresses
from routing.errors import AddressRefused

KEPT_SECONDS = 60.0
"""How long a judgement holds; the next request after that looks the name up anew."""
STALE_SECONDS = 3600.0
PATIENCE_SECONDS = 1.0
"""A name server that does not answer for so long, or threads that wait for those of other tenants: the addresses that were judged
before are connected to, for STALE_SECONDS more. A connection goes nowhere that was not judged either way."""
MOST_KEPT = 1000
THREADS = 8
"""Lookups of tenants' names have threads of their own: a name server that does not answer holds up no operator's upstream."""


@lru_cache(maxsize=16)
def _origins(*urls: str) -> frozenset[Origin]:
    return frozenset(split(url)[0] for url in urls)


class Guard:
    """What one event loop knows of hosts. `judge`: `addresses.judged`, or what a test has in its place."""

    def __init__(self, judge: Callable[[str], tuple[str, ...]] = addresses.judged, *, kept_seconds: float = KEPT_SECONDS) -> None:
        self._judge = judge
        self._kept_seconds = kept_seconds
        self._known: dict[Origin, tuple[float, tuple[str, ...]]] = {}
        self._asking: dict[Origin, asyncio.Future[tuple[str, ...]]] = {}
        self._threads: ThreadPoolExecutor | None = None

    def trusts(self, origin: Origin) -> bool:
        """Whether this is where one of the install's own upstreams is, which are trusted wherever they are."""
        return origin in _origins(settings.UPSTREAM_CHATGPT_URL, settings.UPSTREAM_OPENAI_URL, settings.UPSTREAM_ANTHROPIC_URL)

    async def addresses(self, origin: Origin) -> tuple[str, ...] | None:
        """The addresses to connect to, best first; None for the operator's own: there the name is looked up as ever.

        Raises ConnectFailed for a host that cannot be found, or that has an address it must not have.
        """
        if self.trusts(origin):
            return None
        known = self._known.get(origin)
        now = asyncio.get_running_loop().time()
        if known is not None and now < known[0]:
            return known[1]
        asking = self._asking.get(origin)
        if asking is None:
            asking = self._asking[origin] = asyncio.ensure_future(self._look_up(origin))
            asking.add_done_callback(lambda done: self._asked(origin, done))
        is_enough = known is not None and now < known[0] + STALE_SECONDS
        try:
            async with asyncio.timeout(PATIENCE_SECONDS if is_enough else None):
                # Others may be waiting for the same answer.
                return await asyncio.shield(asking)
        except AddressRefused as error:
            raise ConnectFailed(error.code) from error
        except TimeoutError:
            if known is None:
                raise
            return known[1]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    async def _look_up(self, origin: Origin) -> tuple[str, ...]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="guard")
        loop = asyncio.get_running_loop()
        url = f"{origin.scheme}://{origin.authority.decode('ascii')}"
        # Counted from before it is asked: an answer is never older than this.
        until = loop.time() + self._kept_seconds
        try:
            found = tuple(dict.fromkeys(await loop.run_in_executor(self._threads, self._judge, url)))
        finally:
            # What it was is not used again once there is an answer, whichever it is.
            self._known.pop(origin, None)
        if len(self._known) >= MOST_KEPT:
            del self._known[next(iter(self._known))]
        self._known[origin] = (until, found)
        return found

    def _asked(self, origin: Origin, done: "asyncio.Future[tuple[str, ...]]") -> None:
        self._asking.pop(origin, None)
        if not done.cancelled():
            # Whoever asked may have gone; then nobody else takes the error.
            done.exception()
