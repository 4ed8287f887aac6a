"""One upstream attempt, whichever way it travels: with an account's credential, metered, and judged when it fails.

`proxy.http_attempt` sends it over HTTP, `proxy.socket_attempt` over an upstream WebSocket.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from config.errors import DomainError
from config.redis import RedisUnavailable, ReplyError
from proxy.continuity import Keeping
from proxy.dialects.wire import Wire
from proxy.errors import Answer, Draining, HeadersLate, IdleTooLong, Restarting, UpstreamError, UpstreamUnavailable
from proxy.lifespan import Resources
from proxy.relay import Downstream
from proxy.settlement import Attempt, EndedBy, Tab
from proxy.sse import Event
from routing import credentials, health
from routing.credentials import Credential
from routing.errors import CredentialError
from routing.health import Failure, Kind
from routing.snapshots import CHATGPT

logger = logging.getLogger(__name__)

MOST_ERROR_BYTES = 1024 * 1024
OBSERVE_SECONDS = 1.0
RENEW_AFTER_SECONDS = 0.005
"""A process killed from then on leaves the price of the input behind; not sooner, so that nothing is written before the request."""
# The client may see these as the upstream said them; all others are about our accounts, not about its request.
CLIENTS_OWN = frozenset({Kind.REQUEST, Kind.CONTEXT, Kind.ANCHOR, Kind.MODEL, Kind.UPSTREAM_ERROR})
ABOUT_ACCOUNTS = frozenset({401, 402, 403, 407, 429})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an attempt.

    Nothing set: the client has its stream. `answer`: what to send it, after the settlement. `failure`: why another account may
    answer instead if it is movable; `answer` is then what to say if none can, or None.
    """

    answer: Answer | None = None
    failure: Failure | None = None
    used: Credential | None = field(default=None, repr=False)

    @property
    def version(self) -> int | None:
        """Of the credential that was shown."""
        return None if self.used is None else self.used.version


class Attempting:
    """Carries one attempt. `client_headers` are the client's, as ASGI gives them."""

    is_chained = False
    """Its responses can be continued while its connection lives, stored or not."""

    def __init__(
        self,
        tab: Tab,
        attempt: Attempt,
        wire: Wire,
        downstream: Downstream,
        resources: Resources,
        client_headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self._tab = tab
        self._attempt = attempt
        self._wire = wire
        self._downstream = downstream
        self._resources = resources
        self._client_headers = client_headers
        self._account = attempt.lease.account
        self._is_sign_in = self._account.kind == CHATGPT
        self._inspection = tab.call.inspection
        self._has_left_early: bool | None = None
        self._windows: bytes | None = None
        self._loop = asyncio.get_running_loop()
        self._observed_at = self._loop.time()
        is_stored = not self._is_sign_in and self._inspection.store is not False and wire.meter.dialect == "responses"
        self._keeping = Keeping(resources, attempt.lease, tab.call.anchors, is_stored=is_stored, is_chained=self.is_chained)

    async def run(self) -> Verdict:
        """Raises what is nobody's answer: cancellation, and faults of our own; and Draining, where the process ends first."""
        attempt = self._attempt
        try:
            credential = await credentials.bearer(self._account, version=attempt.lease.credential_version)
        except CredentialError as error:
            attempt.failure = error.code
            return Verdict(failure=Failure(kind=Kind.TOKEN, movable=True, cooldown_seconds=5.0, code=error.code))
        cuttable = self._resources.cuttable
        if self._resources.is_cut:
            raise Draining()
        leash = asyncio.timeout(None)
        try:
            async with leash:
                cuttable.add(leash)
                try:
                    return await self._carry(credential)
                finally:
                    cuttable.discard(leash)
        except UpstreamError as error:
            # Its connection keeps the error, which by its traceback would keep this request.
            return await self._broken(error.with_traceback(None))
        except TimeoutError:
            if not leash.expired():
                raise
            return await self._broken(Restarting(written=attempt.is_written))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Drops what refers to this attempt again: in a circle it would stay, and the request's body with it, until the collector
        comes by."""

    async def _carry(self, credential: Credential) -> Verdict:
        """Sends the request and passes its answer on. Raises UpstreamError."""
        raise NotImplementedError

    async def _broken(self, error: UpstreamError) -> Verdict:
        """The connection failed. What was written is never sent again (it may run); what the client has begun is ended.

        Raises Draining where it was this process that ended, UpstreamUnavailable.
        """
        raise NotImplementedError

    # -- what all transports tell

    def _written(self) -> None:
        """To be called when the first byte of the request is handed to the socket: from then on it may run."""
        self._attempt.is_written = True
        self._tab.observe(self._attempt)
        self._loop.call_later(RENEW_AFTER_SECONDS, self._resources.renewer.renew_soon, self._tab.hold)

    def _observe(self) -> None:
        now = self._loop.time()
        if now - self._observed_at >= OBSERVE_SECONDS:
            self._observed_at = now
            self._tab.observe(self._attempt)

    async def _note_windows(self, headers: Mapping[str, str]) -> None:
        await health.observe_headers(self._resources.redis, self._attempt.lease.pool, self._account, headers, self._resources.now())

    def _take_windows(self) -> None:
        """The windows of the account that its stream told; one note at a time, of the newest, however often it tells them."""
        data, self._attempt.meter.windows = self._attempt.meter.windows, None
        if data is None:
            return
        is_noting, self._windows = self._windows is not None, data
        if not is_noting:
            self._resources.spawn(self._note_events())

    async def _note_events(self) -> None:
        try:
            data = None
            while data is not self._windows and self._windows is not None:
                data = self._windows
                await health.observe_event(
                    self._resources.redis, self._attempt.lease.pool, self._account, data, self._resources.now()
                )
        finally:
            self._windows = None

    def _saw_terminal(self) -> None:
        """A client that leaves from now on has had all it wanted: Codex does not wait for the connection to end."""
        if self._has_left_early is None:
            self._has_left_early = self._downstream.has_left

    def _close_status(self) -> None:
        """The answer is whole. One that its client did not wait for says so, though its usage is the upstream's own."""
        self._saw_terminal()
        self._tab.status = "client_closed" if self._has_left_early else self._attempt.meter.status or "ok"

    def _brings(self, events: Sequence[Event]) -> bool:
        """Events that are about to be passed on. True: `_record_owner` is to be called first."""
        return self._keeping.see(events, self._attempt.meter.response_id)

    async def _record_owner(self) -> None:
        """Which account holds what the answer brought so far, before the client hears of it."""
        await self._keeping.record()

    # -- failures

    async def _judged(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """What a refusal by status means; books it and the windows that its head told."""
        failure = health.classify(status, headers, body, now=self._resources.now().timestamp())
        self._failed(failure)
        if status == 429:
            await self._quietly(self._note_windows(headers))
        else:
            self._resources.spawn(self._note_windows(headers))
        return failure

    def _failed(self, failure: Failure) -> None:
        self._attempt.failure = failure.kind.value
        self._attempt.ended_by = EndedBy.UPSTREAM
        self._tab.status = "failed"

    def _failed_late(self, headers: Mapping[str, str], data: bytes) -> None:
        """The answer failed after it had begun: nothing can be done for it, but the next one is better off elsewhere."""
        failure = health.classify(200, headers, data, now=self._resources.now().timestamp())
        self._attempt.failure = failure.kind.value
        self._resources.spawn(health.report(self._resources.redis, self._attempt.lease.pool, self._account, failure))

    def _blame(self, error: UpstreamError) -> None:
        """Who ended an answer that broke off; it decides what it costs."""
        if isinstance(error, HeadersLate | IdleTooLong | Restarting):
            self._attempt.ended_by = EndedBy.US
        elif self._downstream.has_left:
            self._attempt.ended_by = EndedBy.CLIENT
        elif self._attempt.ended_by is EndedBy.NOBODY:
            self._attempt.ended_by = EndedBy.UPSTREAM

    def _unreached(self, error: UpstreamError) -> Verdict:
        """Nothing was written: another account may answer instead. Raises Draining."""
        if isinstance(error, Restarting):
            raise Draining()
        return Verdict(failure=health.unreachable(written=False))

    def _unanswered(self, error: UpstreamError) -> DomainError:
        """What to refuse a request by that was written and brought the client nothing."""
        if isinstance(error, Restarting):
            return Draining("The gateway is being restarted. The request may have run and was not sent again.")
        failure = health.unreachable(written=True)
        self._resources.spawn(health.report(self._resources.redis, self._attempt.lease.pool, self._account, failure))
        return UpstreamUnavailable("The upstream did not answer. The request may have run and was not sent again.")

    def _failed_event(self, sequence_number: int, code: str, message: str) -> bytes:
        return failed_event(self._tab, self._wire, sequence_number=sequence_number, code=code, message=message)

    async def _quietly(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (RedisUnavailable, ReplyError):
            logger.warning("windows of an account not noted", extra={"account": self._account.uuid})


class Transport(Protocol):
    """Makes the attempt of a request on one account. An `Attempting` class is one."""

    def __call__(
        self,
        tab: Tab,
        attempt: Attempt,
        wire: Wire,
        downstream: Downstream,
        resources: Resources,
        client_headers: Sequence[tuple[bytes, bytes]],
        /,
    ) -> Attempting: ...


def failed_event(tab: Tab, wire: Wire, *, sequence_number: int, code: str, message: str) -> bytes:
    """What ends the stream of this request where we must end it ourselves."""
    meter = wire.meter
    return wire.failed(
        response_id=meter.response_id or f"resp_{tab.call.request_id.removeprefix('req_').lower()}",
        model=meter.model or tab.call.inspection.model,
        created_at=tab.hold.admitted_at,
        sequence_number=sequence_number,
        code=code,
        message=message,
    )
