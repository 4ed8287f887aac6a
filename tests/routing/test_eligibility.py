"""Who may serve a request now, before any strategy."""

from typing import Any

import pytest

from routing import eligibility
from routing.eligibility import Refusals
from routing.errors import NoAccountAvailable, PoolBusy, PoolExhausted
from routing.live import AccountState, Window
from routing.snapshots import AccountSnapshot
from routing.strategies import Candidate
from tests.routing import made

NOW = 1_796_000_000_000
UNIX = NOW // 1000


def windows(*found: Window) -> dict[int, Window]:
    return {window.minutes: window for window in found}


def short(used: float, **fields: Any) -> Window:
    return Window(300, used, fields.pop("resets_at", UNIX + 3_600), NOW, **fields)


def week(used: float, **fields: Any) -> Window:
    return Window(10_080, used, fields.pop("resets_at", UNIX + 302_400), NOW, **fields)


def measured(account: AccountSnapshot, **state: Any) -> tuple[Candidate, int]:
    return eligibility.measure(made.pool(account), account, AccountState(**state), NOW)


# ------------------------------------------------------------------------------------------------- what can ever serve


@pytest.mark.parametrize(
    ("fields", "asked", "reason"),
    [
        ({"models": frozenset({"gpt-5.4"})}, {}, "model_not_served"),
        ({"efforts": frozenset({"low"})}, {"effort": "high"}, "effort_not_served"),
        ({"tiers": frozenset({"flex"})}, {"tier": "priority"}, "tier_not_served"),
        ({"tiers": frozenset()}, {"tier": "fast"}, "tier_not_served"),
        ({"status": "paused"}, {}, "paused"),
    ],
)
def test_what_an_account_cannot_serve_is_named(fields: dict[str, Any], asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoAccountAvailable) as refused:
        eligibility.able([made.account(**fields)], **{"model": "gpt-5.5", "effort": None, "tier": None, **asked})
    assert refused.value.reason == reason
    assert refused.value.message


def test_accounts_that_do_not_speak_the_clients_dialect_are_left_out() -> None:
    ours, theirs = made.account(kind="anthropic"), made.account(kind="openai")
    asked: dict[str, Any] = {"model": "claude-opus-4-5", "effort": None, "tier": None}
    messages, responses = frozenset({"anthropic"}), frozenset({"chatgpt", "openai", "openai_compatible"})
    assert eligibility.able([ours, theirs], **asked, kinds=messages) == [ours]
    assert eligibility.able([ours, theirs], **asked, kinds=responses) == [theirs]
    assert eligibility.able([ours, theirs], **asked) == [ours, theirs]
    with pytest.raises(NoAccountAvailable) as refused:
        eligibility.able([theirs], **asked, kinds=messages)
    assert refused.value.reason == "dialect"
    paused = made.account(kind="anthropic", status="paused")
    with pytest.raises(NoAccountAvailable) as refused:
        eligibility.able([paused, theirs], **asked, kinds=messages)
    assert refused.value.reason == "paused"


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "standard_only"])
def test_every_account_has_the_ordinary_tier(tier: str) -> None:
    account = made.account(tiers=frozenset())
    assert eligibility.able([account], model="m", effort=None, tier=tier) == [account]


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({}, {"effort": "high", "tier": "priority"}),
        ({"efforts": frozenset({"low", "high"})}, {"effort": "high"}),
        ({"efforts": frozenset({"low"})}, {}),
        ({"tiers": frozenset({"priority"})}, {"tier": "fast"}),
        ({"tiers": frozenset({"fast"})}, {"tier": "priority"}),
        ({"tiers": frozenset()}, {"tier": "auto"}),
        ({"tiers": frozenset()}, {"tier": "default"}),
    ],
)
def test_what_an_account_serves_is_served(fields: dict[str, Any], asked: dict[str, Any]) -> None:
    account = made.account(**fields)
    assert eligibility.able([account], **{"model": "gpt-5.5", "effort": None, "tier": None, **asked}) == [account]


# ----------------------------------------------------------------------------------------------------------- measuring


def test_an_account_is_measured_by_its_weight_and_its_windows() -> None:
    """pro_100: 10 x 225 and 10 x 1,500; 20 % and 50 % used, half a week left, 36 credits held."""
    candidate, until = measured(
        made.account(weight=10_000, priority=1),
        windows=windows(short(20.0), week(50.0)),
        holds=b"36000000:29933400;29933400=36000000",
        last_ms=44,
    )
    assert until == 0
    assert (candidate.c5, candidate.cw, candidate.u5, candidate.uw) == (2_250.0, 15_000.0, 0.2, 0.5)
    assert (candidate.tau, candidate.is_tau_known, candidate.hold, candidate.last_ms, candidate.priority) == (
        302_400.0,
        True,
        36.0,
        44,
        1,
    )
    assert candidate.room() == 1_800.0


def test_the_base_of_a_pool_is_its_own() -> None:
    account = made.account()
    candidate, _ = eligibility.measure(made.pool(account, base_short=100, base_weekly=700), account, AccountState(), NOW)
    assert (candidate.c5, candidate.cw) == (100.0, 700.0)


def test_a_sign_in_that_has_reported_nothing_has_both_windows_by_assumption_and_a_key_has_none() -> None:
    fresh, _ = measured(made.account())
    assert (fresh.has_short, fresh.has_week, fresh.is_known, fresh.is_tau_known, fresh.tau) == (True, True, False, False, 604_800.0)
    key, _ = measured(made.account(kind="openai"))
    assert (key.has_short, key.has_week, key.room()) == (False, False, float("inf"))


def test_a_window_that_is_not_reported_is_not_there() -> None:
    """N14: the weekly window alone."""
    candidate, _ = measured(made.account(), windows=windows(week(40.0)))
    assert (candidate.has_short, candidate.has_week, candidate.room()) == (False, True, pytest.approx(900.0))


def test_a_monthly_window_counts_by_its_length() -> None:
    month = Window(43_200, 50.0, UNIX + 1_296_000, NOW)
    candidate, _ = measured(made.account(), windows=windows(month))
    assert candidate.cw == pytest.approx(1_500 * 43_200 / 10_080)
    assert (candidate.week_seconds, candidate.tau) == (2_592_000.0, 1_296_000.0)


def test_nothing_left_by_our_estimate_is_out_until_the_reset() -> None:
    """99 % reported and 3 credits of 225 metered since."""
    account = made.account()
    full, until = measured(account, windows=windows(short(99.0), week(10.0)), metered=3_000_000)
    assert (full.r5, until) == (0.0, (UNIX + 3_600) * 1000)
    assert measured(account, windows=windows(short(99.0), week(10.0)), metered=2_000_000)[1] == 0


def test_below_the_floor_it_is_out_until_the_reset() -> None:
    keeper = made.account(floor_percent=20)
    assert measured(keeper, windows=windows(short(10.0), week(80.0)))[1] == (UNIX + 302_400) * 1000
    assert measured(keeper, windows=windows(short(10.0), week(79.0)))[1] == 0


def test_a_weight_changes_on_its_day() -> None:
    account = made.account(weight=5_000, later_weights=((NOW, 10_000),))
    pool = made.pool(account)
    assert eligibility.measure(pool, account, AccountState(), NOW - 1)[0].cw == 7_500.0
    assert eligibility.measure(pool, account, AccountState(), NOW)[0].cw == 15_000.0


# ------------------------------------------------------------------------------------------------------------- refusals


def test_short_of_room_is_told_by_the_reset_of_what_is_short() -> None:
    state = AccountState(windows=windows(short(99.0), week(50.0)))
    candidate, _ = eligibility.measure(made.pool(), made.account(), state, NOW)
    assert eligibility.room_at_ms(candidate, state, 12.0, NOW) == (UNIX + 3_600) * 1000
    both = AccountState(windows=windows(short(99.0), week(99.9)))
    candidate, _ = eligibility.measure(made.pool(), made.account(), both, NOW)
    assert eligibility.room_at_ms(candidate, both, 12.0, NOW) == (UNIX + 302_400) * 1000


def test_room_that_others_hold_is_free_within_half_an_hour() -> None:
    state = AccountState(windows=windows(short(50.0), week(50.0)))
    candidate, _ = eligibility.measure(made.pool(), made.account(), state, NOW)
    assert eligibility.room_at_ms(candidate, state, 12.0, NOW) == NOW + 1_800_000
    soon = AccountState(windows=windows(short(50.0, resets_at=UNIX + 60), week(50.0)))
    assert eligibility.room_at_ms(candidate, soon, 12.0, NOW) == NOW + 60_000


def test_the_refusal_is_busy_for_a_moment_and_exhausted_beyond() -> None:
    assert isinstance(Refusals(exhausted_ms=[NOW + 9_000_000], cooling_ms=[NOW + 2_500]).error(NOW), PoolBusy)
    late = Refusals(exhausted_ms=[NOW + 9_000_000, NOW + 8_000_000], cooling_ms=[NOW + 8_500_000]).error(NOW)
    assert isinstance(late, PoolExhausted)
    assert late.resets_at == UNIX + 8_000
    assert late.message == "Every account of the pool has used up its limit."
    resting = Refusals(cooling_ms=[NOW + 300_000]).error(NOW)
    assert isinstance(resting, PoolExhausted)
    assert (resting.resets_at, resting.message) == (UNIX + 300, eligibility.AT_REST)
