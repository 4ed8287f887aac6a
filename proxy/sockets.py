"""Proxied requests over WebSocket: the ASGI leaf. Each frame of the client's is one request of the engine (`proxy.engine`),
checked, counted, priced and logged on its own; between them the socket holds neither a limit nor a slot (N61).

A client's socket leads to one upstream socket as long as its turns stay on one account (`socket_attempt.Pin`): there the chain of
its responses lives. Where an account cannot go on with a chain, the client is told that the response was not found, on which it
sends its whole conversation again, which may go anywhere.
"""

import asyncio
import contextlib
import logging
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseTrouble
from websockets.frames import CloseCode

from config import logging as weir_logging
from config import redis as weir_redis
from config.errors import DomainError
from config.redis import RedisUnavailable, ReplyError
from proxy import auth, errors, frames, lifespan, permits, request_ids, told
from proxy.asgi import Message, Receive, Scope, Send, headers_of
from proxy.attempt import Attempting
from proxy.auth import Caller
from proxy.dialects import responses
from proxy.dialects import responses_socket as dialect
from proxy.dialects.inspection import Inspection
from proxy.engine import MAX_RELOADS, SETTLE_WAIT_SECONDS, Engine
from proxy.errors import Answer, InvalidJson, PayloadTooLarge, ProxyError
from proxy.frames import FrameDownstream
from proxy.lifespan import Resources
from proxy.settlement import Tab
from proxy.socket_attempt import Pin, SocketAttempt
from proxy.socket_server import CONNECTION
from proxy.turns import TURN_STATE_HEADER
from quotas import admission, refusal_log
from quotas.admission import Admission
from quotas.errors import Stale
from routing import eligibility, live, selection, sticky
from routing.choice import Live
from routing.errors import PREVIOUS_RESPONSE, NoAccountAvailable, OwnerLost, SelectionError
from routing.selection import Lease
from routing.snapshots import ACTIVE, PoolSnapshot

logger = logging.getLogger(__name__)

HTTP_ONLY_SECONDS = 300
"""How long a session is kept on HTTP that was sent there, also by other processes."""
RESTARTED = 1012


class ResponseRunning(ProxyError):
    code = "response_in_progress"


class UseHttp(ProxyError):
    """The upgrade is declined; clients fall back to HTTP for the session, silently and at once."""

    code = "upgrade_required"
    status = 426


class Reconnect(ProxyError):
    """Clients connect again without a word to their user, and send the whole conversation; that upgrade is then declined."""

    code = "websocket_connection_limit_reached"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI leaf."""
    await ClientSocket(scope, receive, send, lifespan.resources()).run()


class ClientSocket:
    """One socket of a client's, from its upgrade to its end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, resources: Resources) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._resources = resources
        self._headers = headers_of(scope)
        # It would bind every turn of the socket to what the first one belonged to; on WebSocket nobody echoes it.
        self._headers.pop(TURN_STATE_HEADER, None)
        self._connection: Any = scope.get("extensions", {}).get(CONNECTION)
        self._pin = Pin(resources)
        self._turn: asyncio.Task[None] | None = None
        self._downstream: FrameDownstream | None = None
        self._main: asyncio.Task[Any] | None = None
        self._is_given_up = False
        self._is_closed = False

    async def run(self) -> None:
        await self._receive()
        refusal = await self._upgrade()
        try:
            if refusal is not None:
                await self._send({"type": "websocket.http.response.start", "status": refusal.status, "headers": refusal.headers})
                await self._send({"type": "websocket.http.response.body", "body": refusal.body})
                return
            await self._send({"type": "websocket.accept"})
        except OSError:
            return
        self._main = asyncio.current_task()
        # At once where nothing runs, else after the turn.
        forget = self._resources.on_drain(self._connection.shutdown) if self._connection is not None else None
        try:
            await self._listen()
        except asyncio.CancelledError:
            if not self._is_given_up:
                # The server ends: what runs is settled at what is known of it.
                if self._turn is not None:
                    self._turn.cancel()
                raise
            assert self._main is not None
            self._main.uncancel()
        finally:
            if forget is not None:
                forget()
            await self._end()

    # -- the upgrade

    async def _upgrade(self) -> Answer | None:
        """The refusal of the upgrade, or None."""
        resources = self._resources
        request_id = request_ids.new()
        caller: Caller | None = None
        refused = ""
        try:
            if resources.is_draining:
                raise errors.Draining()
            caller = await self._identified()
            if not speaks_socket(resources, caller) or await self._is_kept_on_http(caller):
                raise UseHttp("This pool is served over HTTP. Use POST.")
            return None
        except DomainError as error:
            refusal: DomainError = error.with_traceback(None)
        except (DatabaseTrouble, RedisUnavailable, ReplyError):
            logger.warning("upgrade refused: the configuration cannot be read", exc_info=True)
            refusal = errors.Degraded("The gateway cannot read its configuration at the moment. Try again in a few seconds.")
        except Exception:
            logger.exception("upgrade failed")
            refusal = errors.InternalError("The gateway failed.")
        if isinstance(refusal, errors.InvalidApiKey):
            caller, refused = refusal.caller, refusal.told
        if caller is not None:
            refusal_log.note(resources.redis, caller.snapshot, caller.key, refusal, told=refused)
        return errors.answer(refusal, now=resources.now(), request_id=request_id)

    async def _identified(self) -> Caller:
        """Whose socket it is, by the newest configuration. Raises InvalidApiKey, Degraded."""
        resources = self._resources
        newest = 0
        for _ in range(MAX_RELOADS):
            caller = await auth.identify(self._headers, now=resources.now(), redis=resources.redis, at_least=newest)
            try:
                await admission.check_newest(resources.redis, caller.snapshot)
                return caller
            except Stale as stale:
                newest = stale.version
        raise errors.Degraded("The configuration is changing. Try again in a few seconds.")

    def _kept_key(self, caller: Caller) -> str:
        organization_id = caller.snapshot.organization_id
        session = sticky.session_key(organization_id, self._headers, None, b"") or f"key:{caller.key.key_id}"
        return f"proxy:{weir_redis.shard(organization_id)}:{organization_id}:http:{session}"

    async def _is_kept_on_http(self, caller: Caller) -> bool:
        return bool(await self._resources.redis.call("EXISTS", self._kept_key(caller)))

    async def keep_on_http(self, caller: Caller) -> None:
        """The next upgrades of this session are declined. Raises RedisUnavailable."""
        await self._resources.redis.call("SET", self._kept_key(caller), 1, "EX", HTTP_ONLY_SECONDS)

    # -- turns

    async def _listen(self) -> None:
        """Until the client leaves."""
        # Nothing of a frame is kept here: it may have megabytes, and the next may be an hour away.
        while await self._take(await self._receive()):
            pass

    async def _take(self, message: Message) -> bool:
        """One message of the client's; False if it has left."""
        if message["type"] == "websocket.disconnect":
            return False
        if self._turn is not None and self._downstream is not None and self._downstream.is_ended:
            # It has its answer already, and what is left of the turn is its settlement.
            await asyncio.wait({self._turn})
        if self._turn is not None:
            await self._refuse(ResponseRunning("A response is being made on this connection. One at a time."))
            return True
        if self._is_closed:
            # The client did not know yet. Nobody could tell it an answer.
            return True
        text = message.get("text")
        self._begin(None if text is None else text.encode())
        return True

    async def _refuse(self, error: DomainError) -> None:
        answer = errors.answer(error, now=self._resources.now(), request_id=request_ids.new())
        # Of a client that has left the next message will tell.
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.send", "text": frames.error_frame(answer).decode()})

    def _begin(self, frame: bytes | None) -> None:
        self._downstream = FrameDownstream(
            self._send,
            heartbeat=dialect.HEARTBEAT,
            heartbeat_seconds=settings.HEARTBEAT_SECONDS,
            stall_seconds=settings.UPSTREAM_IDLE_TIMEOUT_SECONDS,
        )
        if self._connection is not None:
            self._connection.is_in_turn = True
        self._turn = asyncio.get_running_loop().create_task(self._carry(frame, self._downstream))
        self._turn.add_done_callback(self._turn_ended)

    def _turn_ended(self, turn: "asyncio.Task[None]") -> None:
        self._turn = None
        if self._connection is not None:
            self._connection.is_in_turn = False
        if not turn.cancelled() and (error := turn.exception()) is not None:
            logger.error("a turn failed", exc_info=error)

    async def _carry(self, frame: bytes | None, downstream: FrameDownstream) -> None:
        """One turn; `frame` None if it was binary."""
        request_id = request_ids.new()
        engine = TurnEngine(self, self._pin, downstream, request_id=request_id, headers=self._headers, pairs=self._scope["headers"])

        async def read(resources: Resources) -> Inspection:
            await engine.identify(resources)
            if frame is None:
                raise InvalidJson("Binary frames are not taken here. Send JSON as text.")
            if len(frame) > settings.PROXY_MAX_BODY_BYTES:
                raise PayloadTooLarge(f"The frame is larger than {settings.PROXY_MAX_BODY_BYTES} bytes.")
            return dialect.inspect(frame)

        with weir_logging.context(request_id=request_id):
            try:
                await engine.run(self._resources, read)
            except Exception:
                logger.exception("a turn failed")
                engine.is_broken = True
        if downstream.is_stalled:
            self._give_up()
        elif engine.is_broken:
            await self._close(CloseCode.INTERNAL_ERROR)
        elif engine.must_reconnect or (self._connection is not None and self._connection.is_ending):
            await self._close(RESTARTED)

    async def _close(self, code: int) -> None:
        self._is_closed = True
        with contextlib.suppress(OSError):
            await self._send({"type": "websocket.close", "code": code})

    def _give_up(self) -> None:
        """The client takes nothing: a closing handshake would wait for it as well."""
        self._is_given_up = True
        if self._connection is not None:
            self._connection.transport.abort()
        if self._main is not None:
            self._main.cancel()

    async def _end(self) -> None:
        """The client has left: its turn ends as the engine ends it, and nothing is kept."""
        turn = self._turn
        try:
            if turn is not None:
                if self._downstream is not None:
                    self._downstream.leave()
                await asyncio.wait({turn})
        except asyncio.CancelledError:
            if turn is not None:
                turn.cancel()
                await asyncio.wait({turn}, timeout=SETTLE_WAIT_SECONDS)
            raise
        finally:
            self._pin.drop()


class TurnEngine(Engine):
    """One turn of a socket."""

    def __init__(self, socket: ClientSocket, pin: Pin, downstream: FrameDownstream, **about: Any) -> None:
        def attempt(*args: Any) -> Attempting:
            return SocketAttempt(*args, pin=pin)

        super().__init__(dialect, attempt, downstream, **about)
        self._socket = socket
        self._pin = pin
        self._pool: PoolSnapshot | None = None
        self._is_unserved = False
        self.must_reconnect = False
        self.is_broken = False
        """A fault of ours ended it in the middle of its answer. Over HTTP the stream's end says so; a socket would say nothing."""

    async def _carry(self, resources: Resources, tab: Tab, pool: PoolSnapshot, admitted: Admission) -> Answer | None:
        self._pool = pool
        self._pin.limits = told.rate_limits_frame(admitted)
        return await super()._carry(resources, tab, pool, admitted)

    async def _lease(self, resources: Resources, tab: Tab, pool: PoolSnapshot, live: Live, excluded: frozenset[int]) -> Lease:
        return await super()._lease(resources, tab, pool, live, excluded | resources.without_socket())

    def _refusal(self, resources: Resources, error: DomainError) -> Answer:
        is_chained = self._tab is not None and bool(self._tab.call.inspection.previous_response_id)
        if isinstance(error, SelectionError) and error.is_anchored:
            if is_chained and not isinstance(error, OwnerLost):
                # No 429: with its whole conversation, any other account can go on.
                error = OwnerLost("The account that holds the previous response cannot serve now.", name=PREVIOUS_RESPONSE)
        else:
            self._is_unserved = isinstance(error, SelectionError)
        return super()._refusal(resources, error)

    async def _answer(self, answer: Answer) -> None:
        if self._is_unserved and not self._downstream.has_content and await self._is_served_over_http():
            self.must_reconnect = True
            reconnect = Reconnect("This request is served over HTTP only. Create a new connection.")
            answer = super()._refusal(self._resources, reconnect)
        self.is_broken = self._downstream.has_content and not self._downstream.is_ended
        await super()._answer(answer)

    def _note(self, resources: Resources, refusal: DomainError) -> None:
        if not self.must_reconnect:
            super()._note(resources, refusal)

    @property
    def _resources(self) -> Resources:
        return self._socket._resources

    async def _is_served_over_http(self) -> bool:
        """No account can take the turn by socket. Could one over HTTP? Then the session is kept there for a while."""
        tab, pool, resources = self._tab, self._pool, self._resources
        if tab is None or pool is None or self._caller is None:
            return False
        declined = resources.without_socket()
        others = [account for account in pool.accounts if account.kind not in dialect.KINDS or account.account_id in declined]
        inspection = tab.call.inspection
        try:
            able = eligibility.able(
                others,
                model=tab.call.upstream_model,
                effort=inspection.reasoning_effort,
                tier=inspection.service_tier,
                kinds=responses.KINDS,
            )
            states = live.States(await resources.redis.call("HGETALL", live.live_key(pool)))
            now_ms = round(resources.now().timestamp() * 1000)
            if all(eligibility.is_barred(one, states.get(one.account_id), frozenset(), now_ms) for one in able):
                return False
            await self._socket.keep_on_http(self._caller)
        except (NoAccountAvailable, RedisUnavailable, ReplyError):
            return False
        return True


def speaks_socket(resources: Resources, caller: Caller) -> bool:
    """Has the key's pool an account that serves over WebSocket, as far as is known?"""
    subscription = permits.subscription_of(caller, at=resources.now())
    try:
        pool = selection.pool_for(caller.snapshot, caller.key, plan=subscription.plan_slug if subscription is not None else None)
    except NoAccountAvailable:
        return False
    declined = resources.without_socket()
    return any(
        account.kind in dialect.KINDS and account.status == ACTIVE and account.account_id not in declined
        for account in pool.accounts
    )
