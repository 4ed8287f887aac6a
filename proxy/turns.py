"""What routing needs to know of a request's place in its conversation, told by the body of any dialect. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from billing.snapshots import RateSnapshot
from proxy.dialects.fields import Fields

TURN_STATE_HEADER = "x-codex-turn-state"
"""Codex echoes it from a turn's second request on."""
_ROLE = b'"role"'
_TOOL_ROLE = re.compile(rb'"role"\s*:\s*"(?:tool|function)"')
_TOOL_ANSWERS = (b'_call_output"', b'"tool_result"')
_SEALED = b'"encrypted_content"'


@dataclass(frozen=True, slots=True)
class Stand:
    """`is_inside`: the request goes on with a turn, after a tool's answer; else a person has said something new.

    `is_bound`: the conversation holds what only the account that made it can read: encrypted reasoning, a compaction.
    """

    is_inside: bool = False
    is_bound: bool = False


def read(headers: Mapping[str, str], found: Fields) -> Stand:
    """Judged by the last message. Within strings quotes are escaped, so a name between bare quotes is one of JSON's own."""
    said = found.raw("input") or found.raw("messages") or b""
    last = max(0, said.rfind(_ROLE))
    is_inside = (
        TURN_STATE_HEADER in headers
        or any(said.find(answer, last) >= 0 for answer in _TOOL_ANSWERS)
        or _TOOL_ROLE.match(said, last) is not None
    )
    return Stand(is_inside=is_inside, is_bound=_SEALED in said)


def recache(rate: RateSnapshot, input_tokens: int) -> int:
    """Micro-credits that reading `input_tokens` costs more where they are not cached."""
    return max(0, input_tokens * (rate.input - rate.cached_input) // 1_000_000)
