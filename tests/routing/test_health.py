"""Windows from response heads, and what reports do to an account."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from django.conf import settings

from config.redis import Redis
from routing import due, health, live
from routing.failures import Failure, Kind
from routing.health import Observation
from routing.snapshots import PoolSnapshot
from tests.routing import made

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
UNIX = int(NOW.timestamp())


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    connected = Redis(settings.REDIS_URL)
    yield connected
    await connected.close()


def slot(name: str, used: str, minutes: str, reset_at: str | None = None) -> dict[str, str]:
    head = {f"x-codex-{name}-used-percent": used, f"x-codex-{name}-window-minutes": minutes}
    return head if reset_at is None else {**head, f"x-codex-{name}-reset-at": reset_at}


async def state(redis: Redis, pool: PoolSnapshot) -> live.AccountState:
    states = live.States(await redis.call("HGETALL", live.live_key(pool)))
    return states.get(pool.accounts[0].account_id)


def test_both_windows_are_read() -> None:
    head = slot("primary", "42.5", "300", str(UNIX + 3600)) | slot("secondary", "17", "10080", str(UNIX + 500_000))
    assert health.windows(head, UNIX) == [Observation(300, 42.5, UNIX + 3600), Observation(10080, 17.0, UNIX + 500_000)]


async def test_a_weekly_window_in_the_first_slot_is_stored_as_weekly(redis: Redis) -> None:
    """N14: the only window arrives in the first slot with window_minutes=10080."""
    pool = made.pool(made.account())
    await health.observe_headers(redis, pool, pool.accounts[0], slot("primary", "61", "10080", str(UNIX + 90_000)), NOW)
    found = await state(redis, pool)
    assert found.windows == {10080: live.Window(10080, 61.0, UNIX + 90_000, UNIX * 1000)}


def test_a_reset_that_cannot_be_leaves_the_window_out() -> None:
    """N13: milliseconds; the year 2099; the past; no number."""
    for told in (str((UNIX + 60) * 1000), "4070908800", str(UNIX - 1), "tomorrow", "nan"):
        assert health.windows(slot("primary", "100", "300", told), UNIX) == []


def test_heads_that_say_nothing_are_no_windows() -> None:
    assert health.windows({}, UNIX) == []
    assert health.windows({"x-codex-primary-used-percent": "5"}, UNIX) == []
    assert health.windows(slot("primary", "-1", "300"), UNIX) == []
    assert health.windows(slot("primary", "nan", "300"), UNIX) == []
    assert health.windows(slot("primary", "5", "0"), UNIX) == []


def test_a_reset_after_seconds_serves_where_no_time_is_told() -> None:
    head = slot("primary", "5", "300") | {"x-codex-primary-reset-after-seconds": "3600"}
    assert health.windows(head, UNIX) == [Observation(300, 5.0, UNIX + 3600)]


async def test_the_newest_observation_wins_in_whatever_order_they_arrive(redis: Redis) -> None:
    pool = made.pool(made.account())
    account = pool.accounts[0]
    await health.observe_headers(redis, pool, account, slot("primary", "50", "300", str(UNIX + 900)), NOW)
    old = NOW - timedelta(seconds=1)
    await health.observe_headers(redis, pool, account, slot("primary", "10", "300", str(UNIX + 800)), old)
    assert (await state(redis, pool)).windows[300].used_percent == 50.0
    new = NOW + timedelta(seconds=1)
    await health.observe_headers(redis, pool, account, slot("primary", "3", "300", str(UNIX + 18_000)), new)
    assert (await state(redis, pool)).windows[300] == live.Window(300, 3.0, UNIX + 18_000, (UNIX + 1) * 1000)


async def test_an_account_that_reports_room_is_not_exhausted_any_more(redis: Redis) -> None:
    """N10, E18: blocked for 3 days; a fresh observation says 12 % with a new reset: selectable at once, the new reset stored."""
    pool = made.pool(made.account())
    account = pool.accounts[0]
    failure = Failure(Kind.USAGE_LIMIT, movable=True, resets_at=UNIX + 3 * 86_400)
    await health.report(redis, pool, account, failure, now_ms=UNIX * 1000)
    assert (await state(redis, pool)).exhausted_until == UNIX + 3 * 86_400
    later = NOW + timedelta(minutes=1)
    await health.observe_headers(redis, pool, account, slot("primary", "12", "10080", str(UNIX + 600_000)), later)
    found = await state(redis, pool)
    assert found.exhausted_until_ms(UNIX * 1000 + 60_000) == 0
    assert found.windows[10080].resets_at == UNIX + 600_000


async def test_the_head_of_an_older_answer_does_not_lift_exhaustion(redis: Redis) -> None:
    pool = made.pool(made.account())
    failure = Failure(Kind.USAGE_LIMIT, movable=True, resets_at=UNIX + 3600)
    await health.report(redis, pool, pool.accounts[0], failure, now_ms=UNIX * 1000)
    before = NOW - timedelta(seconds=2)
    await health.observe_headers(redis, pool, pool.accounts[0], slot("primary", "99", "300", str(UNIX + 3600)), before)
    assert (await state(redis, pool)).exhausted_until == UNIX + 3600


async def test_room_in_one_window_does_not_lift_exhaustion_of_the_other(redis: Redis) -> None:
    """N12: short window 4 %, weekly 100 %."""
    pool = made.pool(made.account())
    head = slot("primary", "4", "300", str(UNIX + 900)) | slot("secondary", "100", "10080", str(UNIX + 90_000))
    await health.observe_headers(redis, pool, pool.accounts[0], head, NOW)
    found = await state(redis, pool)
    assert found.exhausted_until_ms(UNIX * 1000) == (UNIX + 90_000) * 1000
    later = NOW + timedelta(seconds=9)
    await health.observe_headers(redis, pool, pool.accounts[0], slot("primary", "5", "300", str(UNIX + 900)), later)
    found = await state(redis, pool)
    assert (found.windows[300].used_percent, found.windows[10080].used_percent) == (5.0, 100.0)


async def test_faults_of_the_request_leave_the_account_as_it_was(redis: Redis) -> None:
    """N8 N35: five 400 answers caused by the request's own shape."""
    pool = made.pool(made.account())
    for _ in range(5):
        failure = health.classify(400, {}, b'{"error":{"code":"context_length_exceeded"}}')
        await health.report(redis, pool, pool.accounts[0], failure)
    assert await redis.call("EXISTS", live.live_key(pool)) == 0


async def test_a_cooldown_counts_on_the_servers_clock(redis: Redis) -> None:
    pool = made.pool(made.account())
    seconds, micros = await redis.call("TIME")
    await health.report(redis, pool, pool.accounts[0], health.unreachable(written=False))
    found = (await state(redis, pool)).cooling_until_ms - (int(seconds) * 1000 + int(micros) // 1000)
    assert 5_000 <= found < 6_000


async def observe(
    redis: Redis, pool: PoolSnapshot, used: str, *, seconds: int, minutes: str = "300", resets: int = UNIX + 9_000
) -> None:
    head = slot("primary", used, minutes, str(resets))
    await health.observe_headers(redis, pool, pool.accounts[0], head, NOW + timedelta(seconds=seconds))


async def used(redis: Redis, pool: PoolSnapshot) -> float:
    return (await state(redis, pool)).windows[300].used_percent


async def test_a_jump_back_is_believed_at_the_second_sample(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "60", seconds=0)
    await observe(redis, pool, "12", seconds=5)
    assert await used(redis, pool) == 60.0
    # The same answer heard twice is one sample.
    await observe(redis, pool, "12", seconds=5)
    assert await used(redis, pool) == 60.0
    await observe(redis, pool, "13", seconds=6)
    assert (await state(redis, pool)).windows[300] == live.Window(300, 13.0, UNIX + 9_000, (UNIX + 6) * 1000)


async def test_a_jump_back_that_is_not_repeated_is_forgotten(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "60", seconds=0)
    await observe(redis, pool, "12", seconds=5)
    await observe(redis, pool, "61", seconds=6)
    await observe(redis, pool, "12", seconds=7)
    assert await used(redis, pool) == 61.0
    await observe(redis, pool, "12", seconds=8)
    assert await used(redis, pool) == 12.0


async def test_a_moved_reset_is_believed_at_once(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "60", seconds=0)
    await observe(redis, pool, "2", seconds=5, resets=UNIX + 18_000)
    assert (await state(redis, pool)).windows[300] == live.Window(300, 2.0, UNIX + 18_000, (UNIX + 5) * 1000)


async def test_a_reset_that_upstreams_round_by_seconds_has_not_moved(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "60", seconds=0)
    await observe(redis, pool, "12", seconds=5, resets=UNIX + 9_060)
    assert await used(redis, pool) == 60.0


async def test_the_first_report_after_a_reset_is_believed_at_once(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "97", seconds=0, resets=UNIX + 60)
    await observe(redis, pool, "1", seconds=61, resets=UNIX + 100)
    assert await used(redis, pool) == 1.0


async def test_a_fall_in_the_very_window_of_a_429_lifts_it_at_the_second_sample(redis: Redis) -> None:
    """A head that was on its way when the 429 came says 99 %: it does not make the account selectable."""
    pool = made.pool(made.account())
    failure = Failure(Kind.USAGE_LIMIT, movable=True, resets_at=UNIX + 9_000)
    await health.report(redis, pool, pool.accounts[0], failure, now_ms=UNIX * 1000)
    await observe(redis, pool, "99", seconds=1)
    assert (await state(redis, pool)).exhausted_until == UNIX + 9_000
    await observe(redis, pool, "20", seconds=2)
    assert (await state(redis, pool)).exhausted_until == 0


async def test_a_window_knows_what_was_metered_at_its_first_and_its_last_report(redis: Redis) -> None:
    pool = made.pool(made.account())
    key, field = live.live_key(pool), f"{pool.accounts[0].account_id}:m"
    await redis.call("HSET", key, field, 700)
    await observe(redis, pool, "10", seconds=0)
    await redis.call("HSET", key, field, 900)
    await observe(redis, pool, "11", seconds=1)
    found = (await state(redis, pool)).windows[300]
    assert (found.seen, found.start) == (900, 700)
    await observe(redis, pool, "1", seconds=2, resets=UNIX + 18_000)
    found = (await state(redis, pool)).windows[300]
    assert (found.seen, found.start) == (900, 900)


async def test_a_window_that_ended_and_is_not_reported_any_more_is_gone(redis: Redis) -> None:
    pool = made.pool(made.account())
    await observe(redis, pool, "10", seconds=0, resets=UNIX + 60)
    await observe(redis, pool, "20", seconds=1, minutes="10080", resets=UNIX + 90_000)
    assert set((await state(redis, pool)).windows) == {300, 10_080}
    await observe(redis, pool, "21", seconds=61, minutes="10080", resets=UNIX + 90_000)
    assert set((await state(redis, pool)).windows) == {10_080}


async def test_no_more_windows_are_kept_than_accounts_have(redis: Redis) -> None:
    """Whoever runs an endpoint could name one of each length, and all that read the pool's state would read them."""
    pool = made.pool(made.account())
    for number in range(40):
        await observe(redis, pool, "10", seconds=number, minutes=str(60 + number), resets=UNIX + 90_000)
    assert set((await state(redis, pool)).windows) == set(range(92, 100))
    await observe(redis, pool, "20", seconds=51, minutes="300", resets=UNIX + 90_000)
    found = (await state(redis, pool)).windows
    assert (len(found), found[300].used_percent) == (8, 20.0)


async def test_what_an_older_version_stored_is_replaced(redis: Redis) -> None:
    pool = made.pool(made.account())
    key, field = live.live_key(pool), f"{pool.accounts[0].account_id}:w"
    await redis.call("HSET", key, field, f"300=50:{UNIX + 9_000}:{UNIX * 1000}")
    await observe(redis, pool, "10", seconds=1)
    assert (await state(redis, pool)).windows == {300: live.Window(300, 10.0, UNIX + 9_000, (UNIX + 1) * 1000)}


def event(**limits: object) -> bytes:
    told = {"allowed": True, "limit_reached": False, **limits}
    return json.dumps(
        {"type": "codex.rate_limits", "plan_type": "plus", "metered_limit_name": "codex", "rate_limits": told}
    ).encode()


def told(used: float, minutes: int, reset_at: int) -> dict[str, float]:
    return {"used_percent": used, "window_minutes": minutes, "reset_after_seconds": reset_at - UNIX, "reset_at": reset_at}


async def test_an_event_of_a_stream_is_stored_as_a_head_is(redis: Redis) -> None:
    """N14: the only window of the event is the weekly one, in the first slot."""
    pool = made.pool(made.account())
    data = event(primary=told(61, 10_080, UNIX + 90_000), secondary=None)
    assert await health.observe_event(redis, pool, pool.accounts[0], data, NOW) == [Observation(10080, 61.0, UNIX + 90_000)]
    assert (await state(redis, pool)).windows == {10080: live.Window(10080, 61.0, UNIX + 90_000, UNIX * 1000)}


async def test_an_event_with_a_new_reset_lifts_exhaustion_and_an_older_one_does_not(redis: Redis) -> None:
    """N10."""
    pool = made.pool(made.account())
    failure = Failure(Kind.USAGE_LIMIT, movable=True, resets_at=UNIX + 3 * 86_400)
    await health.report(redis, pool, pool.accounts[0], failure, now_ms=UNIX * 1000)
    data = event(primary=told(12, 10_080, UNIX + 600_000))
    await health.observe_event(redis, pool, pool.accounts[0], data, NOW - timedelta(seconds=2))
    assert (await state(redis, pool)).exhausted_until == UNIX + 3 * 86_400
    await health.observe_event(redis, pool, pool.accounts[0], data, NOW + timedelta(seconds=2))
    assert (await state(redis, pool)).exhausted_until_ms(UNIX * 1000 + 2000) == 0


async def test_an_event_that_says_it_serves_nothing_lifts_nothing(redis: Redis) -> None:
    pool = made.pool(made.account())
    failure = Failure(Kind.USAGE_LIMIT, movable=True, resets_at=UNIX + 3600)
    await health.report(redis, pool, pool.accounts[0], failure, now_ms=UNIX * 1000)
    data = event(primary=told(12, 10_080, UNIX + 600_000), allowed=False, limit_reached=True)
    await health.observe_event(redis, pool, pool.accounts[0], data, NOW + timedelta(seconds=2))
    assert (await state(redis, pool)).exhausted_until == UNIX + 3600


async def test_events_that_tell_of_something_else_store_nothing(redis: Redis) -> None:
    pool = made.pool(made.account())
    for data in (b"", b"{", b'{"type":"response.created"}', event(primary=told(5, 300, UNIX - 1)), event()):
        assert await health.observe_event(redis, pool, pool.accounts[0], data, NOW) == []
    assert await redis.call("EXISTS", live.live_key(pool)) == 0


async def test_a_window_of_a_response_that_a_429_told_full_is_unknown_after_its_reset(redis: Redis) -> None:
    """N11: the reset passed 5 s ago: not exhausted; nothing is claimed of it until it is reported again."""
    pool = made.pool(made.account())
    await observe(redis, pool, "100", seconds=0, resets=UNIX + 60)
    found = (await state(redis, pool)).windows[300]
    after = (UNIX + 65) * 1000
    assert (found.blocks_until_ms(UNIX * 1000), found.blocks_until_ms(after)) == ((UNIX + 60) * 1000, 0)
    assert found.is_over(after)


async def test_an_api_keys_account_cools_and_comes_back_by_itself(redis: Redis) -> None:
    """K3 E18: no poll can tell of an API key, so nothing takes it out for longer than its refusal says."""
    account = made.account(kind="openai")
    pool = made.pool(account)
    seconds, _ = await redis.call("TIME")
    quota = health.classify(429, {}, b'{"error":{"type":"insufficient_quota","code":"insufficient_quota"}}')
    await health.report(redis, pool, account, quota)
    found = await state(redis, pool)
    assert found.cooling_until_ms / 1000 - int(seconds) == pytest.approx(300, abs=3)
    assert (found.exhausted_until, dict(found.windows)) == (0, {})
    # A shorter trouble later does not bring it back sooner, and no poll is asked for.
    await health.report(redis, pool, account, health.classify(503, {}, b""))
    assert (await state(redis, pool)).cooling_until_ms == found.cooling_until_ms
    assert await redis.call("ZSCORE", due.DUE, account.account_id) is None


async def test_a_usage_limit_of_a_sign_in_asks_for_a_poll(redis: Redis) -> None:
    """E18."""
    pool = made.pool(made.account())
    await health.report(redis, pool, pool.accounts[0], Failure(Kind.USAGE_LIMIT, movable=True, cooldown_seconds=60.0))
    assert await redis.call("ZSCORE", due.DUE, pool.accounts[0].account_id) == b"0"
    await redis.call("ZREM", due.DUE, pool.accounts[0].account_id)
