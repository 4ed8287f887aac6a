"""POST .../responses/compact: a conversation in, what stands for it out (remote compaction v1). JSON both ways, never a stream."""

import json
import time
from typing import Any

from demo.upstream_call import Call, framed
from demo.upstream_events import BYTES_PER_TOKEN, items_of
from demo.upstream_responses import PLAIN, before_head, changed, parsed, problem, refuse, send, signed_in, unpacked, whole
from demo.upstream_script import Match
from demo.upstream_state import Account, State

OUTPUT_TOKENS = 30


async def chatgpt_compaction(call: Call, state: State) -> None:
    """Says no usage unless it is scripted."""
    account = await signed_in(call, state)
    if account is None:
        return
    raw: bytes | None = unpacked(call.body) if call.headers.get("content-encoding") == "zstd" else call.body
    body = parsed(raw) if raw is not None else None
    if raw is None or body is None:
        await call.json(400, {"detail": "Invalid JSON"})
    elif "stream" in body or "store" in body:
        await call.json(400, {"detail": f"Unsupported parameter: {'stream' if 'stream' in body else 'store'}"})
    else:
        await compact(call, state, body, raw, account)


async def openai_compaction(call: Call, state: State) -> None:
    if not call.token.startswith("sk-") or call.token in state.refused_keys:
        await refuse(call, "401")
        return
    body = parsed(call.body)
    if body is None or "content-encoding" in call.headers:
        await call.json(400, problem("We could not parse the JSON body of your request.", "invalid_json"))
    elif not isinstance(body.get("model"), str):
        await call.json(400, problem("Missing required parameter: 'model'.", "missing_required_parameter", param="model"))
    else:
        await compact(call, state, body, call.body, None)


async def compact(call: Call, state: State, body: dict[str, Any], raw: bytes, account: Account | None) -> None:
    seen = Match(
        account=account.account_id if account else None,
        path=call.path,
        model=str(body.get("model")),
        token=call.token,
        transport="http",
    )
    scripted = state.scripts.take(seen, is_response=True)
    answer = scripted or PLAIN
    call.record.scripted = scripted is not None
    await before_head(call, state, answer)
    now = time.time()
    headers = [("x-request-id", f"up_{state.requests:08d}")]
    if account is not None:
        headers += account.headers(now)
    if await whole(call, state, answer, headers):
        return
    state.count += 1
    tokens = max(1, len(raw) // BYTES_PER_TOKEN)
    usage = {
        "input_tokens": tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens + OUTPUT_TOKENS,
    }
    kept = [item for item in items_of(body) if item.get("role") == "user"][-1:]
    sealed = {"id": f"cmp_{state.count:032x}", "type": "compaction", "encrypted_content": "c2NyaXB0ZWQtY29tcGFjdGlvbg=="}
    value: dict[str, Any] = {"output": [*kept, sealed]}
    if account is None:
        call.record.response_id = f"resp_{state.count:032x}"
        value = {"id": call.record.response_id, "object": "response.compaction", "created_at": int(now), **value}
        value["usage"] = None if answer.no_usage else answer.usage or usage
    else:
        account.use(tokens + OUTPUT_TOKENS)
        if answer.usage is not None:
            value["usage"] = answer.usage
    data = json.dumps(value).encode()
    await send(call, state, answer, framed(data, is_text=False, headers=changed(headers, answer)), [data])
