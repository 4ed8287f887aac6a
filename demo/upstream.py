"""The scripted upstream: one ASGI program that plays the ChatGPT backend, the OpenAI API and their issuer on a loopback port.

    python -m uvicorn demo.upstream:app --port 9000

Served: POST /backend-api/codex/responses and /v1/responses; GET /backend-api/codex/models, /v1/models, /backend-api/wham/usage,
/backend-api/wham/accounts/check; POST /oauth/token. Answers are computed from the request: it repeats what the user said, calls
a tool when the last user text contains RUN_TOOL, counts a quarter of the request's bytes as input tokens.

Control, all JSON:

POST /control/script    {"answers": [ANSWER, ...], "repeat": 1, "match": {"account", "path", "model", "token"}}
                        the next answers to requests that match, in order
GET  /control/requests  [{"method", "path", "query", "headers", "body" (base64), "account", "token", "at", "state", "sent_events"}]
                        state: running, done, cut, client_gone
POST /control/reset     {"keep_accounts": true}
POST /control/mint      {"account_id", "user_id", "email", "plan", "expires_in", "short_percent", "week_percent"} -> an auth.json
POST /control/windows   {"account_id", "short_percent", "week_percent", "short_reset_at", "week_reset_at"}
POST /control/revoke    {"account_id"} (its tokens) or {"token"} (an API key)
POST /control/expire    {"account_id"}: its access token expires now
GET  /control/accounts  [{"account_id", "refreshes"}]
GET  /control/health    {"status": "up"}

ANSWER, all optional: status, body (JSON or text) and headers of an error or JSON answer; delay (seconds before the head),
event_delay (between events), events (a list of event objects) or raw (text of the stream), usage (object) or no_usage, deltas
(number of text events), terminal ("response.incomplete", "response.failed", ...), model and tier (echoed instead of the asked
ones), chunk (bytes per write), cut_after_events, cut_after_bytes (the connection is dropped without an end), silence ("head":
nothing is ever sent; "body": nothing after the head). An unknown field is answered 400.
"""

import asyncio
import base64
import contextlib
import json
import time
import urllib.parse
from collections.abc import Iterable
from typing import Any

import zstandard

from demo.upstream_events import Response, sse
from demo.upstream_state import State, Wrong

MODELS = (
    "gpt-5.5",
    "gpt-5.4",
    "gpt-5.4-mini",
    "gpt-5.6-sol",
    "gpt-5.6-terra",
    "gpt-5.6-luna",
    "gpt-6-sol",
    "gpt-6-luna",
    "gpt-6.1-sol",
)
ACCESS_SECONDS = 864_000.0
MOST_BODY = 64 * 1024 * 1024

state = State()


class Cut(Exception):
    """The connection is to be dropped without an end."""


class Gone(Exception):
    """The client has left."""


class Call:
    """One request and the way its answer goes out."""

    def __init__(self, scope: Any, receive: Any, send: Any, body: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query = scope["query_string"].decode()
        self.headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.body = body
        self.token = self.headers.get("authorization", "").removeprefix("Bearer ")
        self._send = send
        self._gone = asyncio.ensure_future(self._watch(receive))
        self.record: dict[str, Any] = {}
        self.started = False

    @staticmethod
    async def _watch(receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    def close(self) -> None:
        self._gone.cancel()

    async def pause(self, seconds: float) -> None:
        """Waits; raises Gone as soon as the client leaves."""
        done, _ = await asyncio.wait([self._gone], timeout=seconds)
        if done:
            raise Gone

    async def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        self.started = True
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def write(self, data: bytes, *, more: bool = True) -> None:
        if self._gone.done():
            raise Gone
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def json(self, status: int, value: Any, headers: Iterable[tuple[str, str]] = ()) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        kind = "text/plain" if isinstance(value, str) else "application/json"
        named = {name.lower() for name, _ in headers}
        plain = [] if "content-type" in named else [("content-type", kind)]
        await self.start(status, [*plain, ("content-length", str(len(data))), *headers])
        await self.write(data, more=False)


def problem(message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["type"] != "http":
        return
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    call = Call(scope, receive, send, bytes(body))
    try:
        await route(call)
    except (Cut, Gone) as ended:
        if call.record:
            call.record["state"] = "cut" if isinstance(ended, Cut) else "client_gone"
        # Returning without the end makes the server drop the connection.
    finally:
        call.close()


async def route(call: Call) -> None:
    if call.path.startswith("/control/"):
        await control(call)
        return
    remember(call)
    handlers = {
        ("POST", "/backend-api/codex/responses"): chatgpt_response,
        ("POST", "/v1/responses"): openai_response,
        ("GET", "/backend-api/codex/models"): codex_models,
        ("GET", "/v1/models"): openai_models,
        ("GET", "/backend-api/wham/usage"): wham_usage,
        ("GET", "/backend-api/wham/accounts/check"): accounts_check,
        ("POST", "/oauth/token"): token,
    }
    handler = handlers.get((call.method, call.path))
    if handler is None:
        await call.json(404, problem(f"No such path: {call.path}", "not_found"))
    else:
        await handler(call)
    if call.record["state"] == "running":
        call.record["state"] = "done"


def remember(call: Call) -> None:
    account = state.by_access.get(call.token)
    call.record = {
        "method": call.method,
        "path": call.path,
        "query": call.query,
        "headers": list(call.headers.items()),
        "body": base64.b64encode(call.body).decode(),
        "account": account.account_id if account else None,
        "token": call.token,
        "at": time.time(),
        "state": "running",
        "sent_events": 0,
    }
    state.received.append(call.record)


# ------------------------------------------------------------------------------------------------------------ control


async def control(call: Call) -> None:
    name = call.path.removeprefix("/control/")
    try:
        given = json.loads(call.body or b"{}")
        value = controlled(call.method, name, given)
    except (Wrong, ValueError, KeyError) as error:
        await call.json(400, problem(str(error), "wrong_control"))
        return
    await call.json(200, value)


def controlled(method: str, name: str, given: dict[str, Any]) -> Any:
    if (method, name) == ("GET", "health"):
        return {"status": "up"}
    if (method, name) == ("GET", "requests"):
        return state.received
    if (method, name) == ("GET", "accounts"):
        return [{"account_id": one.account_id, "refreshes": one.refreshes} for one in state.accounts.values()]
    if (method, name) == ("POST", "script"):
        return {"scripts": state.add_script(given)}
    if (method, name) == ("POST", "reset"):
        state.reset(keep_accounts=bool(given.get("keep_accounts", True)))
        return {}
    if (method, name) == ("POST", "mint"):
        return state.mint(given)
    if (method, name) == ("POST", "windows"):
        account = state.accounts[given["account_id"]]
        for field in ("short_percent", "week_percent", "short_reset_at", "week_reset_at"):
            if field in given:
                setattr(account, field, given[field])
        return {}
    if (method, name) == ("POST", "revoke"):
        if "token" in given:
            state.refused_keys.add(given["token"])
        else:
            state.accounts[given["account_id"]].is_revoked = True
        return {}
    if (method, name) == ("POST", "expire"):
        state.accounts[given["account_id"]].access_expires_at = 0.0
        return {}
    raise Wrong(f"no such control: {method} {name}")


# ---------------------------------------------------------------------------------------------------------- responses


async def chatgpt_response(call: Call) -> None:
    account = state.by_access.get(call.token)
    if account is None or account.is_revoked or account.access != call.token:
        await call.json(401, problem("Could not parse your authentication token.", "invalid_token"))
        return
    if account.access_expires_at <= time.time():
        message = "Provided authentication token is expired. Please try signing in again."
        await call.json(401, problem(message, "token_expired"))
        return
    if call.headers.get("chatgpt-account-id") != account.account_id:
        await call.json(403, problem("The account does not belong to this token.", "forbidden"))
        return
    raw = call.body
    if call.headers.get("content-encoding") == "zstd":
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(raw)[:MOST_BODY]
    body = parsed(raw)
    if body is None:
        await call.json(400, {"detail": "Invalid JSON"})
    elif body.get("stream") is not True:
        await call.json(400, {"detail": "Stream must be set to true"})
    elif body.get("store") is not False:
        await call.json(400, {"detail": "Store must be set to false"})
    elif "max_output_tokens" in body:
        await call.json(400, {"detail": "Unsupported parameter: max_output_tokens"})
    else:
        await respond(call, body, raw, account.account_id, tier="default")


async def openai_response(call: Call) -> None:
    if not call.token.startswith("sk-") or call.token in state.refused_keys:
        await call.json(401, problem("Incorrect API key provided", "invalid_api_key"))
        return
    body = parsed(call.body)
    if body is None:
        await call.json(400, problem("We could not parse the JSON body of your request.", "invalid_json"))
        return
    tier = {"priority": "priority", "flex": "flex"}.get(str(body.get("service_tier")), "default")
    await respond(call, body, call.body, "", tier=tier)


def parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


async def respond(call: Call, body: dict[str, Any], raw: bytes, account_id: str, *, tier: str) -> None:
    """The scripted answer, or the computed one."""
    seen = {"account": account_id, "path": call.path, "model": str(body.get("model")), "token": call.token}
    answer = state.next_answer(seen)
    if answer.get("silence") == "head":
        await call.pause(3600)
    await call.pause(answer.get("delay", 0.0))
    account = state.accounts.get(account_id)
    headers = [("x-request-id", f"up_{len(state.received):08d}")]
    if account is not None:
        headers += account.headers(time.time())
    headers = [pair for pair in headers if pair[0] not in answer.get("headers", {})] + list(answer.get("headers", {}).items())
    if "body" in answer or answer.get("status", 200) != 200:
        await call.json(answer.get("status", 200), answer.get("body", problem("scripted", "scripted")), headers)
        return
    state.count += 1
    response = Response(
        {**body, "model": answer.get("model", body.get("model"))},
        number=state.count,
        created_at=int(time.time()),
        tier=answer.get("tier", tier),
        usage=answer.get("usage"),
    )
    usage = response.counted(size=len(raw), cached=cached_tokens(seen, body, len(raw)))
    if account is not None:
        account.use(int(usage.get("total_tokens", 0)))
    if body.get("stream") is not True:
        await call.pause(answer.get("event_delay", 0.0))
        await call.json(200, response.final({} if answer.get("no_usage") else usage), headers)
        return
    await call.start(200, [("content-type", "text/event-stream"), ("cache-control", "no-cache"), *headers])
    if answer.get("silence") == "body":
        await call.write(b"")
        await call.pause(3600)
    await stream(call, answer, frames(answer, response, usage))


def cached_tokens(seen: dict[str, str], body: dict[str, Any], size: int) -> int:
    """What this account saw of the same conversation before."""
    key = body.get("prompt_cache_key")
    if not isinstance(key, str):
        return 0
    place = (seen["account"] or seen["token"], key)
    before, state.cache[place] = state.cache.get(place, 0), size // 4
    return before // 128 * 128


def frames(answer: dict[str, Any], response: Response, usage: dict[str, Any]) -> list[bytes]:
    """The stream, an event a piece."""
    if "raw" in answer:
        return [answer["raw"].encode()]
    if "events" in answer:
        return [sse(event) for event in answer["events"]]
    made = []
    for number, event in enumerate(response.events(usage, deltas=answer.get("deltas"))):
        if event["type"] == "response.completed":
            event = {**event, "type": answer.get("terminal", event["type"])}
            status = event["type"].removeprefix("response.")
            event["response"] = {**event["response"], "status": status}
            if answer.get("no_usage"):
                event["response"]["usage"] = None
        made.append(sse({"type": event["type"], "sequence_number": number, **event}))
    return made


async def stream(call: Call, answer: dict[str, Any], pieces: list[bytes]) -> None:
    sent = 0
    size = answer.get("chunk")
    limit = answer.get("cut_after_bytes")
    for number, piece in enumerate(pieces):
        if number == answer.get("cut_after_events"):
            raise Cut
        if number and answer.get("event_delay"):
            await call.pause(answer["event_delay"])
        for start in range(0, len(piece), size or len(piece) or 1):
            part = piece[start : start + (size or len(piece))]
            if limit is not None and sent + len(part) > limit:
                await call.write(part[: limit - sent])
                raise Cut
            await call.write(part)
            sent += len(part)
            if size:
                await asyncio.sleep(0)
        call.record["sent_events"] += 1
    if answer.get("cut_after_events", -1) >= len(pieces):
        raise Cut
    with contextlib.suppress(Gone):
        await call.write(b"", more=False)


# -------------------------------------------------------------------------------------------------------- other paths


async def codex_models(call: Call) -> None:
    levels = [{"effort": effort, "description": effort} for effort in ("low", "medium", "high")]
    models = [
        {
            "slug": slug, "display_name": slug, "description": "Scripted model", "default_reasoning_level": "medium",
            "supported_reasoning_levels": levels, "shell_type": "shell_command", "visibility": "list", "supported_in_api": True,
            "priority": number, "availability_nux": None, "upgrade": None, "base_instructions": "You are a scripted coding agent.",
            "supports_reasoning_summaries": True, "support_verbosity": True, "default_verbosity": "low",
            "apply_patch_tool_type": "freeform", "truncation_policy": {"mode": "tokens", "limit": 10000},
            "supports_parallel_tool_calls": True, "context_window": 272000, "auto_compact_token_limit": None,
            "experimental_supported_tools": [], "minimal_client_version": "0.60.0", "prefer_websockets": False,
            "supports_search_tool": False, "input_modalities": ["text", "image"], "available_in_plans": ["plus", "pro", "team"],
        }
        for number, slug in enumerate(MODELS)
    ]  # fmt: skip
    await call.json(200, {"models": models}, [("etag", '"scripted-1"')])


async def openai_models(call: Call) -> None:
    data = [{"id": slug, "object": "model", "created": 1750000000, "owned_by": "openai"} for slug in MODELS]
    await call.json(200, {"object": "list", "data": data})


async def wham_usage(call: Call) -> None:
    account = state.by_access.get(call.token)
    if account is None:
        await call.json(401, problem("Could not parse your authentication token.", "invalid_token"))
        return
    await call.json(200, account.usage(time.time()))


async def accounts_check(call: Call) -> None:
    account = state.by_access.get(call.token)
    if account is None:
        await call.json(401, problem("Could not parse your authentication token.", "invalid_token"))
        return
    entry = {
        "id": account.account_id,
        "name": "Personal",
        "structure": "personal",
        "plan_type": account.plan,
        "is_deactivated": False,
        "profile_picture_url": None,
        "workspace_backend_origin": "NO_CONSTRAINT",
        "account_routing_override": "NO_CONSTRAINT",
    }
    ordering = [account.account_id]
    await call.json(200, {"accounts": [entry], "account_ordering": ordering, "default_account_id": account.account_id})


async def token(call: Call) -> None:
    seen = {"account": "", "path": call.path, "model": "", "token": ""}
    answer = state.next_answer(seen)
    await call.pause(answer.get("delay", 0.0))
    if "body" in answer or "status" in answer:
        await call.json(answer.get("status", 200), answer.get("body", {}))
        return
    if call.headers.get("content-type", "").startswith("application/json"):
        given = parsed(call.body) or {}
    else:
        given = dict(urllib.parse.parse_qsl(call.body.decode()))
    if given.get("grant_type") != "refresh_token":
        await call.json(400, problem("Unsupported grant_type", "unsupported_grant_type"))
        return
    status, value = state.refresh(str(given.get("refresh_token")), ACCESS_SECONDS)
    await call.json(status, value)
