"""Thirty days of believable use: the same for the same person and day, whenever it is asked for.

Days follow the office: sessions of several turns on weekdays, a few at the weekend, each turn reading what came before from the
cache. Everything is priced as a real request would be, by the rate that was valid at its moment.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from billing import pricing
from billing.events import Body, PriceLine, UsageEvent
from billing.snapshots import RateCardSnapshot, RateSnapshot, SubscriptionSnapshot
from billing.tokens import TokenUsage

T = TypeVar("T")

DAYS = 30
MARK = "0-0"
"""The `stream_id` of invented records: they came through no stream."""

# Only models that the scripted upstream lists; the ones without a rate on the day are left out.
FAVOURITES = (("gpt-6.1-sol", 34), ("gpt-5.5", 24), ("gpt-5.6-sol", 16), ("gpt-5.4-mini", 14), ("gpt-5.4", 8), ("gpt-6-luna", 4))
STATUSES = (("ok", 945), ("client_closed", 30), ("incomplete", 25))
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


@dataclass(frozen=True, slots=True)
class Worker:
    """A member with a key, and how much they work (hundredths of the usual)."""

    email: str
    member_id: int
    key_id: int
    team_id: int | None
    pace: int


@dataclass(frozen=True, slots=True)
class Carrier:
    """A pool account, and its share of the traffic."""

    account_id: int
    kind: str
    share: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session, before it is priced."""

    at: datetime
    model: str
    usage: TokenUsage
    status: str
    is_fast: bool
    carrier: Carrier
    session: str


def days_until(now: datetime, zone: ZoneInfo, since: date | None) -> list[date]:
    """The organization's days to tell of, today last; from `since` on if the earlier ones are told already."""
    today = now.astimezone(zone).date()
    first = today - timedelta(days=DAYS - 1)
    start = first if since is None else max(first, since)
    return [start + timedelta(days=number) for number in range((today - start).days + 1)]


def events(
    worker: Worker,
    day: date,
    *,
    zone: ZoneInfo,
    until: datetime,
    carriers: Sequence[Carrier],
    rates: RateCardSnapshot,
    subscription: SubscriptionSnapshot,
) -> Iterator[UsageEvent]:
    """What the worker's requests of this local day left in the log, as far as they had ended at `until`."""
    rng = random.Random(f"weir demo {worker.email} {day}")
    for number, turn in enumerate(_turns(worker, day, zone, carriers, rates, rng)):
        rate = rates.rate_for(turn.model, turn.at)
        event = _event(worker, turn, rate, subscription, len(carriers), random.Random(f"{worker.email} {day} {number}"))
        if event.ended_ms < until.timestamp() * 1000:
            yield event


def _turns(
    worker: Worker, day: date, zone: ZoneInfo, carriers: Sequence[Carrier], rates: RateCardSnapshot, rng: random.Random
) -> Iterator[Turn]:
    is_weekend = day.weekday() >= 5
    if rng.random() > (0.1 if is_weekend else 0.93):
        return
    for _ in range(1 if is_weekend else rng.randint(2, 4)):
        at = datetime.combine(day, time(8, 30), zone).astimezone(UTC) + timedelta(seconds=rng.randint(0, 9 * 3600))
        at = at.replace(microsecond=0)
        offered = [(name, share) for name, share in FAVOURITES if name in rates.models_at(at)]
        if not offered:
            continue
        model = _pick(offered, rng)
        carrier = _pick([(one, one.share) for one in carriers], rng)
        session = f"{rng.getrandbits(128):032x}"
        is_fast = carrier.kind == "chatgpt" and rng.random() < 0.06
        read = rng.randint(20_000, 90_000)
        cached = 0
        for _ in range(max(1, rng.randint(3, 8) * worker.pace // 100)):
            fresh = rng.randint(1_500, 14_000)
            output = max(40, min(12_000, int(rng.lognormvariate(7.1, 0.8))))
            yield Turn(
                at=at,
                model=model,
                usage=TokenUsage(
                    input=read - cached + fresh,
                    cached_input=cached,
                    cache_write=0,
                    output=output,
                    reasoning=output * rng.randint(15, 60) // 100,
                ),
                status=_pick(STATUSES, rng),
                is_fast=is_fast,
                carrier=carrier,
                session=session,
            )
            read += fresh + output
            # The cache keeps whole blocks of 128 tokens.
            cached = read - read % 128
            at += timedelta(seconds=rng.randint(35, 400))


def _event(
    worker: Worker, turn: Turn, rate: RateSnapshot, subscription: SubscriptionSnapshot, candidates: int, rng: random.Random
) -> UsageEvent:
    usage = turn.usage
    kind = turn.carrier.kind
    asked = "priority" if turn.is_fast else ""
    tier = pricing.tier_billed(kind, asked, "default")
    credits = pricing.cost(usage, rate, fast=tier == "fast")
    latency_ms = 900 + usage.output * 11 + math.isqrt(usage.input_total) * 4
    at = int(turn.at.timestamp())
    is_estimated = turn.status == "client_closed"
    body = Body(
        member_id=worker.member_id,
        key_id=worker.key_id,
        team_id=worker.team_id,
        model_asked=turn.model,
        model_served=turn.model,
        session=turn.session,
        account_id=turn.carrier.account_id,
        response_id=f"resp_{rng.getrandbits(200):050x}",
        tier_asked=asked,
        tier_billed=tier,
        status=turn.status,
        is_estimated=is_estimated,
        latency_ms=latency_ms,
        first_token_ms=rng.randint(420, min(3_800, latency_ms)),
        rate_id=rate.rate_id,
        lines=(
            PriceLine(
                model=turn.model,
                rate_id=rate.rate_id,
                account_id=turn.carrier.account_id,
                input=usage.input,
                cached_input=usage.cached_input,
                cache_write=usage.cache_write,
                output=usage.output,
                reasoning=usage.reasoning,
                credits=credits,
            ),
        ),
        trace=({"account_id": turn.carrier.account_id, "reason": "pace", "candidates": candidates, "status": 200},),
        raw_usage=None if is_estimated else _raw(usage),
    )
    return UsageEvent(
        request_id=_request_id(at * 1000, rng),
        part=0,
        state="S",
        admitted_at=at,
        ended_ms=at * 1000 + latency_ms,
        credits=credits,
        tokens=usage.total,
        requests=1,
        from_quota=credits,
        from_purchased=0,
        from_overage=0,
        overdraft=0,
        source="o",
        period_start=int(subscription.period_at(turn.at).start.timestamp()),
        stream_id=MARK,
        body=body,
    )


def _raw(usage: TokenUsage) -> dict[str, Any]:
    """As the Responses API says it: input with the cached tokens inside."""
    return {
        "input_tokens": usage.input_total,
        "input_tokens_details": {"cached_tokens": usage.cached_input},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.total,
    }


def _request_id(ms: int, rng: random.Random) -> str:
    """`req_` + ULID; the random part is the generator's, so that a second telling finds the first."""
    number = ms << 80 | rng.getrandbits(80)
    return "req_" + "".join(CROCKFORD[number >> shift & 31] for shift in range(125, -1, -5))


def _pick(weighted: Sequence[tuple[T, int]], rng: random.Random) -> T:
    at = rng.randrange(sum(share for _, share in weighted))
    for value, share in weighted:
        at -= share
        if at < 0:
            return value
    raise AssertionError("the shares do not add up")
