"""The Responses API over WebSocket: the upgrade, one response at a time, and chains of responses that live in their connection.

A frame of the client's is a request like any other (`demo.upstream_responses`): computed or scripted, remembered, counted in its
account's windows. What is written to it as events goes out as frames; what HTTP would answer with a status, as an error frame.
"""

import asyncio
import json
import time
from typing import Any

import msgspec

from demo.upstream_call import Call, Cut, Gone, Headers
from demo.upstream_errors import ERRORS, Refusal
from demo.upstream_events import Response
from demo.upstream_responses import PLAIN, before_head, parsed, problem, respond, signed_in, whole
from demo.upstream_script import Answer, Match, Scripts
from demo.upstream_state import Account, State

NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


class Upgrade(Call):
    """The request that opens a socket, and the socket itself once it is accepted. A refusal is a whole HTTP answer."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        super().__init__({**scope, "method": "GET"}, receive, send)
        self.frames: asyncio.Queue[Any] = asyncio.Queue()
        self.is_accepted = False
        self.number = 0
        self.known: dict[str, int] = {}
        """Responses that this connection may go on with, and their total tokens."""

    async def read(self) -> None:
        await self._receive()
        self.is_whole = True
        self.record = self._recorded()
        self._gone = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            self.frames.put_nowait(message)
        self.record.end("client_gone")

    @property
    def gone(self) -> "asyncio.Future[None]":
        assert self._gone is not None
        return self._gone

    async def accept(self, headers: Headers) -> None:
        self.is_accepted = True
        self.record.status, self.record.answered_at = 101, time.time()
        await self._send({"type": "websocket.accept", "headers": encoded(headers)})

    async def start(self, status: int, headers: Headers) -> None:
        self.record.status, self.record.answered_at = status, time.time()
        await self._send({"type": "websocket.http.response.start", "status": status, "headers": encoded(headers)})

    async def write(self, data: bytes) -> None:
        await self._send({"type": "websocket.http.response.body", "body": data, "more_body": True})
        self.record.sent_bytes += len(data)

    async def finish(self) -> None:
        self.record.end("done")
        await self._send({"type": "websocket.http.response.body", "body": b"", "more_body": False})

    async def next_frame(self) -> Any:
        """The next message of the client's. Raises Gone."""
        waiting = asyncio.ensure_future(self.frames.get())
        try:
            await asyncio.wait([waiting, self.gone], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise Gone
            return waiting.result()
        finally:
            waiting.cancel()


class Turn(Call):
    """One frame of the client's, answered in frames."""

    def __init__(self, upgrade: Upgrade, scope: Any, data: bytes) -> None:
        super().__init__({**scope, "method": "WEBSOCKET"}, upgrade._receive, upgrade._send)
        self._upgrade = upgrade
        self._gone = upgrade.gone
        self._status = 200
        self._error_headers: dict[str, str] = {}
        self.account: Account | None = None
        self.body, self.is_whole = data, True
        self.record = self._recorded()
        self.record.socket = upgrade.number

    def close(self) -> None:
        """The socket stays."""
        if self.gone.done():
            self.record.end("client_gone")

    @property
    def gone(self) -> "asyncio.Future[None]":
        return self._upgrade.gone

    def find_parent(self, state: State, response_id: str) -> tuple[str, int]:
        """Nothing is stored: a chain lives in its connection."""
        if response_id in self._upgrade.known:
            return self.record.account or self.token, self._upgrade.known[response_id]
        return "", 0

    def remember_response(self, state: State, response_id: str, owner: str, total_tokens: int) -> None:
        self._upgrade.known[response_id] = total_tokens

    async def start(self, status: int, headers: Headers) -> None:
        self.record.status, self.record.answered_at = status, time.time()
        self._status = status
        unsaid = ("content-type", "content-length", "cache-control")
        self._error_headers = {name: value for name, value in headers if name not in unsaid}

    async def deliver(self, pieces: list[bytes], answer: Answer, scripts: Scripts) -> None:
        if self._status < 400:
            pieces = [frame for piece in pieces for frame in frames_of(piece)]
            if self.account is not None and answer.raw is None:
                await self._frame(json.dumps(rate_limits(self.account, time.time())).encode())
        await super().deliver(pieces, msgspec.structs.replace(answer, chunk=None), scripts)

    async def write(self, data: bytes) -> None:
        if self._status >= 400:
            data = json.dumps(error_frame(self._status, data, self._error_headers)).encode()
        await self._frame(data)

    async def _frame(self, data: bytes) -> None:
        if self.gone.done():
            raise Gone
        await self._send({"type": "websocket.send", "text": data.decode()})
        self.record.sent_bytes += len(data)

    async def finish(self) -> None:
        self.record.end("done")

    async def cut(self, how: str | int) -> None:
        if isinstance(how, str):
            await super().cut(how)
        self.record.end("cut")
        await self._send({"type": "websocket.close", "code": how})
        raise Cut


async def serve(scope: Any, receive: Any, send: Any, state: State) -> None:
    """A connection from its upgrade to its end."""
    upgrade = Upgrade(scope, receive, send)
    await upgrade.read()
    try:
        account = await _opened(upgrade, state)
        while upgrade.is_accepted:
            await _answer(upgrade, scope, await upgrade.next_frame(), account, state)
    except Cut:
        upgrade.record.end("cut")
    except Gone:
        # The record has it.
        pass
    finally:
        upgrade.close()


async def _opened(upgrade: Upgrade, state: State) -> Account | None:
    """Accepts or refuses the upgrade; the account that the token is for, None for an API key."""
    token = state.find_access(upgrade.token)
    upgrade.record.account = token.account.account_id if token else None
    state.remember(upgrade.record)
    state.sockets += 1
    upgrade.number = upgrade.record.socket = state.sockets
    seen = Match(account=upgrade.record.account, path=upgrade.path, token=upgrade.token, transport="upgrade")
    scripted = state.scripts.take(seen, is_response=True)
    answer = scripted or PLAIN
    upgrade.record.scripted = scripted is not None
    await before_head(upgrade, state, answer)
    account = None
    headers = [("x-request-id", f"up_{state.requests:08d}")]
    if await whole(upgrade, state, answer, headers):
        return None
    if upgrade.path not in PATHS:
        await upgrade.json(404, problem(f"No such path: {upgrade.path}", "not_found"))
        return None
    if upgrade.path == CHATGPT_PATH:
        account = await signed_in(upgrade, state)
        if account is None:
            return None
        headers += account.headers(time.time())
    elif not upgrade.token.startswith("sk-") or upgrade.token in state.refused_keys:
        refusal = ERRORS["401"]
        await upgrade.json(refusal.status, refusal.body)
        return None
    await upgrade.accept(headers)
    return account


async def _answer(upgrade: Upgrade, scope: Any, message: Any, account: Account | None, state: State) -> None:
    """One frame of the client's. Raises Cut, Gone."""
    text = message.get("text")
    turn = Turn(upgrade, scope, text.encode() if text is not None else message.get("bytes") or b"")
    turn.account = account
    turn.record.account = upgrade.record.account
    state.remember(turn.record)
    try:
        body = parsed(turn.body) if text is not None else None
        refusal = _refusal(body, account)
        if body is None or refusal is not None:
            await turn.json(400, refusal.body if refusal else problem("Invalid JSON", "invalid_json"))
        elif body.get("generate") is False:
            await _warm_up(turn, state, body)
        else:
            await respond(turn, state, body, turn.body, account)
    finally:
        turn.close()


def _refusal(body: dict[str, Any] | None, account: Account | None) -> Refusal | None:
    if body is None:
        return None
    if body.get("type") != "response.create":
        return Refusal(400, problem("The type of a frame must be response.create.", "invalid_type", param="type"))
    if not isinstance(body.get("model"), str):
        return Refusal(400, problem("Missing required parameter: 'model'.", "missing_required_parameter", param="model"))
    if account is not None and body.get("store") is not False:
        return ERRORS["400_store"]
    if account is not None and "max_output_tokens" in body:
        return ERRORS["400_detail"]
    return None


async def _warm_up(turn: Turn, state: State, body: dict[str, Any]) -> None:
    """An id and no tokens. Scripted only by name (`"transport": "warm_up"`), so that it takes no turn's answer."""
    seen = Match(account=turn.record.account, path=turn.path, model=str(body.get("model")), token=turn.token, transport="warm_up")
    scripted = state.scripts.take(seen, is_response=True)
    answer = scripted or PLAIN
    turn.record.scripted = scripted is not None
    await before_head(turn, state, answer)
    if await whole(turn, state, answer, []):
        return
    state.count += 1
    quiet = msgspec.structs.replace(answer, text="", usage=answer.usage or NO_TOKENS)
    response = Response(
        body, number=state.count, created_at=int(time.time()), tier="default", answer=quiet, size=0, cached=0, parent_tokens=0
    )
    response.words = []
    turn.record.response_id = response.id
    turn.remember_response(state, response.id, "", 0)
    await turn.start(200, [])
    first = {"type": "response.created", "sequence_number": 0, "response": response.head("in_progress")}
    last = {"type": "response.completed", "sequence_number": 1, "response": response.final()}
    await turn.deliver([json.dumps(event).encode() for event in (first, last)], answer, state.scripts)


def frames_of(piece: bytes) -> list[bytes]:
    """The frames of a piece of an event stream: the data of each event. Lines that are no event stream's are frames as they are."""
    lines = [line for line in piece.decode().splitlines() if line and not line.startswith(("event:", ":"))]
    return [line.removeprefix("data:").lstrip().encode() for line in lines]


def error_frame(status: int, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    value = parsed(body)
    error = value.get("error") if value is not None else None
    if not isinstance(error, dict):
        told = value.get("detail", value) if value is not None else body.decode()
        error = {"message": told if isinstance(told, str) else json.dumps(told), "type": "invalid_request_error"}
    return {"type": "error", "status": status, "error": error, "headers": headers}


def rate_limits(account: Account, now: float) -> dict[str, Any]:
    """The frame that tells an account's windows."""
    shown: list[dict[str, Any] | None] = [
        {
            "used_percent": int(window.percent),
            "window_minutes": window.minutes,
            "reset_after_seconds": max(0, window.resets_at - int(now)),
            "reset_at": window.resets_at,
        }
        for window in account.shown(now)
    ]
    primary, secondary = [*shown, None, None][:2]
    reached = account.exhausted_until(now) is not None
    return {
        "type": "codex.rate_limits",
        "plan_type": account.plan,
        "metered_limit_name": "codex",
        "limit_name": None,
        "rate_limits": {"allowed": not reached, "limit_reached": reached, "primary": primary, "secondary": secondary},
        "credits": {"has_credits": False, "unlimited": False, "balance": "0"},
    }


def encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode("latin-1")) for name, value in headers]


CHATGPT_PATH = "/backend-api/codex/responses"
PATHS = (CHATGPT_PATH, "/v1/responses")
