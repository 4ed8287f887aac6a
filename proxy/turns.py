"""What routing needs to know of a request's place in its conversation, told by the body of any dialect. Pure."""

import re
from collections.abc import Mapping

from billing.snapshots import RateSnapshot
from proxy.dialects.fields import Fields, Span

TURN_STATE_HEADER = "x-codex-turn-state"
"""Codex echoes it from a turn's second request on."""
_ROLE = b'"role"'
_TOOL_ROLE = re.compile(rb'"role"\s*:\s*"(?:tool|function)"')
_TOOL_ANSWERS = (b'_call_output"', b'"tool_result"')
_SEALED = b'"encrypted_content"'
WINDOWS = (8_192, 65_536, 1 << 30)
"""Bytes from the end in which the last message is looked for; most end within the first."""


def is_inside(headers: Mapping[str, str], found: Fields) -> bool:
    """Does the request go on with a turn, after a tool's answer? Else a person has said something new.

    Told by the last message, looked for from the end: a conversation may be megabytes. Within strings quotes are escaped, so a name
    between bare quotes is one of JSON's own.
    """
    if TURN_STATE_HEADER in headers:
        return True
    span = _said(found)
    body = found.body
    if span is None or body[span.start : span.start + 1] != b"[":
        return False
    for window in WINDOWS:
        start = max(span.start, span.end - window)
        role = body.rfind(_ROLE, start, span.end)
        last = max(role, start)
        if _TOOL_ROLE.match(body, last) or any(body.find(mark, last, span.end) >= 0 for mark in _TOOL_ANSWERS):
            return True
        if role >= 0 or start == span.start:
            break
    return False


def is_bound(found: Fields) -> bool:
    """Does the conversation hold what only the account that made it can read: encrypted reasoning, a compaction?"""
    span = _said(found)
    return span is not None and found.body.find(_SEALED, span.start, span.end) >= 0


def has_tools(found: Fields) -> bool:
    """Does the request offer tools, so that its turn may go on after the answer?"""
    return (found.raw("tools") or found.raw("functions") or b"null") not in (b"null", b"[]") or found.raw("prompt") is not None


def _said(found: Fields) -> Span | None:
    return found.spans.get("input") or found.spans.get("messages")


def recache(rate: RateSnapshot, input_tokens: int) -> int:
    """Micro-credits that reading `input_tokens` costs more where they are not cached."""
    return max(0, input_tokens * (rate.input - rate.cached_input) // 1_000_000)
