"""POST /responses on both surfaces: who may ask, what is refused, and the answer that goes out."""

import json
import time
from collections.abc import Iterable
from typing import Any

import msgspec
import zstandard

from demo.upstream_call import Call, framed
from demo.upstream_errors import ERRORS
from demo.upstream_events import Response, items_of, sse
from demo.upstream_script import Answer, Match
from demo.upstream_state import Account, State

MOST_BODY = 64 * 1024 * 1024
TIERS = {"priority": "priority", "flex": "flex"}
PLAIN = Answer()
UNSUPPORTED = frozenset(
    {"temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "metadata", "top_logprobs", "user"}
)
"""What the ChatGPT backend refuses by name, though it is in the Responses API."""


def problem(message: str, code: str, kind: str = "invalid_request_error", *, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


async def refuse(call: Call, name: str) -> None:
    refusal = ERRORS[name]
    await call.json(refusal.status, refusal.body, refusal.headers.items())


async def signed_in(call: Call, state: State) -> Account | None:
    """The account that a ChatGPT request is for; refuses and returns None when its token is no good."""
    token = state.find_access(call.token)
    if token is None:
        await call.json(401, problem("Could not parse your authentication token.", "invalid_token"))
    elif token.is_revoked:
        await refuse(call, "401_revoked")
    elif token.expires_at <= time.time():
        await refuse(call, "401_token_expired")
    elif call.headers.get("chatgpt-account-id") != token.account.account_id:
        await call.json(403, problem("The account does not belong to this token.", "forbidden"))
    else:
        return token.account
    return None


async def chatgpt_response(call: Call, state: State) -> None:
    account = await signed_in(call, state)
    if account is None:
        return
    raw: bytes | None = call.body
    if call.headers.get("content-encoding") == "zstd":
        raw = unpacked(call.body)
    body = parsed(raw) if raw is not None else None
    if raw is None or body is None:
        await call.json(400, {"detail": "Invalid JSON"})
    elif body.get("stream") is not True:
        await refuse(call, "400_stream")
    elif body.get("store") is not False:
        await refuse(call, "400_store")
    elif "max_output_tokens" in body:
        await refuse(call, "400_detail")
    elif unsupported := sorted(UNSUPPORTED & body.keys()):
        await call.json(400, {"detail": f"Unsupported parameter: {unsupported[0]}"})
    elif any(item.get("role") == "system" for item in items_of(body)):
        await call.json(400, {"detail": "System messages are not allowed"})
    else:
        await respond(call, state, body, raw, account)


async def openai_response(call: Call, state: State) -> None:
    if not call.token.startswith("sk-") or call.token in state.refused_keys:
        await refuse(call, "401")
        return
    body = parsed(call.body)
    if body is None or "content-encoding" in call.headers:
        await call.json(400, problem("We could not parse the JSON body of your request.", "invalid_json"))
    elif not isinstance(body.get("model"), str):
        await call.json(400, problem("Missing required parameter: 'model'.", "missing_required_parameter", param="model"))
    else:
        await respond(call, state, body, call.body, None)


def unpacked(body: bytes) -> bytes | None:
    """The decompressed body, up to a bound; None if it is not zstd."""
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(body)[:MOST_BODY]
    except zstandard.ZstdError:
        return None


def parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        body = json.loads(raw)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


async def respond(call: Call, state: State, body: dict[str, Any], raw: bytes, account: Account | None) -> None:
    """The scripted answer, or the computed one."""
    owner = account.account_id if account else call.token
    account_id = account.account_id if account else None
    seen = Match(
        account=account_id,
        path=call.path,
        model=str(body.get("model")),
        token=call.token,
        transport="socket" if call.method == "WEBSOCKET" else "http",
    )
    scripted = state.scripts.take(seen, is_response=True)
    answer = scripted or PLAIN
    call.record.scripted = scripted is not None
    await before_head(call, state, answer)
    now = time.time()
    headers = [("x-request-id", f"up_{state.requests:08d}")]
    if account is not None:
        headers += account.headers(now)
        headers.append(("x-codex-turn-state", call.headers.get("x-codex-turn-state", f"ts-{state.requests:08x}")))
    if await whole(call, state, answer, headers):
        return
    if scripted is None and account is not None and (resets_at := account.exhausted_until(now)) is not None:
        await call.json(429, exhausted(account, resets_at, now), headers)
        return
    parent = body.get("previous_response_id")
    parent_tokens = 0
    if parent is not None:
        parent_owner, parent_tokens = call.find_parent(state, parent)
        if parent_owner != owner and scripted is None:
            message = f"Previous response with id '{parent}' not found."
            await call.json(400, problem(message, "previous_response_not_found", param="previous_response_id"), headers)
            return
    state.count += 1
    response = Response(
        body,
        number=state.count,
        created_at=int(now),
        # What ChatGPT says of the tier is always this, whatever was asked and served.
        tier="default" if account else TIERS.get(str(body.get("service_tier")), "default"),
        answer=answer,
        size=len(raw),
        cached=state.cached_tokens(owner, body.get("prompt_cache_key"), len(raw)),
        parent_tokens=parent_tokens,
    )
    call.record.response_id = response.id
    total = int((response.usage or {}).get("total_tokens") or 0)
    call.remember_response(state, response.id, owner, total)
    if account is not None:
        account.use(total)
    if body.get("stream") is True or call.method == "WEBSOCKET" or answer.events is not None or answer.raw is not None:
        kind = [("content-type", "text/event-stream"), ("cache-control", "no-cache")]
        await send(call, state, answer, changed([*kind, *headers], answer), pieces(answer, response))
    else:
        data = json.dumps(response.final()).encode()
        await send(call, state, answer, framed(data, is_text=False, headers=changed(headers, answer)), [data])


def exhausted(account: Account, resets_at: int, now: float) -> dict[str, Any]:
    return {
        "error": {
            "type": "usage_limit_reached",
            "message": "The usage limit has been reached",
            "plan_type": account.plan,
            "resets_at": resets_at,
            "resets_in_seconds": max(0, resets_at - int(now)),
        }
    }


async def before_head(call: Call, state: State, answer: Answer) -> None:
    """What a script does before a byte is sent."""
    if answer.hold is not None and answer.hold.after == "request":
        await call.wait(state.scripts.gate(answer.hold.name))
    if answer.deaf:
        call.go_deaf()
    await call.pause(answer.delay)
    if answer.cut_before_head:
        await call.cut(answer.cut_how)
    if answer.silence == "head":
        await call.stay_silent(state.scripts)


async def whole(call: Call, state: State, answer: Answer, headers: list[tuple[str, str]]) -> bool:
    """Sends a scripted error or body; False if the answer is a generated response or a stream."""
    has_body = not isinstance(answer.body, msgspec.UnsetType)
    if answer.error is None and not has_body and answer.status in (None, 200):
        return False
    status, value = answer.status or 200, answer.body if has_body else problem("scripted", "scripted")
    if answer.error is not None:
        refusal = ERRORS[answer.error]
        named = {name for name, _ in refusal.headers.items()}
        headers = [*(pair for pair in headers if pair[0] not in named), *refusal.headers.items()]
        status, value = answer.status or refusal.status, value if has_body else refusal.body
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    head = framed(data, is_text=isinstance(value, str), headers=changed(headers, answer))
    await send(call, state, answer, head, [data], status=status)
    return True


def changed(headers: Iterable[tuple[str, str]], answer: Answer) -> list[tuple[str, str]]:
    """The headers with the script's set over them."""
    over = {name.lower(): value for name, value in answer.headers.items()}
    kept = [pair for pair in headers if pair[0].lower() not in over]
    return [*kept, *((name, value) for name, value in over.items() if value is not None)]


def pieces(answer: Answer, response: Response) -> list[bytes]:
    """The stream, an event a piece."""
    if answer.raw is not None:
        return [answer.raw.encode()]
    if answer.events is not None:
        return [sse(event) for event in answer.events]
    return [sse(event) for event in response.events()]


async def send(
    call: Call, state: State, answer: Answer, headers: list[tuple[str, str]], parts: list[bytes], *, status: int = 200
) -> None:
    await call.start(answer.status or status, headers)
    if answer.hold is not None and answer.hold.after == "head":
        await call.wait(state.scripts.gate(answer.hold.name))
    if answer.silence == "body":
        await call.stay_silent(state.scripts)
    await call.pause(answer.first_event_delay)
    await call.deliver(parts, answer, state.scripts)
