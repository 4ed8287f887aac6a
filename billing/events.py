"""A usage event: what the settle script appends to the usage stream and the drain writes into the log.

The engine writes the frame (ids, times, amounts, funding split); the body is JSON that the proxy made and the engine never reads.
A hold's `about` is a body too: what an orphan's event will say.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec


class PriceLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One attempt that is paid for: its model, rate row, tokens (input without cached and cache write) and micro-credits."""

    model: str
    rate_id: int | None = None
    account_id: int | None = None
    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    credits: int = 0


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything about a request that the engine need not know. Never a prompt, never a secret."""

    member_id: int
    key_id: int
    model_asked: str
    team_id: int | None = None
    session: str = ""
    account_id: int | None = None
    response_id: str = ""
    model_served: str = ""
    tier_asked: str = ""
    tier_billed: str = ""
    status: str = "orphaned"
    is_estimated: bool = False
    is_implausible: bool = False
    is_clamped: bool = False
    latency_ms: int | None = None
    first_token_ms: int | None = None
    rate_id: int | None = None
    lines: tuple[PriceLine, ...] = ()
    trace: tuple[dict[str, Any], ...] = ()
    raw_usage: dict[str, Any] | None = None
    held: int | None = None
    """What its estimate held, micro-credits: how good estimates are is read from the log."""


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """One stream entry, decoded. Amounts are micro-credits; part 1 holds differences and may be negative."""

    request_id: str
    part: int
    state: str
    admitted_at: int
    """Unix seconds of the hold, server time."""
    ended_ms: int
    credits: int
    tokens: int
    requests: int
    from_quota: int
    from_purchased: int
    from_overage: int
    overdraft: int
    source: str
    period_start: int
    """Unix seconds of the funding period's start."""
    stream_id: str
    body: Body = field(repr=False)
    outcome: str = "OK"
    """What the engine answered. After LOGGED it did not know the funds, so all stands in `from_quota` and the drain splits it."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Body)


def encode_body(body: Body) -> bytes:
    """Compact JSON; a hold's `about` must stay within 512 bytes, which a body without lines and trace does."""
    return _encoder.encode(body)


def decode_body(data: bytes) -> Body:
    """Raises msgspec.ValidationError or msgspec.DecodeError for anything that is not a body."""
    return _decoder.decode(data)
