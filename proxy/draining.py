"""SIGTERM: what is new is refused, what runs comes to its end, and only then does the server stop.

A server's own handler closes its socket first: who connects then is refused by nobody who could say when to come again. So the
application hears the signals before its server does, and hands them on when it has drained. That is the same under any server, and
in each of several processes that share a socket.
"""

import asyncio
import logging
import signal
import threading
from types import FrameType
from typing import Any

from django.conf import settings

from proxy.lifespan import Resources

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ONE_WISH_SECONDS = 2.0
"""A terminal and a parent process may both tell of it, by different signals."""


class Signals:
    """Takes the server's signals from now on, in the main thread. The first one drains, the next one cuts what still runs."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._loop = asyncio.get_running_loop()
        self._first: tuple[int, float] | None = None
        self._draining: asyncio.Task[None] | None = None
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._heard) for number in SIGNALS}

    def give_back(self) -> None:
        """The server has its own handlers again."""
        before, self._before = self._before, {}
        for number, handler in before.items():
            # One that was not set by Python cannot be.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop, number)

    def _stop(self, number: int) -> None:
        if self._first is None:
            self._first = number, self._loop.time()
            self._draining = self._loop.create_task(self._drain(number))
        elif number == self._first[0] or self._loop.time() - self._first[1] > ONE_WISH_SECONDS:
            self._resources.cut()

    async def _drain(self, number: int) -> None:
        logger.info("draining", extra={"running": self._resources.running})
        try:
            await self._resources.drain(settings.DRAIN_SECONDS)
        finally:
            self.give_back()
            signal.raise_signal(number)
