"""Model lists: the priced models that the caller's key and plan allow, in the shapes of both clients; never blocked by quota."""

import hashlib
import json
from typing import Any

from proxy import errors, permits, request_ids
from proxy.asgi import Receive, Scope, Send, send_answer
from proxy.dialects import messages
from proxy.errors import Answer, json_answer
from proxy.leaf import Asked, leaf

EFFORTS = ("low", "medium", "high")
CONTEXT_WINDOW = 272_000


def allowed_models(asked: Asked) -> list[str]:
    """Names with a price now that the key and the plan allow, sorted."""
    caller = asked.caller
    rates = caller.snapshot.billing.rates
    subscription = permits.subscription_of(caller, at=asked.resources.now())
    now = asked.resources.now()
    of_plan = subscription.models if subscription is not None else None
    return [
        name
        for name in rates.models_at(now)
        if all(permits.is_allowed(allowed, name, rates.base_name(name, now)) for allowed in (caller.key.allowed_models, of_plan))
    ]


async def respond(asked: Asked) -> Answer:
    """Codex' shape where `client_version` is asked, else OpenAI's (protocol note, section 9)."""
    names = allowed_models(asked)
    if "client_version" not in asked.query:
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "weir"} for name in names]
        return json_answer(200, {"object": "list", "data": data}, request_id=asked.request_id)
    value = {"models": [codex_model(name, priority) for priority, name in enumerate(names, start=1)]}
    etag = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]
    return json_answer(200, value, request_id=asked.request_id, headers=[(b"etag", f'"{etag}"'.encode())])


def codex_model(name: str, priority: int) -> dict[str, Any]:
    """One entry in the shape that Codex 0.171.0 accepts; only what holds for every model of the list."""
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "default_reasoning_level": "medium",
        "supported_reasoning_levels": [{"effort": effort, "description": effort} for effort in EFFORTS],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "availability_nux": None,
        "upgrade": None,
        "base_instructions": "You are Codex, a coding agent. You and the user share one workspace.",
        "supports_reasoning_summaries": True,
        "support_verbosity": True,
        "default_verbosity": "low",
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "supports_parallel_tool_calls": True,
        "context_window": CONTEXT_WINDOW,
        "auto_compact_token_limit": None,
        "experimental_supported_tools": [],
        "minimal_client_version": "0.60.0",
        "prefer_websockets": False,
        "supports_search_tool": False,
        "input_modalities": ["text", "image"],
    }


openai_app = codex_app = leaf(respond)


async def not_found_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Every other path below /v1 and /backend-api: 404 in the shape that clients read."""
    request_id = request_ids.new()
    error = errors.NotFound("There is nothing at this path.")
    shape = messages.refusal if scope["path"].startswith("/v1/messages/") else errors.openai_shape
    envelope = {"message": error.message, "type": "invalid_request_error", "param": None, "code": error.code}
    await send_answer(send, json_answer(404, shape(envelope, 404), request_id=request_id))
