"""An attempt over an upstream WebSocket, and the upstream socket that a client's socket is pinned to between its turns."""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from proxy import errors, frames, metering
from proxy import headers as wire_headers
from proxy.attempt import ABOUT_ACCOUNTS, CLIENTS_OWN, MOST_ERROR_BYTES, Attempting, Verdict
from proxy.dialects.wire import Wire
from proxy.errors import JSON_TYPE, Answer, BadAnswer, Cut, Restarting, UpstreamError
from proxy.frames import APART, FrameDownstream, FrameRelay
from proxy.lifespan import Resources
from proxy.settlement import Attempt, Tab
from proxy.upstream_errors import with_envelope
from proxy.upstream_socket import Refusal, UpstreamSocket
from routing import health
from routing.credentials import Credential
from routing.errors import OwnerGone
from routing.health import Failure, Kind
from routing.snapshots import AccountSnapshot

logger = logging.getLogger(__name__)

DECLINING = frozenset({404, 405, 426, 501})
"""Statuses of an upgrade that say: no WebSocket here."""
DECLINED_SECONDS = 600.0
STALE_SECONDS = 1.0
"""A socket that was found closed within this time of a frame, without a word, was closed before it."""
MOST_KNOWN = 1000
WINDOW_HEADER = "x-codex-primary-used-percent"


class _Headers(msgspec.Struct):
    status: Any = None
    status_code: Any = None
    error: Any = None
    headers: Any = None


_error = msgspec.json.Decoder(_Headers)


class Pin:
    """The upstream socket of a client's socket, as long as turns stay on its account, and the responses that live in it.

    `limits`: a frame that tells the client how its own limits stand, set for each turn.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._socket: UpstreamSocket | None = None
        self._attempt: Attempt | None = None
        self._known: dict[str, None] = {}
        self.limits = b""

    def socket_of(self, account: AccountSnapshot) -> UpstreamSocket | None:
        """The open socket to the account, if that is where it leads."""
        if self._socket is None or self._attempt is None or not self._socket.is_open:
            return None
        return self._socket if self._attempt.lease.account.account_id == account.account_id else None

    def holds(self, response_id: str) -> bool:
        """Does the response live in the socket at hand?"""
        return response_id in self._known

    def begin(self, socket: UpstreamSocket, attempt: Attempt) -> None:
        """A turn on this socket; another one it had before is closed."""
        if socket is not self._socket:
            self.drop()
            self._socket = socket
        self._attempt = attempt
        socket.on_unasked = None

    def remember(self, response_id: str) -> None:
        if response_id:
            self._known[response_id] = None
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]

    def rest(self) -> None:
        """The turn is over: what comes now is not part of any."""
        if self._socket is not None:
            self._socket.on_unasked = self._unasked
            for frame in self._socket.take_waiting():
                self._unasked(frame)

    def drop(self) -> None:
        """Closes the socket; what lived in it is gone."""
        socket, self._socket = self._socket, None
        self._known.clear()
        if socket is not None:
            socket.on_unasked = None
            socket.close()

    def _unasked(self, frame: bytes) -> None:
        name = frames.name_of(frame)
        if name == metering.WINDOWS and self._attempt is not None:
            self._resources.spawn(note_windows(self._resources, self._attempt, frame))
        elif name == "error":
            # Such as that it has lived for long enough: the next turn takes a new one, or sends all again.
            self.drop()


class SocketAttempt(Attempting):
    """One turn over an upstream socket: the pinned one if it leads to the account, else a new one."""

    is_chained = True

    def __init__(
        self,
        tab: Tab,
        attempt: Attempt,
        wire: Wire,
        downstream: FrameDownstream,
        resources: Resources,
        client_headers: Sequence[tuple[bytes, bytes]],
        *,
        pin: Pin,
    ) -> None:
        super().__init__(tab, attempt, wire, downstream, resources, client_headers)
        self._frames = downstream
        self._pin = pin
        self._relay: FrameRelay | None = None
        self._is_reused = False
        self._sent_at = 0.0
        self._is_over = False

    async def _carry(self, credential: Credential) -> Verdict:
        parent = self._inspection.previous_response_id
        socket = self._pin.socket_of(self._account)
        if parent and self._is_sign_in and (socket is None or not self._pin.holds(parent)):
            # Nothing is stored there: the chain has lived in a connection that is gone, or is somebody else's.
            return Verdict(answer=self._lost())
        self._is_reused = socket is not None
        if socket is None:
            opened = await self._open(credential)
            if isinstance(opened, Refusal):
                return await self._declined(opened, credential)
            socket = opened
        self._pin.begin(socket, self._attempt)
        try:
            return await self._turn(socket, credential)
        finally:
            if self._is_over:
                self._pin.rest()
            else:
                # Its response may still be running.
                self._pin.drop()

    def _let_go(self) -> None:
        self._relay = None

    def _lost(self) -> Answer:
        return errors.answer(OwnerGone(), now=self._resources.now(), request_id=self._tab.call.request_id)

    # -- to the upstream

    async def _open(self, credential: Credential) -> UpstreamSocket | Refusal:
        return await self._resources.sockets.open(
            f"{self._account.base_url}{self._wire.path}",
            wire_headers.to_upstream_socket(
                self._client_headers,
                token=credential.token,
                chatgpt_account_id=credential.chatgpt_account_id if self._is_sign_in else None,
            ),
        )

    async def _declined(self, refusal: Refusal, credential: Credential) -> Verdict:
        """The upstream answered the upgrade by a status."""
        self._attempt.http_status = refusal.status
        if refusal.status < 400:
            raise BadAnswer("an upgrade answered by a status below 400", written=False)
        if refusal.status in DECLINING:
            # The account is well, and serves over HTTP.
            logger.info("upstream speaks no WebSocket", extra={"account": self._account.uuid, "status": refusal.status})
            self._resources.decline_socket(self._account.account_id, DECLINED_SECONDS)
            failure = Failure(kind=Kind.FORBIDDEN, movable=True, code="websocket_declined")
            self._failed(failure)
            self._attempt.failure = failure.code
            return Verdict(failure=failure)
        body = refusal.body[:MOST_ERROR_BYTES]
        failure = await self._judged(refusal.status, refusal.headers, body)
        answer = None
        if failure.kind in CLIENTS_OWN and refusal.status not in ABOUT_ACCOUNTS:
            answer = self._refusal(refusal.status, refusal.raw_headers, with_envelope(body))
        return Verdict(answer=answer, failure=failure, used=credential)

    # -- from the upstream

    async def _turn(self, socket: UpstreamSocket, credential: Credential) -> Verdict:
        if not self._is_reused and WINDOW_HEADER in socket.headers:
            self._resources.spawn(self._note_windows(socket.headers))
        tab, meter = self._tab, self._attempt.meter
        greeting = b"" if self._inspection.is_warm_up else self._pin.limits
        relay = self._relay = FrameRelay(self._frames, self._wire, greeting=greeting, before_open=self._record_owner)
        self._sent_at = self._loop.time()
        await socket.send_text(self._wire.body, on_written=self._written)
        while True:
            frame = await self._next(socket, relay)
            if self._is_late(frame):
                continue
            event = relay.see(frame)
            if event.name == metering.WINDOWS:
                # The pool's business: the client is told of its own.
                self._take_windows()
                continue
            if event.name == "error":
                return await self._refused(frame, relay, credential)
            if meter.is_terminal:
                self._is_over = True
                self._pin.remember(meter.response_id)
                self._saw_terminal()
                if not relay.is_refused:
                    self._close_status()
            if self._brings([event]) and relay.is_open:
                await self._record_owner()
            await relay.take(frame)
            if meter.has_output:
                tab.saw_output()
            if relay.is_refused:
                return self._failed_at_once(relay)
            if meter.is_terminal:
                if meter.failure is not None:
                    self._failed_late({}, meter.failure)
                return Verdict()
            self._observe()

    def _is_late(self, frame: bytes) -> bool:
        """Does the frame end a response that has ended on this socket already, before this turn's has begun? It would end the turn
        at that one's price. Once something has begun its end is believed, whatever it is called."""
        meter = self._attempt.meter
        if not self._is_reused or meter.response_id or meter.has_output:
            return False
        return frames.name_of(frame) in metering.TERMINAL and self._pin.holds(metering.response_id_of(frame))

    async def _next(self, socket: UpstreamSocket, relay: FrameRelay) -> bytes:
        while True:
            patience = relay.patience(self._loop.time())
            if patience is None:
                return await socket.receive()
            try:
                async with asyncio.timeout(patience):
                    return await socket.receive()
            except TimeoutError:
                await relay.open()

    def _failed_at_once(self, relay: FrameRelay) -> Verdict:
        """A failed response before any output; the client has seen nothing of it."""
        failure = health.classify(200, {}, self._attempt.meter.failure or b"{}", now=self._resources.now().timestamp())
        self._failed(failure)
        if failure.kind not in CLIENTS_OWN:
            return Verdict(failure=failure)
        return Verdict(answer=Answer(200, [], APART.join(relay.held())), failure=failure)

    async def _refused(self, frame: bytes, relay: FrameRelay, credential: Credential) -> Verdict:
        """An error frame in the place of an answer, or in the middle of one."""
        # What has begun may still be running, or say once more that it has failed: to the next turn, if that came on this socket.
        self._is_over = not self._attempt.meter.response_id
        status, headers, body = _read(frame)
        failure = await self._judged(status, headers, body)
        if failure.refresh:
            # The socket was opened by a token that is good no more.
            self._pin.drop()
        passed = [(name.encode("latin-1"), told.encode("latin-1")) for name, told in headers.items()]
        is_clients_own = failure.kind in CLIENTS_OWN and status not in ABOUT_ACCOUNTS
        if not relay.is_open and not self._attempt.meter.has_output:
            answer = self._refusal(status, passed, body) if is_clients_own else None
            return Verdict(answer=answer, failure=failure, used=credential)
        # The client has seen a part of an answer. About its own request it may know all, about our accounts nothing.
        self._resources.spawn(health.report(self._resources.redis, self._attempt.lease.pool, self._account, failure))
        if is_clients_own:
            data = frames.error_frame(self._refusal(status, passed, body))
        else:
            data = self._failed_event(relay.next_sequence_number(), "stream_incomplete", "The upstream ended the response early.")
        await self._frames.write(data, is_last=True)
        return Verdict()

    async def _broken(self, error: UpstreamError) -> Verdict:
        attempt, tab, meter, relay = self._attempt, self._tab, self._attempt.meter, self._relay
        attempt.failure = error.reason
        logger.info(
            "upstream attempt broke",
            extra={"account": self._account.uuid, "reason": error.reason, "detail": str(error), "written": error.written},
        )
        is_silent = relay is not None and not meter.events and self._loop.time() - self._sent_at < STALE_SECONDS
        if not error.written or (isinstance(error, Cut) and self._is_reused and is_silent):
            return self._unreached(error)
        self._blame(error)
        if self._downstream.has_left:
            tab.status = "client_closed"
            return Verdict()
        tab.status = "upstream_cut" if meter.events and not isinstance(error, Restarting) else "failed"
        if relay is not None and relay.is_open:
            event = self._failed_event(relay.next_sequence_number(), "stream_incomplete", error.told)
            await self._frames.write(event, is_last=True)
            return Verdict()
        raise self._unanswered(error)

    def _refusal(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> Answer:
        call = self._tab.call
        passed = wire_headers.to_client(headers, request_id=call.request_id, is_rewritten=True, asked_model=call.asked_model)
        return Answer(status, [JSON_TYPE, *passed, *self._tab.told], body)


async def note_windows(resources: Resources, attempt: Attempt, frame: bytes) -> None:
    """Keeps what a frame tells of its account's windows."""
    await health.observe_event(resources.redis, attempt.lease.pool, attempt.lease.account, frame, resources.now())


def _read(frame: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers (names in lower case) and body of an error frame, as HTTP would have them."""
    try:
        found = _error.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        found = _Headers()
    status = found.status if isinstance(found.status, int) else found.status_code
    if not isinstance(status, int) or not 400 <= status <= 599:
        # A fault of its own: what clients make of a 500 is what they would make of it.
        status = 500
    headers = found.headers if isinstance(found.headers, dict) else {}
    texts = ((name.lower(), str(told)) for name, told in headers.items() if isinstance(told, str | int | float))
    passed = {name: told for name, told in texts if (name + told).isascii() and (name + told).isprintable()}
    return status, passed, json.dumps({"error": found.error}).encode()
