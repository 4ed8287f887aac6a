"""What a request owes, whichever way it ended. Pure: a snapshot, a hold and what the upstream said."""

import json
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest

from accounts.snapshots import KeySnapshot
from billing.events import Body, decode_body
from billing.snapshots import AliasSnapshot, BillingSnapshot, RateCardSnapshot, RateSnapshot, SubscriptionSnapshot, UnpricedSnapshot
from config.errors import DomainError
from config.snapshot import Snapshot
from proxy import estimate, permits
from proxy.auth import Caller
from proxy.dialects import responses
from proxy.estimate import Learned
from proxy.settlement import Attempt, Call, EndedBy, Tab, about
from quotas.holds import Amount, Hold
from routing.selection import Lease
from routing.snapshots import AccountSnapshot, PoolSnapshot

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


def rate(model: str, rate_id: int, *, multiple: int = 1, start: datetime = EPOCH, end: datetime | None = None) -> RateSnapshot:
    """R of the cases: input 60, cached 6, output 300, cache write 75 credits per million, fast x2; `multiple` times that."""
    return RateSnapshot(
        rate_id=rate_id,
        model=model,
        valid_from=start,
        valid_to=end,
        input=60_000_000 * multiple,
        cached_input=6_000_000 * multiple,
        cache_write=75_000_000 * multiple,
        output=300_000_000 * multiple,
        fast_thousandths=2000,
    )


RATES = RateCardSnapshot(
    rows=MappingProxyType(
        {
            "m": (rate("m", 1),),
            "m-big": (rate("m-big", 2, multiple=2),),
            "m-new": (UnpricedSnapshot(3, "m-new", EPOCH, None),),
        }
    )
)


def caller(**fields: Any) -> Caller:
    subscription = SubscriptionSnapshot(
        subscription_id=1,
        member_id=None,
        plan_slug="plus",
        timezone="UTC",
        reset_period="weekly",
        anchor=EPOCH.date(),
        quota=10**12,
        fast_allowed=fields.pop("plan_fast", True),
        models=fields.pop("plan_models", None),
        charging_mode="reserve",
        overage_policy="block",
        quota_strategy="fixed_window",
    )
    key = KeySnapshot(
        key_id=9,
        uuid=uuid.uuid4(),
        public_id="0123456789",
        name="laptop",
        digest=b"",
        pepper_id="p",
        member_id=42,
        member_uuid=uuid.uuid4(),
        member_name="Ada",
        team_id=7,
        team_uuid=uuid.uuid4(),
        team_name="core",
        expires_at=None,
        **{"allowed_models": None, "allowed_efforts": None, "fast_allowed": True, **fields},
    )
    parts = {"billing": BillingSnapshot(rates=RATES, subscriptions=(subscription,))}
    return Caller(Snapshot(organization_id=3, version=1, parts=parts), key)


def account(kind: str, account_id: int = 5) -> AccountSnapshot:
    return AccountSnapshot(account_id, str(uuid.uuid4()), kind, "a", "http://u", 1000, None, 0, 0, None, "active", None)


def tab(*, kind: str = "openai", **fields: Any) -> tuple[Tab, Attempt]:
    """A tab with one attempt that was written."""
    inspection = responses.inspect(json.dumps({"model": "m", "stream": True, "input": "x" * 372, **fields}).encode())
    priced = RATES.rate_for(inspection.model, NOW)
    guess = estimate.estimate(inspection, priced, has_sign_in_account=kind == "chatgpt", known=Learned())
    call = Call("req_1", caller(), responses, inspection, priced, guess, "session", time.monotonic(), inspection.model)
    hold = Hold("req_1", 3, int(NOW.timestamp()), 0, b"", 1, "o", 0)
    made = Tab(call, hold)
    pool = PoolSnapshot(1, "u", "pool", 3, 3, "capacity_weighted", frozenset(), ())
    attempt = made.begin(Lease(pool, account(kind), "req_1", "capacity_weighted", 1, 1, 0, 0.0))
    attempt.is_written = True
    return made, attempt


def owed(made: Tab) -> tuple[Amount, Body]:
    amount, body = made.owed()
    return amount, decode_body(body)


@pytest.mark.parametrize("status", ["ok", "incomplete", "failed"])
def test_every_terminal_event_with_usage_is_billed(status: str) -> None:
    """B3: 900 in, 300 out: 0.144 credits for each of the three."""
    made, attempt = tab()
    attempt.meter.status = made.status = status
    attempt.meter.usage = {"input_tokens": 900, "output_tokens": 300}
    amount, body = owed(made)
    assert amount == Amount(144_000, 1200)
    assert (body.status, body.is_estimated, body.raw_usage) == (status, False, {"input_tokens": 900, "output_tokens": 300})
    [line] = body.lines
    assert (line.model, line.rate_id, line.account_id, line.input, line.output, line.credits) == ("m", 1, 5, 900, 300, 144_000)


def test_a_stream_cut_after_output_is_billed_by_the_estimate() -> None:
    """B4: 700 output tokens seen, no usage: not 0, not the whole hold, and marked."""
    made, attempt = tab()
    attempt.meter.has_output = True
    attempt.meter._deltas = 700
    attempt.ended_by, made.status = EndedBy.UPSTREAM, "upstream_cut"
    amount, body = owed(made)
    input_tokens = made.call.estimate.input_tokens
    assert amount == Amount(60 * input_tokens + 300 * 700, input_tokens + 700)
    assert 0 < amount.credits < made.call.estimate.credits
    assert (body.status, body.is_estimated, body.is_implausible) == ("upstream_cut", True, False)


def test_what_the_upstream_ended_without_output_costs_nothing() -> None:
    """N8"""
    made, attempt = tab()
    attempt.http_status, attempt.failure, made.status = 400, "context", "failed"
    attempt.ended_by = EndedBy.UPSTREAM
    amount, body = owed(made)
    assert amount == Amount(0, 0)
    assert (body.status, body.lines, body.is_estimated) == ("failed", (), False)
    assert body.trace == ({"account_id": 5, "reason": "capacity_weighted", "candidates": 1, "status": 400, "failure": "context"},)


@pytest.mark.parametrize("by", [EndedBy.CLIENT, EndedBy.US])
def test_what_the_client_or_we_cut_costs_at_least_its_input(by: EndedBy) -> None:
    """N23: written, then nobody waited for the answer."""
    made, attempt = tab()
    attempt.ended_by, made.status = by, "client_closed"
    amount, body = owed(made)
    assert amount == Amount(made.call.estimate.input_credits, made.call.estimate.input_tokens)
    assert amount.credits > 0
    assert body.is_estimated


def test_a_terminal_event_whose_usage_is_zero_is_billed_zero() -> None:
    made, attempt = tab()
    attempt.meter.status = made.status = "ok"
    attempt.meter.usage = {"input_tokens": 0, "output_tokens": 0}
    amount, body = owed(made)
    assert amount == Amount(0, 0)
    assert not body.is_estimated


def test_a_completion_without_usage_is_estimated() -> None:
    made, attempt = tab()
    attempt.meter.status = made.status = "ok"
    amount, body = owed(made)
    assert amount.credits == made.call.estimate.input_credits
    assert body.is_estimated


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": -1_000_000, "output_tokens": 5},
        {"input_tokens": 5, "output_tokens": -1},
        {"input_tokens": 1_000_000, "output_tokens": 5},
        {"input_tokens": "many", "output_tokens": 5},
    ],
)
def test_usage_that_cannot_be_is_booked_at_the_holds_amount(usage: dict[str, Any]) -> None:
    """D5: negative counts, and more input than the request's bytes allow."""
    made, attempt = tab()
    attempt.meter.status = made.status = "ok"
    attempt.meter.usage = usage
    amount, body = owed(made)
    guess = made.call.estimate
    assert amount == Amount(guess.credits, guess.tokens)
    assert (body.is_implausible, body.raw_usage) == (True, usage)


@pytest.mark.parametrize(
    "more", [{"previous_response_id": "resp_1"}, {"tools": [{"type": "web_search"}]}, {"input": [{"type": "input_image"}]}]
)
def test_more_input_than_was_sent_is_believed_where_it_can_be(more: dict[str, Any]) -> None:
    made, attempt = tab(**more)
    attempt.meter.status = made.status = "ok"
    attempt.meter.usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    amount, body = owed(made)
    assert amount.credits == 60_000_000
    assert not body.is_implausible


def test_an_api_keys_answer_is_billed_by_the_tier_it_was_served_with() -> None:
    """C8: asked priority, served default: 0.09 credits."""
    made, attempt = tab(service_tier="priority")
    attempt.meter.status = made.status = "ok"
    attempt.meter.service_tier = "default"
    attempt.meter.usage = {"input_tokens": 1000, "output_tokens": 100}
    amount, body = owed(made)
    assert amount.credits == 90_000
    assert (body.tier_asked, body.tier_billed) == ("priority", "standard")


def test_a_sign_in_accounts_answer_is_billed_by_the_tier_that_was_asked() -> None:
    """C9: its echo says default even for fast: 0.18 credits."""
    made, attempt = tab(kind="chatgpt", service_tier="priority")
    attempt.meter.status = made.status = "ok"
    attempt.meter.service_tier = "default"
    attempt.meter.usage = {"input_tokens": 1000, "output_tokens": 100}
    amount, body = owed(made)
    assert amount.credits == 180_000
    assert body.tier_billed == "fast"


def test_the_model_that_served_is_priced() -> None:
    """C10: asked m-big (double), answered by m: 0.10392 credits."""
    made, attempt = tab(model="m-big")
    attempt.meter.status = made.status = "ok"
    attempt.meter.model = "m-2026-05-05"
    attempt.meter.usage = {"input_tokens": 412, "output_tokens": 264}
    amount, body = owed(made)
    assert amount.credits == 103_920
    assert (body.model_asked, body.model_served, body.lines[0].model, body.rate_id) == ("m-big", "m-2026-05-05", "m", 1)


def test_a_request_by_an_alias_is_priced_at_the_model_it_stood_for_when_admitted() -> None:
    """B8, C17: also without the upstream's own count, and whatever the alias stands for by then."""
    for moved_at, credits in ((NOW + timedelta(seconds=1), 60_000), (NOW, 120_000)):
        made, attempt = tab()
        stands_for = (AliasSnapshot("m-big", moved_at, None), AliasSnapshot("m", EPOCH, moved_at))
        parts = {"billing": BillingSnapshot(rates=replace(RATES, aliases={"latest": stands_for}), subscriptions=())}
        inspection = responses.inspect(json.dumps({"model": "latest", "input": "x" * 3972}).encode())
        asked = Caller(Snapshot(organization_id=3, version=1, parts=parts), made.call.caller.key)
        made.call = replace(made.call, caller=asked, inspection=inspection, model=inspection.model)
        attempt.ended_by = EndedBy.CLIENT
        made.status = "client_closed"
        attempt.meter.usage = None
        amount, body = owed(made)
        [line] = body.lines
        assert (line.model, body.model_asked, body.is_estimated) == ("m" if credits == 60_000 else "m-big", "latest", True)
        assert amount.credits == line.input * credits // 1000
        assert line.input > 0


def test_a_served_model_without_a_rate_is_priced_as_asked_never_free() -> None:
    made, attempt = tab()
    attempt.meter.status = made.status = "ok"
    attempt.meter.model = "m-surprise"
    attempt.meter.usage = {"input_tokens": 1000, "output_tokens": 0}
    assert owed(made)[0].credits == 60_000


def test_only_attempts_that_ran_are_lines_and_all_are_in_the_trace() -> None:
    """N1: attempt 1 answers 401, attempt 2 has usage 120: 120 are owed."""
    made, first = tab()
    first.http_status, first.failure, first.ended_by = 401, "token", EndedBy.UPSTREAM
    second = made.begin(first.lease)
    second.is_written = True
    second.meter.status = made.status = "ok"
    second.meter.usage = {"input_tokens": 100, "output_tokens": 20}
    amount, body = owed(made)
    assert amount == Amount(12_000, 120)
    assert len(body.lines) == 1
    assert [step.get("failure") for step in body.trace] == ["token", None]


def test_the_hold_of_a_sign_in_account_is_sized_by_policy_not_by_the_stripped_field() -> None:
    """A24: max_output_tokens bounds the hold only where the upstream obeys it."""
    for kind, expected in (("chatgpt", estimate.OUTPUT_TOKENS), ("openai", 1000)):
        made, _ = tab(kind=kind, max_output_tokens=1000)
        guess = made.call.estimate
        assert guess.output_tokens == expected
        assert guess.input_tokens == -(-len(made.call.inspection.body) // 4)
        assert guess.credits == 60 * guess.input_tokens + 300 * expected
        assert guess.input_credits == 60 * guess.input_tokens


def test_observing_tells_the_hold_the_input_at_once_and_output_as_it_comes() -> None:
    made, attempt = tab()
    made.observe(attempt)
    assert made.hold.observed == Amount(made.call.estimate.input_credits, made.call.estimate.input_tokens)
    attempt.meter._deltas = 10
    made.observe(attempt)
    assert made.hold.observed.credits == made.call.estimate.input_credits + 3000


def test_the_body_of_an_orphan_fits_and_names_no_prompt() -> None:
    made, _ = tab(service_tier="priority")
    body = about(made.call.caller, made.call.inspection, "a" * 32, model="m")
    assert len(body) <= 512
    decoded = decode_body(body)
    assert (decoded.status, decoded.is_estimated, decoded.member_id, decoded.key_id) == ("orphaned", True, 42, 9)
    assert b"xxx" not in body


def test_raw_usage_that_the_log_cannot_take_is_not_kept() -> None:
    for odd in ({"x": "\u0000"}, {"x": "y" * 5000}):
        made, attempt = tab()
        attempt.meter.status = made.status = "ok"
        attempt.meter.usage = {"input_tokens": 10, "output_tokens": 1, **odd}
        amount, body = owed(made)
        assert (amount.credits, body.raw_usage) == (900, {"dropped": "not to be kept in the log"})


def test_the_largest_orphan_fits() -> None:
    made, _ = tab()
    inspection = responses.inspect(json.dumps({"model": '"' * 120, "service_tier": '"' * 500}).encode())
    assert len(about(made.call.caller, inspection, "a" * 32, model=inspection.model)) <= 512


def test_nothing_is_learned_from_a_few_and_nothing_absurd_from_many() -> None:
    learned = Learned()
    for _ in range(Learned.ENOUGH_INPUTS - 1):
        learned.learn("m", body_bytes=10_000, input_tokens=2000, output_tokens=10)
    assert (learned.bytes_per_token("m"), learned.output_tokens("m")) == (4.0, estimate.OUTPUT_TOKENS)
    for _ in range(60):
        learned.learn("m", body_bytes=10_000, input_tokens=2000, output_tokens=10)
    assert learned.bytes_per_token("m") == pytest.approx(5.0)
    assert learned.output_tokens("m") == 256
    for _ in range(200):
        learned.learn("x", body_bytes=10_000, input_tokens=1, output_tokens=10**9)
    assert (learned.bytes_per_token("x"), learned.output_tokens("x")) == (8.0, 32_768)


def test_what_an_endpoint_of_ones_own_says_of_tokens_is_for_its_organization_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever runs one could make everybody's holds of the model as large as it likes."""
    known, own = Learned(), Learned()
    monkeypatch.setattr(estimate, "learned", known)
    monkeypatch.setattr(estimate, "own", own)
    for _ in range(60):
        made, attempt = tab(kind="openai_compatible", input="x" * 8000)
        attempt.meter.usage = {"input_tokens": 5000, "output_tokens": 9_000_000}
        made.status = attempt.meter.status = "ok"
        owed(made)
    inspection = responses.inspect(json.dumps({"model": "m", "input": "x" * 8000}).encode())

    def guess(organization_id: int) -> tuple[int, int]:
        rate_m = RATES.rate_for("m", NOW)
        found = estimate.estimate(
            inspection, rate_m, has_sign_in_account=False, organization_id=organization_id, known=estimate.learned
        )
        return found.input_tokens, found.output_tokens

    assert guess(4) == (-(-len(inspection.body) // 4), estimate.OUTPUT_TOKENS)
    assert guess(3) == (-(-len(inspection.body) // 2.0).__trunc__(), 32_768)


@pytest.mark.parametrize(
    ("fields", "asked", "code"),
    [
        ({}, {"model": "gpt-9-new"}, "model_not_found"),
        ({}, {"model": "m-new"}, "model_unpriced"),
        ({"allowed_models": frozenset({"m"})}, {"model": "m-big"}, "model_not_allowed"),
        ({"plan_models": frozenset({"m"})}, {"model": "m-big"}, "model_not_allowed"),
        ({"allowed_models": frozenset()}, {"model": "m"}, "model_not_allowed"),
        ({"allowed_efforts": frozenset({"low"})}, {"reasoning": {"effort": "high"}}, "reasoning_effort_not_allowed"),
        ({"fast_allowed": False}, {"service_tier": "priority"}, "fast_mode_not_allowed"),
        ({"plan_fast": False}, {"service_tier": "fast"}, "fast_mode_not_allowed"),
        ({"member_fast_allowed": False}, {"service_tier": "priority"}, "fast_mode_not_allowed"),
    ],
)
def test_what_a_key_may_not_ask_is_refused_before_anything_is_counted(
    fields: dict[str, Any], asked: dict[str, Any], code: str
) -> None:
    """C13: an unknown model is refused, never free."""
    inspection = responses.inspect(json.dumps({"model": "m", **asked}).encode())
    with pytest.raises(DomainError) as caught:
        permits.check(caller(**fields), inspection, model=inspection.model, at=NOW)
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert caught.value.facts["param"] in ("model", "reasoning.effort", "service_tier")


def test_a_dated_name_is_allowed_where_its_model_is() -> None:
    inspection = responses.inspect(b'{"model":"m-2026-05-05","service_tier":"default"}')
    assert permits.check(caller(allowed_models=frozenset({"m"})), inspection, model=inspection.model, at=NOW).rate_id == 1


def test_a_continuation_is_estimated_with_what_its_parent_read_and_wrote() -> None:
    known = Learned()
    known.remember(3, "resp_parent", 12_000)
    rate_m = RATES.rate_for("m", NOW)
    body = json.dumps({"model": "m", "input": "x" * 372, "previous_response_id": "resp_parent"}).encode()

    def tokens(organization_id: int) -> int:
        inspection = responses.inspect(body)
        found = estimate.estimate(inspection, rate_m, has_sign_in_account=False, organization_id=organization_id, known=known)
        return found.input_tokens

    assert tokens(3) == -(-len(body) // 4) + 12_000
    # Another organization's response by the same id says nothing.
    assert tokens(4) == -(-len(body) // 4)


def test_what_an_answer_read_and_wrote_is_remembered_for_its_continuation() -> None:
    made, attempt = tab()
    attempt.meter.usage = {"input_tokens": 900, "input_tokens_details": {"cached_tokens": 600}, "output_tokens": 300}
    attempt.meter.response_id = made.call.inspection.model + "-resp-1"
    made.status = attempt.meter.status = "ok"
    _, body = owed(made)
    assert estimate.learned.total_of(3, "m-resp-1") == 1200
    assert body.held == made.call.estimate.credits


def test_remembered_responses_are_bounded() -> None:
    known = Learned()
    for number in range(Learned.MOST_RESPONSES + 1):
        known.remember(1, f"r{number}", 5)
    assert (known.total_of(1, "r0"), known.total_of(1, "r1"), known.total_of(1, f"r{Learned.MOST_RESPONSES}")) == (0, 5, 5)
