"""What a request owes when it has ended, whichever way: one price line for each attempt that is paid for, one usage event.

Owed (design section 6): the upstream's own count if it gave one; else an estimate of input and output for what produced output,
or was cut by the client or by us after it was written; nothing for what the upstream itself ended without output.
"""

import logging
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Literal

import msgspec

from billing import events, pricing, tokens
from billing.errors import ImplausibleUsage, ModelUnknown, ModelUnpriced
from billing.events import Body, PriceLine
from billing.snapshots import RateSnapshot
from billing.tokens import TokenUsage
from config.snapshot import Snapshot
from proxy import estimate
from proxy.auth import Caller
from proxy.dialects.inspection import Inspection
from proxy.dialects.wire import Dialect
from proxy.estimate import Estimate
from proxy.metering import Meter
from quotas.holds import Amount, Hold
from routing.anchors import Anchor
from routing.health import Kind
from routing.selection import Lease
from routing.snapshots import COMPATIBLE

logger = logging.getLogger(__name__)

UNSENT_TOKENS = 16_384
"""Instructions that an upstream adds by itself; more input than this above one token for each byte sent is not believed."""
MOST_RAW_USAGE_BYTES = 4096
_NUL = b"\\u0000"


class EndedBy(Enum):
    """Who ended an attempt's answer."""

    NOBODY = "nobody"
    UPSTREAM = "upstream"
    CLIENT = "client"
    US = "us"


@dataclass(slots=True, eq=False)
class Attempt:
    """One try on one account, as far as it got."""

    number: int
    lease: Lease
    meter: Meter = field(default_factory=Meter)
    is_written: bool = False
    http_status: int = 0
    failure: str = ""
    ended_by: EndedBy = EndedBy.NOBODY
    credits: int = 0
    """What it cost, micro-credits, once the tab is made out."""

    @property
    def hold_then(self) -> Literal["go", "end", "free"]:
        """What becomes of the room held for the session's turn (`selection.book`)."""
        if self.failure == Kind.USAGE_LIMIT.value:
            return "free"
        return "go" if self.meter.calls_tools else "end"

    def trace(self) -> dict[str, Any]:
        """What the request log shows of it."""
        step = self.lease.trace()
        if self.http_status:
            step["status"] = self.http_status
        if self.failure:
            step["failure"] = self.failure
        return step


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was admitted: whose, what, at which price."""

    request_id: str
    caller: Caller
    dialect: Dialect
    inspection: Inspection
    rate: RateSnapshot
    estimate: Estimate
    session_key: str | None
    began: float
    """time.monotonic() at its first byte."""
    model: str
    """What is admitted, priced and logged: the asked name, or that of the model which a rule lets serve in its place."""
    alias_of: str = ""
    """The model that `model` stands for, if it is an alias: what accounts are chosen by and the upstream is asked for."""
    is_inside_turn: bool = False
    """It goes on with a turn, after a tool's answer (`proxy.turns`)."""
    anchors: tuple[Anchor, ...] = ()
    """What it names of state that one account holds (`proxy.anchors`)."""

    @property
    def upstream_model(self) -> str:
        return self.alias_of or self.model

    @property
    def asked_model(self) -> str | None:
        """The name that the client used, where the upstream is asked by another one."""
        return None if self.upstream_model == self.inspection.model else self.inspection.model

    @property
    def snapshot(self) -> Snapshot:
        return self.caller.snapshot


def about(caller: Caller, inspection: Inspection, session_key: str | None, *, model: str) -> bytes:
    """The event body of an orphan: what is known before anything is sent."""
    return events.encode_body(
        Body(
            member_id=caller.key.member_id,
            key_id=caller.key.key_id,
            team_id=caller.key.team_id,
            model_asked=model,
            tier_asked=_tier(inspection),
            session=session_key or "",
            is_estimated=True,
        )
    )


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt priced."""

    price: PriceLine
    tier: str
    is_estimated: bool
    is_implausible: bool
    is_clamped: bool
    tokens: int


@dataclass(slots=True, eq=False)
class Tab:
    """What a request has run up so far. `status` is a usage record's; set by whoever learns how it ended."""

    call: Call
    hold: Hold
    told: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Headers that tell the client how its own limits stand."""
    attempts: list[Attempt] = field(default_factory=list)
    status: str = ""
    first_token_ms: int | None = None
    _clock: tuple[int, float] = field(init=False)

    def __post_init__(self) -> None:
        self.hear_clock(self.hold.ack)

    def hear_clock(self, server_ms: int) -> None:
        """The Redis server's clock, as it has just been told."""
        self._clock = server_ms, time.monotonic()

    def server_now_ms(self) -> int:
        """That clock by now: an upstream may have taken a minute to refuse."""
        server_ms, heard_at = self._clock
        return server_ms + int((time.monotonic() - heard_at) * 1000)

    @property
    def is_written(self) -> bool:
        """Was anything handed to an upstream's socket?"""
        return any(attempt.is_written for attempt in self.attempts)

    @property
    def is_answered(self) -> bool:
        """Has the terminal event of an answer come?"""
        return bool(self.attempts) and self.attempts[-1].meter.is_terminal

    def begin(self, lease: Lease, meter: Meter | None = None) -> Attempt:
        attempt = Attempt(number=len(self.attempts) + 1, lease=lease, meter=meter or Meter())
        self.attempts.append(attempt)
        # How the one before ended is in the trace.
        self.status = ""
        return attempt

    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self.call.began) * 1000)

    def saw_output(self) -> None:
        if self.first_token_ms is None:
            self.first_token_ms = self.elapsed_ms()

    def observe(self, attempt: Attempt) -> None:
        """Tells the hold what this has cost at least, so that a crash is billed for it."""
        call = self.call
        output = attempt.meter.output_estimate
        self.hold.observe(
            Amount(
                credits=estimate.price(call.rate, call.estimate.input_tokens, output, fast=call.inspection.is_fast),
                tokens=call.estimate.input_tokens + output,
            )
        )

    def owed(self) -> tuple[Amount, bytes]:
        """The amount to settle and the usage event's body."""
        call = self.call
        lines = []
        for attempt in self.attempts:
            line = self._line(attempt)
            if line is not None:
                lines.append(line)
                attempt.credits = line.price.credits
        is_implausible = any(line.is_implausible for line in lines)
        credits = sum(line.price.credits for line in lines)
        counted = sum(line.tokens for line in lines)
        if is_implausible:
            logger.warning(
                "implausible usage booked at the hold's amount",
                extra={
                    "accounts": [line.price.account_id for line in lines if line.is_implausible],
                    "model": call.model,
                },
            )
        last = self.attempts[-1] if self.attempts else None
        billed = lines[-1] if lines else None
        meter = last.meter if last is not None else Meter()
        body = Body(
            member_id=call.caller.key.member_id,
            key_id=call.caller.key.key_id,
            team_id=call.caller.key.team_id,
            model_asked=call.model,
            session=call.session_key or "",
            account_id=last.lease.account.account_id if last is not None else None,
            response_id=meter.response_id,
            model_served=meter.model or (billed.price.model if billed is not None else ""),
            tier_asked=_tier(call.inspection),
            tier_billed=billed.tier if billed is not None else "",
            status=self.status or "failed",
            is_estimated=any(line.is_estimated for line in lines),
            is_implausible=is_implausible,
            is_clamped=any(line.is_clamped for line in lines),
            latency_ms=self.elapsed_ms(),
            first_token_ms=self.first_token_ms,
            rate_id=billed.price.rate_id if billed is not None else None,
            lines=tuple(line.price for line in lines),
            trace=self._trace(),
            raw_usage=_bounded(meter.usage),
            held=call.estimate.credits,
        )
        return Amount(credits=credits, tokens=counted), events.encode_body(body)

    def _trace(self) -> tuple[dict[str, Any], ...]:
        steps = [attempt.trace() for attempt in self.attempts]
        if steps and self.call.model != self.call.inspection.model:
            steps[0]["asked"] = self.call.inspection.model
        return tuple(steps)

    def _line(self, attempt: Attempt) -> Line | None:
        """What one attempt costs; None if it costs nothing because nothing of it ran."""
        if not attempt.is_written:
            return None
        meter = attempt.meter
        try:
            usage = tokens.normalise(meter.usage, meter.dialect) if meter.usage is not None else None
        except ImplausibleUsage:
            return self._implausible(attempt)
        if usage is not None:
            if self._is_more_than_sent(usage):
                return self._implausible(attempt)
            self._learn(attempt, usage)
            self._remember(meter, usage)
            return self._priced(attempt, usage, is_estimated=False)
        guess = self._estimated(meter)
        self._remember(meter, guess)
        if self.call.inspection.is_warm_up and not meter.has_output:
            # Nothing is generated, so nothing is owed, however it ends.
            return None
        is_ours = attempt.ended_by in (EndedBy.CLIENT, EndedBy.US)
        if not meter.has_output and not is_ours and meter.status not in ("ok", "incomplete"):
            return None
        return self._priced(attempt, guess, is_estimated=True)

    def _remember(self, meter: Meter, usage: TokenUsage) -> None:
        """What a request that goes on with this response reads again: of a warm-up all that it brought, and did not pay for."""
        total = usage.input + usage.cached_input + usage.cache_write + usage.output
        if self.call.inspection.is_warm_up:
            total = max(total, self.call.estimate.input_tokens)
        estimate.learned.remember(self.call.snapshot.organization_id, meter.response_id, total)

    def _estimated(self, meter: Meter) -> TokenUsage:
        """Input by ratio, or as the upstream counted it where it says so at the beginning: most of it may have been cached."""
        output = meter.output_estimate
        try:
            said = tokens.normalise(meter.usage_so_far, meter.dialect)
        except ImplausibleUsage:
            said = None
        if said is None or self._is_more_than_sent(said):
            return estimate.usage_of(self.call.estimate.input_tokens, output)
        return replace(said, output=max(said.output, output))

    def _priced(self, attempt: Attempt, usage: TokenUsage, *, is_estimated: bool) -> Line:
        rate = self._rate_served(attempt.meter.model)
        tier = pricing.tier_billed(
            attempt.lease.account.kind, self.call.inspection.service_tier, attempt.meter.service_tier or None
        )
        price = PriceLine(
            model=rate.model,
            rate_id=rate.rate_id,
            account_id=attempt.lease.account.account_id,
            input=usage.input,
            cached_input=usage.cached_input,
            cache_write=usage.cache_write,
            output=usage.output,
            reasoning=usage.reasoning,
            credits=pricing.cost(usage, rate, fast=tier == "fast"),
        )
        counted = usage.input + usage.cached_input + usage.cache_write + usage.output
        return Line(price, tier, is_estimated, False, usage.clamped, counted)

    def _implausible(self, attempt: Attempt) -> Line:
        """Booked at what was held: a counter never falls, and nobody pays for a number that cannot be (D5)."""
        held = self.call.estimate
        estimate.learned.remember(self.call.snapshot.organization_id, attempt.meter.response_id, held.tokens)
        tier = "fast" if self.call.inspection.is_fast else "standard"
        price = PriceLine(
            model=self.call.rate.model,
            rate_id=self.call.rate.rate_id,
            account_id=attempt.lease.account.account_id,
            input=held.input_tokens,
            output=held.output_tokens,
            credits=held.credits,
        )
        return Line(price, tier, True, True, False, held.tokens)

    def _rate_served(self, model: str) -> RateSnapshot:
        """The rate of the model that answered, valid when the request was admitted; the asked one's if it has none."""
        call = self.call
        model = model or call.model
        try:
            at = datetime.fromtimestamp(self.hold.admitted_at, UTC)
            found: RateSnapshot = call.snapshot.billing.rates.rate_for(model, at)
        except (ModelUnknown, ModelUnpriced):
            logger.warning("a model without a rate answered; billed as asked", extra={"asked": call.model, "served": model})
            return call.rate
        return found

    def _is_more_than_sent(self, usage: TokenUsage) -> bool:
        counted = usage.input + usage.cached_input + usage.cache_write
        inspection = self.call.inspection
        return counted > len(inspection.body) + UNSENT_TOKENS and not inspection.may_read_more_than_sent()

    def _learn(self, attempt: Attempt, usage: TokenUsage) -> None:
        inspection = self.call.inspection
        if inspection.is_warm_up:
            # Nothing was to come out, which says nothing of answers.
            return
        body_bytes = None if inspection.previous_response_id else len(inspection.body)
        source, name = estimate.learned, self.call.rate.model
        if attempt.lease.account.kind == COMPATIBLE:
            source, name = estimate.own, estimate.own_name(self.call.snapshot.organization_id, name)
        source.learn(
            name,
            body_bytes=body_bytes,
            input_tokens=usage.input + usage.cached_input + usage.cache_write,
            output_tokens=usage.output,
        )


def _tier(inspection: Inspection) -> str:
    tier = inspection.service_tier or ""
    return tier[:20] if tier.isprintable() else ""


def _bounded(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """The raw usage as the log can take it: bounded, and without what PostgreSQL's JSON refuses, NUL and half surrogate pairs."""
    if usage is None:
        return None
    try:
        text = msgspec.json.encode(usage)
    except (ValueError, RecursionError):
        # Half a surrogate pair; a number of thousands of digits.
        text = None
    if text is None or len(text) > MOST_RAW_USAGE_BYTES or _NUL in text:
        return {"dropped": "not to be kept in the log"}
    return usage
