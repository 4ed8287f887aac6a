"""Selection against a real Redis: who is eligible, where sessions stay, how slots are taken and come back."""

import asyncio
import dataclasses
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from django.conf import settings

from config.redis import Redis, ReplyError
from routing import anchors, health, live, selection, sticky
from routing.anchors import Anchor
from routing.errors import AccountsAtCap, NoAccountAvailable, PoolBusy, PoolExhausted
from routing.failures import Failure, Kind
from routing.selection import Lease
from routing.snapshots import PoolSnapshot
from tests.routing import made

SESSION = "0123456789abcdef0123456789abcdef"


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    connected = Redis(settings.REDIS_URL)
    yield connected
    await connected.close()


def clock() -> int:
    return time.time_ns() // 1_000_000


async def take(redis: Redis, pool: PoolSnapshot, session: str | None = None, **options: Any) -> Lease:
    """One selection as the path does it: the live state first, then the slot."""
    of = options.pop("of", ())
    commands = selection.live_commands(pool, session, of, member_id=options.get("member_id", 0))
    state = selection.read_live(pool, await redis.batch(commands), of)
    values: dict[str, Any] = {
        "request_id": f"req_{made.number()}",
        "model": "gpt-5.5",
        "tier": None,
        "now_ms": clock(),
        "rng": random.random,
    }
    return await selection.select(redis, pool, state, session_key=session, **{**values, **options})


async def in_flight(redis: Redis, pool: PoolSnapshot) -> list[int]:
    return [await redis.call("ZCARD", live.slots_key(pool, account.account_id)) for account in pool.accounts]


def exhausted(resets_at: int) -> Failure:
    return Failure(Kind.USAGE_LIMIT, movable=True, resets_at=resets_at)


def down(seconds: float) -> Failure:
    return Failure(Kind.OVERLOADED, movable=True, cooldown_seconds=seconds)


# ------------------------------------------------------------------------------------------------------ eligibility


async def test_a_selection_is_one_round_trip_beside_the_admissions(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    await redis.call("PING")
    of = [Anchor(anchors.Kind.RESPONSE, "resp_1"), Anchor(anchors.Kind.TURN, "ts")]
    state = selection.read_live(pool, await redis.batch(selection.live_commands(pool, SESSION, of)), of)
    before = redis.round_trips
    lease = await selection.select(
        redis, pool, state, request_id="r", model="m", tier=None, session_key=SESSION, now_ms=clock(), rng=random.random
    )
    assert redis.round_trips == before + 1
    assert lease.candidates == 2
    assert lease.reason == "capacity_weighted"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([], "no_accounts"),
        ([{"status": "needs_sign_in"}, {"status": "paused"}], "needs_sign_in"),
        ([{"status": "paused"}], "paused"),
        ([{"models": frozenset({"gpt-5.4"})}], "model_not_served"),
    ],
)
async def test_a_pool_that_can_never_serve_says_why(redis: Redis, fields: list[dict[str, Any]], reason: str) -> None:
    pool = made.pool(*(made.account(**one) for one in fields))
    with pytest.raises(NoAccountAvailable) as refused:
        await take(redis, pool)
    assert refused.value.reason == reason
    assert sum(await in_flight(redis, pool)) == 0


async def test_only_accounts_that_serve_the_model_are_drawn(redis: Redis) -> None:
    old, new = made.account(models=frozenset({"gpt-5.4"})), made.account(models=frozenset({"gpt-5.5"}))
    pool = made.pool(old, new)
    assert {(await take(redis, pool)).account for _ in range(10)} == {new}


async def test_when_all_are_exhausted_the_earliest_true_reset_is_told(redis: Redis) -> None:
    """N31: A resets at 14:00, B at 13:20: resets_at is 13:20."""
    a, b = made.account(), made.account()
    pool = made.pool(a, b)
    later, earlier = clock() // 1000 + 7200, clock() // 1000 + 4800
    await health.report(redis, pool, a, exhausted(later))
    await health.report(redis, pool, b, exhausted(earlier))
    with pytest.raises(PoolExhausted) as refused:
        await take(redis, pool)
    assert refused.value.resets_at == earlier
    assert refused.value.facts == {"resets_at": earlier}
    assert await in_flight(redis, pool) == [0, 0]


async def test_an_exhausted_account_serves_again_after_its_reset(redis: Redis) -> None:
    pool = made.pool(made.account())
    resets_at = clock() // 1000 + 600
    await health.report(redis, pool, pool.accounts[0], exhausted(resets_at))
    with pytest.raises(PoolExhausted):
        await take(redis, pool, now_ms=resets_at * 1000 - 1)
    assert (await take(redis, pool, now_ms=resets_at * 1000)).account == pool.accounts[0]


async def test_a_failed_attempt_is_answered_by_another_account(redis: Redis) -> None:
    """N30: A is found exhausted during the request, B serves it."""
    a, b = made.account(), made.account()
    pool = made.pool(a, b)
    await health.report(redis, pool, a, exhausted(clock() // 1000 + 600))
    lease = await take(redis, pool, exclude=frozenset({a.account_id}))
    assert lease.account == b
    assert lease.candidates == 1


async def test_what_attempts_of_this_request_found_out_counts_in_its_last_refusal(redis: Redis) -> None:
    """N31: both are found exhausted by the request itself, after its live state was read."""
    a, b = made.account(), made.account()
    pool = made.pool(a, b)
    stale = selection.read_live(pool, await redis.batch(selection.live_commands(pool, None)))
    later, earlier = clock() // 1000 + 7200, clock() // 1000 + 4800
    await health.report(redis, pool, a, exhausted(later))
    await health.report(redis, pool, b, exhausted(earlier))
    with pytest.raises(PoolExhausted) as refused:
        await selection.select(
            redis,
            pool,
            stale,
            request_id="r",
            model="m",
            tier=None,
            session_key=None,
            exclude=frozenset({a.account_id, b.account_id}),
            now_ms=clock(),
            rng=random.random,
        )
    assert refused.value.resets_at == earlier


async def test_accounts_that_cool_down_shortly_make_the_pool_busy(redis: Redis) -> None:
    """N32: a burst 429 keeps the account away for the told seconds only."""
    pool = made.pool(made.account(), made.account())
    now = clock()
    await health.report(redis, pool, pool.accounts[0], down(2), now_ms=now)
    await health.report(redis, pool, pool.accounts[1], down(30), now_ms=now)
    with pytest.raises(PoolBusy) as refused:
        await take(redis, pool, now_ms=now + 100)
    assert refused.value.retry_after == 2
    assert (await take(redis, pool, now_ms=now + 2_000)).account == pool.accounts[0]


async def test_one_that_cools_shortly_beside_one_that_is_exhausted_makes_the_pool_busy(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    now = clock()
    await health.report(redis, pool, pool.accounts[0], exhausted(now // 1000 + 9000))
    await health.report(redis, pool, pool.accounts[1], down(10), now_ms=now)
    with pytest.raises(PoolBusy) as refused:
        await take(redis, pool, now_ms=now)
    assert refused.value.retry_after == 10


async def test_a_long_cooldown_is_told_as_the_time_it_ends(redis: Redis) -> None:
    pool = made.pool(made.account())
    now = clock() // 1000 * 1000
    await health.report(redis, pool, pool.accounts[0], down(300), now_ms=now)
    with pytest.raises(PoolExhausted) as refused:
        await take(redis, pool, now_ms=now)
    assert refused.value.resets_at == now // 1000 + 300


async def test_a_shorter_cooldown_never_ends_a_longer_one(redis: Redis) -> None:
    pool = made.pool(made.account())
    now = clock()
    await health.report(redis, pool, pool.accounts[0], down(50), now_ms=now)
    await health.report(redis, pool, pool.accounts[0], down(1), now_ms=now)
    with pytest.raises(PoolBusy) as refused:
        await take(redis, pool, now_ms=now + 2_000)
    assert refused.value.retry_after == 48


async def test_the_share_that_a_person_keeps_is_left_alone(redis: Redis) -> None:
    keeper, other = made.account(floor_percent=20), made.account()
    pool = made.pool(keeper, other)
    now = clock()
    state = selection.Live(
        states={keeper.account_id: live.AccountState(windows={10080: live.Window(10080, 80.0, now // 1000 + 900, now)})}
    )
    lease = await selection.select(
        redis, pool, state, request_id="r", model="m", tier=None, session_key=None, now_ms=now, rng=lambda: 0.0
    )
    assert (lease.account, lease.candidates) == (other, 1)


async def test_an_error_among_the_live_replies_is_raised(redis: Redis) -> None:
    pool = made.pool(made.account())
    with pytest.raises(ReplyError):
        selection.read_live(pool, [ReplyError("WRONGTYPE"), None])


# ---------------------------------------------------------------------------------------------------------- windows


async def test_a_full_weekly_window_blocks_although_the_short_one_is_fresh(redis: Redis) -> None:
    """N12: blocked until the weekly reset."""
    pool = made.pool(made.account())
    now = clock()
    weekly = now // 1000 + 200_000
    state = selection.Live(
        states={
            pool.accounts[0].account_id: live.AccountState(
                windows={300: live.Window(300, 4.0, now // 1000 + 900, now), 10080: live.Window(10080, 100.0, weekly, now)}
            )
        }
    )
    with pytest.raises(PoolExhausted) as refused:
        await selection.select(
            redis, pool, state, request_id="r", model="m", tier=None, session_key=None, now_ms=now, rng=random.random
        )
    assert refused.value.resets_at == weekly


def test_a_window_whose_reset_has_passed_is_not_full() -> None:
    """N11: the last sample was 100 %, its reset passed 5 s ago."""
    now = clock()
    window = live.Window(300, 100.0, now // 1000 - 5, now - 60_000)
    assert window.blocks_until_ms(now) == 0
    assert window.used_at(now) == 0.0


# --------------------------------------------------------------------------------------------------------- sessions


async def test_a_session_stays_where_it_was(redis: Redis) -> None:
    pool = made.pool(*(made.account() for _ in range(5)))
    first = await take(redis, pool, SESSION)
    again = [await take(redis, pool, SESSION) for _ in range(20)]
    assert {lease.account for lease in again} == {first.account}
    assert {lease.reason for lease in again} == {"sticky"}


async def test_first_requests_of_a_session_that_race_end_on_one_account(redis: Redis) -> None:
    pool = made.pool(*(made.account() for _ in range(5)))
    leases = await asyncio.gather(*(take(redis, pool, SESSION) for _ in range(20)))
    assert len({lease.account for lease in leases}) == 1


async def test_an_exhausted_home_is_left_and_come_back_to(redis: Redis) -> None:
    """N50 N51: sticky to A; while A cannot serve the session is B's, on one stand-in; when A can again, it is A's."""
    pool = made.pool(*(made.account() for _ in range(4)))
    home = (await take(redis, pool, SESSION)).account
    now = clock()
    await health.report(redis, pool, home, down(20), now_ms=now)
    away = [await take(redis, pool, SESSION, now_ms=now + 1000 * second) for second in (1, 5, 10, 19)]
    assert home not in {lease.account for lease in away}
    assert len({lease.account for lease in away}) == 1
    assert [lease.reason for lease in away] == ["capacity_weighted", "stand_in", "stand_in", "stand_in"]
    back = await take(redis, pool, SESSION, now_ms=now + 20_000)
    assert (back.account, back.reason) == (home, "sticky")


async def test_a_home_that_is_away_for_long_is_given_up(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    home = (await take(redis, pool, SESSION)).account
    now = clock()
    await health.report(redis, pool, home, exhausted(now // 1000 + 7200), now_ms=now)
    stand_in = (await take(redis, pool, SESSION, now_ms=now)).account
    await take(redis, pool, SESSION, now_ms=now + 1_800_000)
    for minutes in (50, 70, 90, 110, 121):
        # Never cold on the stand-in; after two hours the first home can serve again.
        lease = await take(redis, pool, SESSION, now_ms=now + 60_000 * minutes)
        assert (lease.account, lease.reason) == (stand_in, "sticky")
    assert stand_in != home


async def test_a_session_entry_lapses_by_itself(redis: Redis) -> None:
    pool = made.pool(made.account())
    await take(redis, pool, SESSION)
    assert 86_000 < await redis.call("TTL", live.session_key(pool, SESSION)) <= 86_400


async def test_a_request_without_a_session_leaves_no_entry(redis: Redis) -> None:
    pool = made.pool(made.account())
    await take(redis, pool)
    assert await redis.call("EXISTS", live.session_key(pool, "-")) == 0


# ------------------------------------------------------------------------------------------------------------ slots


async def test_rivals_for_the_slots_never_exceed_the_caps(redis: Redis) -> None:
    """40 racing requests, two accounts with 3 and 4 slots: 7 are served, and 7 slots are taken."""
    pool = made.pool(made.account(concurrency_cap=3), made.account(concurrency_cap=4))
    rivals = [Redis(settings.REDIS_URL) for _ in range(4)]
    results = await asyncio.gather(*(take(rivals[n % 4], pool) for n in range(40)), return_exceptions=True)
    served = Counter(one.account.account_id for one in results if isinstance(one, Lease))
    assert served == {pool.accounts[0].account_id: 3, pool.accounts[1].account_id: 4}
    assert sum(isinstance(one, AccountsAtCap) for one in results) == 33
    assert await in_flight(redis, pool) == [3, 4]
    for rival in rivals:
        await rival.close()


async def test_at_the_cap_the_refusal_is_not_one_of_quota(redis: Redis) -> None:
    """N34: account cap 1 with one live stream: 429 code concurrency_limit."""
    pool = made.pool(made.account(concurrency_cap=1))
    lease = await take(redis, pool)
    with pytest.raises(AccountsAtCap) as refused:
        await take(redis, pool)
    assert (refused.value.code, refused.value.status, refused.value.retry_after) == ("concurrency_limit", 429, 1)
    await selection.release(redis, lease)
    assert (await take(redis, pool)).account == lease.account


async def test_a_session_goes_elsewhere_while_its_home_is_at_its_cap_and_comes_back(redis: Redis) -> None:
    pool = made.pool(made.account(concurrency_cap=1), made.account())
    home = pool.accounts[0]
    await redis.call("SET", live.session_key(pool, SESSION), f"{home.account_id}:0:0:{clock()}")
    first = await take(redis, pool, SESSION)
    second = await take(redis, pool, SESSION)
    assert (first.account, second.account) == (home, pool.accounts[1])
    await selection.release(redis, first)
    assert (await take(redis, pool, SESSION)).account == home


async def test_releasing_twice_frees_one_slot(redis: Redis) -> None:
    pool = made.pool(made.account())
    first, _second = await take(redis, pool), await take(redis, pool)
    await selection.release(redis, first)
    await selection.release(redis, first)
    assert await in_flight(redis, pool) == [1]


async def test_slots_of_a_process_that_died_come_back_within_the_lease_time(redis: Redis) -> None:
    """K11: 10 slots, nobody releases or renews them: all are free after the lease time, none before."""
    pool = made.pool(made.account(concurrency_cap=10))
    now = clock()
    for _ in range(10):
        await take(redis, pool, now_ms=now)
    with pytest.raises(AccountsAtCap):
        await take(redis, pool, now_ms=now + selection.lease_ms() - 1)
    for _ in range(10):
        await take(redis, pool, now_ms=now + selection.lease_ms())
    assert await in_flight(redis, pool) == [10]


async def test_a_renewed_slot_is_kept(redis: Redis) -> None:
    pool = made.pool(made.account(concurrency_cap=1))
    lease = await take(redis, pool)
    late = dataclasses.replace(lease, leased_monotonic=lease.leased_monotonic - 2.0)
    await redis.batch(selection.renew_commands([late]))
    with pytest.raises(AccountsAtCap):
        await take(redis, pool, now_ms=lease.leased_ms + selection.lease_ms() + 1_000)


async def test_renewing_restores_slots_that_redis_lost(redis: Redis) -> None:
    pool = made.pool(made.account(concurrency_cap=1))
    lease = await take(redis, pool)
    await redis.call("DEL", live.slots_key(pool, lease.account.account_id))
    await redis.batch(selection.renew_commands([lease]))
    with pytest.raises(AccountsAtCap):
        await take(redis, pool)


async def test_a_repeated_request_holds_one_slot(redis: Redis) -> None:
    pool = made.pool(made.account(concurrency_cap=1))
    await take(redis, pool, request_id="req_same")
    assert (await take(redis, pool, request_id="req_same")).account == pool.accounts[0]
    assert await in_flight(redis, pool) == [1]


async def test_idle_slot_sets_lapse(redis: Redis) -> None:
    pool = made.pool(made.account())
    await take(redis, pool)
    assert 0 < await redis.call("PTTL", live.slots_key(pool, pool.accounts[0].account_id)) <= 2 * selection.lease_ms() + 60_000


# ------------------------------------------------------------------------------------------------------------ holds

M = 1_000_000


async def entry_of(redis: Redis, pool: PoolSnapshot) -> sticky.Sticky:
    found = sticky.read(await redis.call("GET", live.session_key(pool, SESSION)))
    assert found is not None
    return found


async def held(redis: Redis, pool: PoolSnapshot, now_ms: int) -> list[int]:
    states = live.States(await redis.call("HGETALL", live.live_key(pool)))
    return [states.get(account.account_id).held_at(now_ms) for account in pool.accounts]


async def test_a_turn_holds_room_until_it_is_settled_and_a_share_while_its_person_thinks(redis: Redis) -> None:
    """Z x 12 = 48 credits at its start; less by each settled response, never below 0; WARM x 12 = 6 after it, for half an hour."""
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    lease = await take(redis, pool, SESSION, member_id=5, now_ms=now)
    assert await held(redis, pool, now) == [48 * M]
    await selection.book(redis, lease, credits=5 * M, then="go")
    assert await held(redis, pool, now) == [43 * M]
    await take(redis, pool, SESSION, member_id=5, now_ms=now, is_inside_turn=True)
    assert await held(redis, pool, now) == [43 * M]
    await selection.book(redis, lease, credits=50 * M, then="go")
    assert await held(redis, pool, now) == [0]
    await take(redis, pool, SESSION, member_id=5, now_ms=now, is_inside_turn=True)
    assert await held(redis, pool, now) == [0]
    await selection.book(redis, lease, credits=1 * M, then="end")
    assert await held(redis, pool, now + 1_799_000) == [6 * M]
    assert await held(redis, pool, now + 1_861_000) == [0]
    entry = await entry_of(redis, pool)
    assert (entry.spent, entry.turn, entry.mean) == (0, 12 * M, 56 * M)


async def test_the_next_turn_is_predicted_from_those_before(redis: Redis) -> None:
    """A turn of 56, then one of 6: 56, then 0.6 x 56 + 0.4 x 6 = 36 for the session; 12 -> 13.32 -> 13.1004 for the member."""
    pool = made.pool(made.account(weight=50_000), strategy="pace")
    lease = await take(redis, pool, SESSION, member_id=5)
    await selection.book(redis, lease, credits=56 * M, then="end")
    lease = await take(redis, pool, SESSION, member_id=5)
    assert lease.turn == 56 * M
    assert await redis.call("HGET", live.turns_key(pool), 5) == b"13320000"
    await selection.book(redis, lease, credits=6 * M, then="end")
    lease = await take(redis, pool, SESSION, member_id=5)
    assert lease.turn == 36 * M
    assert await redis.call("HGET", live.turns_key(pool), 5) == b"13100400"
    other = await take(redis, pool, "f" * 32, member_id=5)
    assert other.turn == 13_100_400
    assert (await take(redis, pool, "e" * 32, member_id=6)).turn == 12 * M


async def test_a_turn_that_was_given_up_is_folded_when_the_next_begins(redis: Redis) -> None:
    pool = made.pool(made.account(weight=50_000), strategy="pace")
    lease = await take(redis, pool, SESSION, member_id=5)
    await selection.book(redis, lease, credits=30 * M, then="go")
    entry = await entry_of(redis, pool)
    assert (entry.spent, entry.mean) == (30 * M, 0)
    assert (await take(redis, pool, SESSION, member_id=5)).turn == 30 * M
    entry = await entry_of(redis, pool)
    assert (entry.spent, entry.mean) == (0, 30 * M)
    assert await redis.call("HGET", live.turns_key(pool), 5) == b"12540000"


async def test_many_small_sessions_of_one_turn_do_not_hold_an_account_full(redis: Redis) -> None:
    """A script with 200 conversations of a hundredth of a credit: the member's mean follows, and nobody is refused."""
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    window = f"300=5:{now // 1000 + 9_000}:{now}:0:0:0;10080=5:{now // 1000 + 90_000}:{now}:0:0:0"
    await redis.call("HSET", live.live_key(pool), f"{pool.accounts[0].account_id}:w", window)
    for number in range(200):
        lease = await take(redis, pool, f"{number:032d}", member_id=5, now_ms=now)
        await selection.book(redis, lease, credits=M // 100, then="end")
    assert lease.turn < M // 10
    # Of 213.75 credits of room.
    assert (await held(redis, pool, now))[0] < 213_750_000


async def test_what_a_turn_can_cost_at_most_bounds_what_is_held(redis: Redis) -> None:
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    lease = await take(redis, pool, SESSION, now_ms=now, most=2 * M)
    assert (lease.turn, await held(redis, pool, now)) == (2 * M, [8 * M])
    await selection.book(redis, lease, credits=1 * M, then="end")
    assert await held(redis, pool, now) == [1 * M]


async def test_a_session_that_moves_takes_its_hold_along(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account(), strategy="pace")
    now = clock()
    first = await take(redis, pool, SESSION, now_ms=now)
    at = pool.accounts.index(first.account)
    await health.report(redis, pool, first.account, exhausted(now // 1000 + 600), now_ms=now)
    second = await take(redis, pool, SESSION, now_ms=now, is_inside_turn=True, exclude=frozenset({first.account.account_id}))
    assert second.account != first.account
    found = await held(redis, pool, now)
    assert (found[at], found[1 - at]) == (0, 48 * M)


async def test_an_exhausted_account_holds_nothing_for_the_session_that_found_it_so(redis: Redis) -> None:
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    lease = await take(redis, pool, SESSION, now_ms=now)
    await selection.book(redis, lease, credits=0, then="free")
    assert await held(redis, pool, now) == [0]


async def test_holds_of_two_sessions_add_up_and_end_apart(redis: Redis) -> None:
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    lease = await take(redis, pool, SESSION, now_ms=now)
    await take(redis, pool, "f" * 32, now_ms=now + 300_000)
    assert await held(redis, pool, now) == [96 * M]
    assert await held(redis, pool, now + 1_900_000) == [48 * M]
    await selection.book(redis, lease, credits=0, then="end")
    assert await held(redis, pool, now) == [54 * M]


async def test_bursts_spread_because_each_new_session_holds(redis: Redis) -> None:
    """Six sessions of 48 credits at once over three equal accounts: two each."""
    pool = made.pool(*(made.account() for _ in range(3)), strategy="pace")
    leases = [await take(redis, pool, f"{number:032d}") for number in range(6)]
    assert sorted(Counter(lease.account.account_id for lease in leases).values()) == [2, 2, 2]


async def test_what_was_metered_is_counted_per_account_with_or_without_a_session(redis: Redis) -> None:
    pool = made.pool(made.account())
    with_session, without = await take(redis, pool, SESSION), await take(redis, pool)
    await selection.book(redis, with_session, credits=5 * M, then="end")
    await selection.book(redis, without, credits=2 * M, then="end")
    states = live.States(await redis.call("HGETALL", live.live_key(pool)))
    assert states.get(pool.accounts[0].account_id).metered == 7 * M


async def test_a_selection_that_is_cut_off_holds_a_thinking_sessions_share_at_most(redis: Redis) -> None:
    """Where the slot was taken before the client left, WARM x 12 = 6 credits are held of 48."""
    pool = made.pool(made.account(), strategy="pace")
    now = clock()
    state = selection.read_live(pool, await redis.batch(selection.live_commands(pool, None)))
    for ticks in range(4):
        options: dict[str, Any] = {"request_id": f"req_{made.number()}", "session_key": f"{ticks:032d}", "now_ms": now}
        taking = asyncio.ensure_future(
            selection.select(redis, pool, state, model="gpt-5.5", tier=None, rng=random.random, **options)
        )
        for _ in range(ticks):
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await redis.call("PING")
        assert (await held(redis, pool, now))[0] <= 6 * M * (ticks + 1)


async def test_the_trace_tells_the_choice_in_few_bytes(redis: Redis) -> None:
    pool = made.pool(
        *(made.account(weight=1000 * (n + 1)) for n in range(8)), made.account(kind="openai", priority=1), strategy="pace"
    )
    lease = await take(redis, pool, SESSION, member_id=5)
    told = lease.trace()
    assert (told["account_id"], told["reason"], told["candidates"], told["turn"]) == (pool.accounts[7].account_id, "pace", 9, 12.0)
    assert [row[0] for row in told["best"]] == [account.account_id for account in pool.accounts[7:2:-1]]
    # 8 Plus, nothing used, nothing reported: sqrt(12,000), and no bound is known.
    assert told["best"][0] == [pool.accounts[7].account_id, 109.5, None]
    assert len(json.dumps(told)) < 350
    stays = (await take(redis, pool, SESSION, member_id=5)).trace()
    assert (stays["reason"], stays["candidates"], stays["best"]) == ("sticky", 1, [[pool.accounts[7].account_id, None, None]])


# ------------------------------------------------------------------------------------------------------------ pools


def test_a_shared_pool_has_a_tag_of_its_own() -> None:
    own, shared = made.pool(organization_id=42), made.pool(pool_id=9, organization_id=None)
    assert live.live_key(own).startswith("routing:{s10}:p")
    assert live.live_key(shared) == "routing:{p9}:p9:live"


async def test_a_selection_that_is_cut_off_keeps_no_slot(redis: Redis) -> None:
    """N23, K11: a client left while the slot was being taken, and it was kept for the whole lease."""
    pool = made.pool(made.account(concurrency_cap=1), made.account(concurrency_cap=1))
    state = selection.read_live(pool, await redis.batch(selection.live_commands(pool, None)))
    for ticks in range(4):
        taking = asyncio.ensure_future(
            selection.select(
                redis,
                pool,
                state,
                request_id=f"req_{made.number()}",
                model="gpt-5.5",
                tier=None,
                session_key=None,
                now_ms=clock(),
                rng=random.random,
            )
        )
        for _ in range(ticks):
            await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await redis.call("PING")
        assert await in_flight(redis, pool) == [0, 0]
