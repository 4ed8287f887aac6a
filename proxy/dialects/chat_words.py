"""What a Responses upstream says in the words of Chat Completions, piece by piece. Pure."""

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from config.json_bounds import has_too_many

CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
"""Kind of item -> kind of call, and where it keeps what it is called with."""
_TEXTS = {"output_text": ("content", "text"), "refusal": ("refusal", "refusal"), "summary_text": ("reasoning_content", "text")}
_CLIENTS_FAULT = frozenset({"context_length_exceeded", "invalid_prompt", "cyber_policy", "content_policy_violation"})


@dataclass(frozen=True, slots=True)
class Asked:
    """How the client wants its answer. `created_at` (unix seconds) and `answer_id` hold where the upstream tells none."""

    model: str
    with_usage: bool
    is_legacy: bool
    answer_id: str
    created_at: int


@dataclass(slots=True)
class Begun:
    """What the upstream says of the answer as a whole."""

    answer_id: str
    model: str
    created_at: int

    def read(self, response: object) -> None:
        if not isinstance(response, dict):
            return
        found, model, created_at = response.get("id"), response.get("model"), response.get("created_at")
        if isinstance(found, str) and found:
            self.answer_id = "chatcmpl-" + found.removeprefix("resp_")
        if isinstance(model, str) and model:
            self.model = model
        if isinstance(created_at, int) or (isinstance(created_at, float) and math.isfinite(created_at)):
            self.created_at = int(created_at)


def usage_of(usage: object) -> dict[str, Any] | None:
    """A Responses usage object in the words of Chat Completions; None if it is none."""
    if not isinstance(usage, dict):
        return None
    read, written = _count(usage.get("input_tokens")), _count(usage.get("output_tokens"))
    of_read, of_written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    cached = of_read.get("cached_tokens") if isinstance(of_read, dict) else 0
    reasoning = of_written.get("reasoning_tokens") if isinstance(of_written, dict) else 0
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": _count(usage.get("total_tokens")) or read + written,
        "prompt_tokens_details": {"cached_tokens": _count(cached), "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": _count(reasoning),
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def error_chunk(code: str, message: str) -> bytes:
    """What ends a stream that failed: SDKs raise their APIError at it. No `[DONE]` follows: it would say that all is well."""
    kind = "invalid_request_error" if code in _CLIENTS_FAULT else "server_error"
    return b"data: " + as_json({"error": {"message": message, "type": kind, "param": None, "code": code}}) + b"\n\n"


def loaded(data: bytes) -> dict[str, Any]:
    """The object, by a lenient reader where the strict one fails; {} for anything else, and for too much."""
    if has_too_many(data):
        return {}
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def call_of(item: dict[str, Any], given: str) -> dict[str, Any]:
    """A call of an item of one of CALLS, called with `given`."""
    kind, field_name = CALLS[kind_of(item)]
    call_id = _text(item.get("call_id")) or _text(item.get("id"))
    return {"id": call_id, "type": kind, kind: {"name": _text(item.get("name")), field_name: given}}


def given_of(item: dict[str, Any]) -> str:
    """What an item of one of CALLS is called with."""
    return _text(item.get(CALLS[kind_of(item)][1]))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def kind_of(item: dict[str, Any]) -> str:
    return str(item.get("type"))


def texts_of(item: dict[str, Any]) -> list[tuple[str, str]]:
    """The texts of a whole item with the names of the fields that they go to."""
    parts = item.get({"reasoning": "summary", "message": "content"}.get(kind_of(item), ""))
    found = []
    for part in parts if isinstance(parts, list) else ():
        name, field_name = _TEXTS.get(str(part.get("type")), ("", "")) if isinstance(part, dict) else ("", "")
        if name and isinstance(part.get(field_name), str):
            found.append((name, part[field_name]))
    return found


def finish_reason(status: str, response: dict[str, Any], *, has_calls: bool, is_legacy: bool) -> str:
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return "content_filter" if reason == "content_filter" else "length"
    if has_calls:
        return "function_call" if is_legacy else "tool_calls"
    return "stop"


def told(value: dict[str, Any]) -> dict[str, str]:
    """Code and message of a failing event, or of the response in it."""
    error = value.get("error")
    found = error if isinstance(error, dict) else value
    return {
        "code": str(found.get("code") or "server_error")[:80],
        "message": str(found.get("message") or "The upstream failed.")[:2000],
    }


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def as_json(value: object) -> bytes:
    # Escaped: half a surrogate pair has no other spelling.
    return json.dumps(value, separators=(",", ":")).encode()
