"""The scripted upstream: one ASGI program that plays the ChatGPT backend, the OpenAI API and their issuer on a loopback port.

    python -m uvicorn demo.upstream:app --port 9000

Served: POST /backend-api/codex/responses and /v1/responses, and both as a WebSocket (GET with an upgrade); POST
/v1/chat/completions (the same answers in chunks: scripted `usage` is in its own words, `events` need no "type"), and
.../responses/compact at both (`usage` only at /v1, or as scripted); GET
/backend-api/codex/models, /v1/models, /backend-api/wham/usage, /backend-api/wham/accounts/check; GET /oauth/authorize, POST
/oauth/token, POST /api/accounts/deviceauth/usercode and .../token, GET /codex/device. An answer is computed from its request: it
repeats what the user said; it calls a tool when the last user text contains RUN_TOOL (Codex' shell with `echo hi`, else the
first function) and reports what the tool put out; input tokens are a quarter of the request's bytes, those of an earlier request
with the same prompt_cache_key cached; output tokens are three a word. A ChatGPT account's windows rise with what it served; a
full one is answered 429.
Bearers: any `sk-...` on /v1; on /backend-api a minted access token with its chatgpt-account-id.
Anthropic's API, for any `sk-ant-...` in x-api-key with an anthropic-version: POST /v1/messages (the same answers in its events;
tokens are read from the cache and written to it where anything is marked for that, earlier ones by metadata.user_id; `terminal`
"response.incomplete" stops at max_tokens; `fail` is an error event, its code the type) and GET /v1/models.

Control. Everything is JSON, times are seconds, an unknown field is answered 400 and named.

POST /control/script    {"answers": [ANSWER, ...], "repeat": 1, "match": {"account", "path", "model", "token", "transport"}}
                        the next answers to the requests that match, in order; repeat 0: for ever. Without "path" only requests
                        for a response match; with "path" any of the paths above ("/oauth/token", "/v1/models", ...); "transport":
                        "http" or "socket" (a WebSocket's turns) only; its upgrades and warm-ups only by "upgrade" and "warm_up"
POST /control/release   {"name"}: opens the gate that answers with "hold" wait at, for good
POST /control/reset     {"keep_accounts": true}: forgets scripts and traffic, opens gates, cuts silent connections
GET  /control/requests  ?path= &token= &account= : what was received, oldest first: [{"method", "path", "query", "headers",
                        "body" (base64, exact), "is_whole", "account", "token", "at", "state", "scripted", "status", "response_id",
                        "sent_events", "sent_bytes", "answered_at", "ended_at", "socket"}]; state: running, done, cut, client_gone
POST /control/mint      {"account_id", "user_id", "email", "plan", "expires_in", "short_percent", "week_percent"} -> an auth.json,
                        of a new account or with new tokens of a known one
POST /control/windows   {"account_id", "short_percent", "week_percent", "short_reset_at", "week_reset_at",
                        "slots": which windows the head names, in order; default ["short", "week"]}
POST /control/person    {"account_id", "user_id", "email", "plan"}: who signs in next at /oauth/authorize; all may be left out
POST /control/approve   {"user_code", "deny": false, and of the person as above}: answers a device's code
POST /control/revoke    {"account_id"} (all its tokens) or {"token"} (an API key)
POST /control/expire    {"account_id", "refresh": false}: its access tokens, or its refresh tokens, expire now
GET  /control/accounts  [{"account_id", "refreshes", "short_percent", "week_percent"}]
GET  /control/health    {"status": "up"}

ANSWER, all optional.
  What it says, the first that is set: `error` (a name in demo/upstream_errors.py, e.g. "429_usage"; `status`, `body` and `headers`
  change it), `body` (JSON, or a text as it is) with `status`, `events` (event objects, each with "type"), `raw` (the stream as
  text); else a generated response: `text` or `deltas` (number of text events), `tool` and `arguments` (call this function),
  `usage` (as it is) or `no_usage`, `model` and `tier` (echoed instead of the asked ones), `terminal` ("response.completed",
  "response.incomplete", "response.failed", "none"), `fail` ({"code", "message"} of a response.failed, before any output unless
  `deltas` is set). `headers` are set over the answer's own; null takes one away.
  When: `delay` before the head, `first_event_delay` after it, `event_delay` between events; `chunk` bytes a write (or a list of
  sizes, gone through in a circle), `chunk_delay` after each; `hold` {"name", "after": "request" | "head" | number of events}.
  How it ends early: `cut_before_head`, `cut_after_events`, `cut_after_bytes` (of the body), with `cut_how` "reset" (RST) or "close"
  (FIN); `silence` "head" (nothing is ever sent) or "body" (nothing after the head); `silence_after_events`; `deaf`: from now on
  the connection is not read, so that pings go unanswered.
  `lost`: on a path whose answer is not scripted, what is asked for is done (a refresh token is spent), but the answer is lost.

A WebSocket's upgrade is remembered as a GET that runs as long as its socket, each frame as a request with the method WEBSOCKET;
"socket" numbers the connections. What HTTP would answer with a status is an error frame; `cut_how` may be a close code;
`chunk` does nothing; each line of `raw` is a frame (of an event stream its data). A ChatGPT account's windows come in a
codex.rate_limits frame before each response (but not before a `raw` one). A previous_response_id is known on its own connection
only.
"""

import base64
import dataclasses
import time
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

from demo import upstream_socket
from demo.upstream_call import Call, Cut, Gone
from demo.upstream_chat import openai_chat
from demo.upstream_compact import chatgpt_compaction, openai_compaction
from demo.upstream_issuer import Issuer
from demo.upstream_messages import anthropic_messages, anthropic_models
from demo.upstream_responses import before_head, chatgpt_response, openai_response, parsed, problem, refuse, signed_in, whole
from demo.upstream_script import Match, Wrong
from demo.upstream_state import State, only

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

state = State()
issuer = Issuer(state)


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["type"] == "websocket":
        await upstream_socket.serve(scope, receive, send, state)
        return
    if scope["type"] != "http":
        return
    call = Call(scope, receive, send)
    await call.read()
    try:
        if call.path.startswith("/control/"):
            await control(call)
        else:
            await serve(call)
    except (Cut, Gone):
        # The record has it; returning without the end is all right now that the connection is gone.
        pass
    finally:
        call.close()


async def serve(call: Call) -> None:
    token = state.find_access(call.token)
    call.record.account = token.account.account_id if token else None
    state.remember(call.record)
    if not call.is_whole:
        return
    response = RESPONSES.get((call.method, call.path))
    if response is not None:
        await response(call, state)
        return
    seen = Match(account=call.record.account, path=call.path, token=call.token)
    answer = state.scripts.take(seen, is_response=False)
    if answer is not None:
        call.record.scripted = True
        await before_head(call, state, answer)
        if await whole(call, state, answer, []):
            return
        call.is_lost = answer.lost
    handler = PATHS.get((call.method, call.path))
    if handler is None:
        await call.json(404, problem(f"No such path: {call.path}", "not_found"))
    else:
        await handler(call)


# ------------------------------------------------------------------------------------------------------------ control


async def control(call: Call) -> None:
    name = call.path.removeprefix("/control/")
    try:
        value = controlled(call, name)
    except Wrong as error:
        await call.json(400, problem(str(error), "wrong_control"))
        return
    await call.json(200, value)


def controlled(call: Call, name: str) -> Any:
    """Raises Wrong."""
    if (call.method, name) == ("POST", "script"):
        return {"scripts": state.scripts.add(call.body)}
    if call.method == "GET" and name in READS:
        return READS[name](dict(urllib.parse.parse_qsl(call.query)))
    if call.method == "POST" and name in WRITES:
        given = parsed(call.body or b"{}")
        if given is None:
            raise Wrong("the body must be a JSON object")
        return WRITES[name](given) or {}
    raise Wrong(f"no such control: {call.method} {name}")


def health(wanted: dict[str, str]) -> dict[str, str]:
    only(wanted, frozenset())
    return {"status": "up"}


def received(wanted: dict[str, str]) -> list[dict[str, Any]]:
    only(wanted, frozenset({"path", "token", "account"}))
    return [
        {**dataclasses.asdict(record), "body": base64.b64encode(record.body).decode()}
        for record in state.received
        if all(getattr(record, name) == value for name, value in wanted.items())
    ]


def accounts(wanted: dict[str, str]) -> list[dict[str, Any]]:
    only(wanted, frozenset())
    return [
        {
            "account_id": account.account_id,
            "refreshes": account.refreshes,
            **{f"{name}_percent": int(window.percent) for name, window in account.windows.items()},
        }
        for account in state.accounts.values()
    ]


def reset(given: dict[str, Any]) -> None:
    only(given, frozenset({"keep_accounts"}))
    state.reset(keep_accounts=bool(given.get("keep_accounts", True)))
    issuer.reset()


def release(given: dict[str, Any]) -> None:
    only(given, frozenset({"name"}))
    if not isinstance(given.get("name"), str):
        raise Wrong("name must be the text that `hold` was given")
    state.scripts.gate(given["name"]).set()


READS: dict[str, Callable[[dict[str, str]], Any]] = {
    "health": health,
    "requests": received,
    "accounts": accounts,
}
WRITES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "reset": reset,
    "release": release,
    "mint": state.mint,
    "person": issuer.person,
    "approve": issuer.approve,
    "windows": state.set_windows,
    "revoke": state.revoke,
    "expire": state.expire,
}


# -------------------------------------------------------------------------------------------------------- other paths


async def codex_models(call: Call) -> None:
    if await signed_in(call, state) is None:
        return
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
        for number, slug in enumerate(MODELS, 1)
    ]  # fmt: skip
    await call.json(200, {"models": models}, [("etag", '"scripted-1"')])


async def openai_models(call: Call) -> None:
    if "x-api-key" in call.headers:
        await anthropic_models(call, state)
        return
    if not call.token.startswith("sk-") or call.token in state.refused_keys:
        await refuse(call, "401")
        return
    data = [{"id": slug, "object": "model", "created": 1750000000, "owned_by": "openai"} for slug in MODELS]
    await call.json(200, {"object": "list", "data": data})


async def wham_usage(call: Call) -> None:
    account = await signed_in(call, state)
    if account is not None:
        await call.json(200, account.usage(time.time()))


async def accounts_check(call: Call) -> None:
    account = await signed_in(call, state)
    if account is None:
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


RESPONSES: dict[tuple[str, str], Callable[[Call, State], Awaitable[None]]] = {
    ("POST", "/backend-api/codex/responses"): chatgpt_response,
    ("POST", "/v1/responses"): openai_response,
    ("POST", "/v1/chat/completions"): openai_chat,
    ("POST", "/v1/messages"): anthropic_messages,
    ("POST", "/backend-api/codex/responses/compact"): chatgpt_compaction,
    ("POST", "/v1/responses/compact"): openai_compaction,
}
PATHS: dict[tuple[str, str], Callable[[Call], Awaitable[None]]] = {
    ("GET", "/backend-api/codex/models"): codex_models,
    ("GET", "/v1/models"): openai_models,
    ("GET", "/backend-api/wham/usage"): wham_usage,
    ("GET", "/backend-api/wham/accounts/check"): accounts_check,
    ("GET", "/oauth/authorize"): issuer.authorize,
    ("POST", "/oauth/token"): issuer.token,
    ("POST", "/api/accounts/deviceauth/usercode"): issuer.usercode,
    ("POST", "/api/accounts/deviceauth/token"): issuer.device_token,
    ("GET", "/codex/device"): issuer.device_page,
}
