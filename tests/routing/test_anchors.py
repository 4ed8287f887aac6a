"""Hard continuation: who owns what a request names decides where it goes, and nothing else does."""

import dataclasses
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from django.conf import settings

from config.redis import Redis
from routing import anchors, health, live, selection, sticky
from routing.anchors import NONE, Anchor, Kind, Owned
from routing.errors import (
    AccountsAtCap,
    OwnerAtCap,
    OwnerBusy,
    OwnerExhausted,
    OwnerGone,
    OwnersDiffer,
    OwnerUnfit,
    PoolBusy,
    PoolExhausted,
    SelectionError,
)
from routing.failures import Failure
from routing.failures import Kind as FailureKind
from routing.selection import Lease
from routing.snapshots import PoolSnapshot
from tests.routing import made
from tests.routing.test_selection import clock, down, exhausted, in_flight

SESSION = "5e" * 16
RESPONSE = Anchor(Kind.RESPONSE, "resp_x")
EVERY_KIND = [Anchor(kind, f"{kind.value}-1") for kind in Kind]


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    connected = Redis(settings.REDIS_URL)
    yield connected
    await connected.close()


async def own(redis: Redis, pool: PoolSnapshot, account_id: int, *held: Anchor) -> None:
    await redis.batch(anchors.record_commands(pool, held, account_id))


async def ask(redis: Redis, pool: PoolSnapshot, *of: Anchor) -> Owned:
    found = selection.read_live(pool, await redis.batch(selection.live_commands(pool, SESSION, of)), of)
    return found.owned


async def take(redis: Redis, pool: PoolSnapshot, *of: Anchor, **options: Any) -> Lease:
    """A selection of a request with these anchors, as the path does it."""
    state = selection.read_live(pool, await redis.batch(selection.live_commands(pool, SESSION, of)), of)
    values: dict[str, Any] = {
        "request_id": f"req_{made.number()}",
        "model": "gpt-5.5",
        "tier": None,
        "session_key": SESSION,
        "now_ms": clock(),
        "rng": random.random,
    }
    return await selection.select(redis, pool, state, **{**values, **options})


# --------------------------------------------------------------------------------------------------------------- owners


@pytest.mark.parametrize("anchor", EVERY_KIND, ids=lambda anchor: anchor.kind.value)
async def test_an_anchor_of_every_kind_leads_to_its_owner(redis: Redis, anchor: Anchor) -> None:
    pool = made.pool(*(made.account() for _ in range(4)))
    owner = pool.accounts[2]
    assert await ask(redis, pool, anchor) == Owned(unknown=(anchor,))
    await own(redis, pool, owner.account_id, anchor)
    assert await ask(redis, pool, anchor) == Owned(owner.account_id, anchor)
    lease = await take(redis, pool, anchor)
    assert (lease.account, lease.reason, lease.candidates) == (owner, "owner", 1)


async def test_all_owners_are_asked_at_once(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    before = redis.round_trips
    assert len(selection.live_commands(pool, SESSION, EVERY_KIND)) == 4
    assert (await ask(redis, pool, *EVERY_KIND)).unknown == tuple(EVERY_KIND)
    assert redis.round_trips == before + 1
    assert await ask(redis, pool) == NONE
    assert len(selection.live_commands(pool, SESSION)) == 3


async def test_one_id_of_two_kinds_is_two_anchors(redis: Redis) -> None:
    pool = made.pool(made.account())
    await own(redis, pool, 5, Anchor(Kind.FILE, "same"))
    assert (await ask(redis, pool, Anchor(Kind.ITEM, "same"))).owner is None


async def test_the_known_ones_must_agree(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    one, other = (account.account_id for account in pool.accounts)
    held, file, unknown = Anchor(Kind.CONVERSATION, "conv"), Anchor(Kind.FILE, "file"), Anchor(Kind.TURN, "ts")
    await own(redis, pool, one, RESPONSE, held)
    await own(redis, pool, other, file)
    assert await ask(redis, pool, RESPONSE, unknown, held) == Owned(one, RESPONSE, (unknown,))
    with pytest.raises(OwnersDiffer) as refused:
        await ask(redis, pool, unknown, held, file)
    error = refused.value
    assert (error.code, error.status, error.is_anchored) == ("previous_response_not_found", 400, True)
    assert error.message.startswith("The conversation and the file are held by different accounts.")


async def test_an_owner_is_kept_for_a_day_from_when_it_was_last_heard_of(redis: Redis) -> None:
    pool = made.pool(made.account())
    await own(redis, pool, 5, RESPONSE)
    [command] = anchors.record_commands(pool, [RESPONSE], 5)
    assert 86_390 < await redis.call("TTL", command[1]) <= 86_400
    await redis.call("EXPIRE", command[1], 10)
    await own(redis, pool, 5, RESPONSE)
    assert await redis.call("TTL", command[1]) > 86_390


async def test_owners_are_known_per_organization_whichever_pool_or_key_asks(redis: Redis) -> None:
    """N55: and another organization's response of the same name is another one, also in a pool that both share."""
    mine = made.pool(made.account(), tenant_id=made.number())
    same = dataclasses.replace(mine, pool_id=made.number())
    shared = made.pool(made.account(), organization_id=None, tenant_id=mine.tenant_id)
    foreign = dataclasses.replace(shared, tenant_id=made.number())
    await own(redis, mine, 7, RESPONSE)
    assert [(await ask(redis, pool, RESPONSE)).owner for pool in (mine, same, shared, foreign)] == [7, 7, 7, None]


def test_an_anchor_tells_no_log_its_id() -> None:
    assert "resp_x" not in repr(RESPONSE)
    assert "resp_x" not in repr(Owned(1, RESPONSE, (RESPONSE,)))


def test_only_a_lost_response_is_lost() -> None:
    others = tuple(anchor for anchor in EVERY_KIND if anchor.kind is not Kind.RESPONSE)
    assert Owned(unknown=others).lost is None
    assert Owned(unknown=(*others, RESPONSE)).lost == RESPONSE
    assert anchors.joined(Owned(unknown=(*others, RESPONSE)), RESPONSE, 5) == Owned(5, RESPONSE, others)
    with pytest.raises(OwnersDiffer):
        anchors.joined(Owned(4, others[0], (RESPONSE,)), RESPONSE, 5)


# ------------------------------------------------------------------------------------------------------- where it goes


async def test_a_thread_of_52_turns_stays_on_its_owner(redis: Redis) -> None:
    """N52 K5: 52 turns with previous_response_id, all on the owner, whatever the session's entry says."""
    pool = made.pool(*(made.account() for _ in range(4)))
    owner = pool.accounts[2]
    await own(redis, pool, owner.account_id, Anchor(Kind.RESPONSE, "resp_0"))
    for turn in range(52):
        if turn % 10 == 5:
            # Somebody else's work under the same session; sticky never beats ownership.
            await redis.call("SET", live.session_key(pool, SESSION), f"{pool.accounts[0].account_id}:0:0:{clock()}:0:0:0:0:0:0")
        lease = await take(redis, pool, Anchor(Kind.RESPONSE, f"resp_{turn}"))
        assert (lease.account, lease.reason) == (owner, "owner")
        await own(redis, pool, lease.account.account_id, Anchor(Kind.RESPONSE, f"resp_{turn + 1}"))


async def test_a_session_without_an_anchor_goes_anywhere(redis: Redis) -> None:
    """N50: sticky to A, A exhausted, B fine, no anchor: B serves."""
    pool = made.pool(made.account(), made.account())
    first = await take(redis, pool)
    await health.report(redis, pool, first.account, exhausted(clock() // 1000 + 600))
    second = await take(redis, pool)
    assert second.account != first.account
    # One that nobody is known to own binds nobody either; only a response must be known, which is asked before (`lost`).
    third = await take(redis, pool, Anchor(Kind.TURN, "of long ago"))
    assert third.account == second.account


async def test_a_session_comes_back_once_its_account_is_up(redis: Redis) -> None:
    """N51: A is down for 20 s, then up, same session: the third call is back on A."""
    pool = made.pool(made.account(), made.account())
    now = clock()
    first = await take(redis, pool, now_ms=now)
    await health.report(redis, pool, first.account, down(20), now_ms=now)
    second = await take(redis, pool, now_ms=now + 1_000)
    assert second.account != first.account
    third = await take(redis, pool, now_ms=now + 21_000)
    assert third.account == first.account


async def test_an_exhausted_owner_tells_its_own_reset(redis: Redis) -> None:
    """N52: nobody else is tried, also if another resets sooner."""
    pool = made.pool(made.account(), made.account())
    owner, other = pool.accounts
    resets_at = clock() // 1000 + 600
    await own(redis, pool, owner.account_id, RESPONSE)
    await health.report(redis, pool, owner, exhausted(resets_at))
    await health.report(redis, pool, other, exhausted(resets_at - 500))
    with pytest.raises(OwnerExhausted) as refused:
        await take(redis, pool, RESPONSE)
    error = refused.value
    assert isinstance(error, PoolExhausted)
    assert (error.resets_at, error.facts["resets_at"], error.code) == (resets_at, resets_at, "pool_exhausted")
    assert error.message == "The account that holds the previous response has used up its limit."
    assert await in_flight(redis, pool) == [0, 0]


async def test_an_owner_that_cools_down_or_is_full_is_waited_for(redis: Redis) -> None:
    pool = made.pool(made.account(concurrency_cap=1), made.account())
    owner = pool.accounts[0]
    turn = Anchor(Kind.TURN, "ts-1")
    now = clock()
    await own(redis, pool, owner.account_id, turn)
    held = await take(redis, pool, turn, now_ms=now)
    with pytest.raises(OwnerAtCap, match="holds the turn carries as many") as full:
        await take(redis, pool, turn, now_ms=now)
    assert isinstance(full.value, AccountsAtCap)
    await selection.release(redis, held)
    await health.report(redis, pool, owner, down(20), now_ms=now)
    with pytest.raises(OwnerBusy, match="holds the turn is cooling down") as busy:
        await take(redis, pool, turn, now_ms=now + 1_000)
    assert isinstance(busy.value, PoolBusy)
    assert busy.value.retry_after == 19
    assert await in_flight(redis, pool) == [0, 0]


@pytest.mark.parametrize("gone", ["deleted", "needs_sign_in", "paused", "withdrawn"])
async def test_a_continuation_of_an_owner_that_is_gone_is_refused(redis: Redis, gone: str) -> None:
    """N53 K6: 400 previous_response_not_found; no other account is tried."""
    pool = made.pool(made.account(), made.account())
    owner = pool.accounts[0]
    await own(redis, pool, owner.account_id, RESPONSE)
    rest = pool.accounts[1:] if gone == "deleted" else (dataclasses.replace(owner, status=gone), *pool.accounts[1:])
    with pytest.raises(OwnerGone) as refused:
        await take(redis, dataclasses.replace(pool, accounts=rest), RESPONSE)
    assert (refused.value.code, refused.value.status) == ("previous_response_not_found", 400)
    assert refused.value.facts == {"param": "previous_response_id"}
    assert await in_flight(redis, pool) == [0, 0]


@pytest.mark.parametrize(
    ("fields", "asked", "word"),
    [
        ({"models": frozenset({"other"})}, {}, "model"),
        ({"efforts": frozenset({"low"})}, {"effort": "high"}, "reasoning effort"),
        ({"tiers": frozenset({"flex"})}, {"tier": "fast"}, "service tier"),
        ({"kind": "anthropic"}, {"kinds": frozenset({"chatgpt"})}, "API"),
    ],
)
async def test_an_owner_that_cannot_serve_such_a_request_is_as_good_as_gone(
    redis: Redis, fields: dict[str, Any], asked: dict[str, Any], word: str
) -> None:
    """Sent whole, the conversation goes to an account that can."""
    pool = made.pool(made.account(**fields), made.account())
    await own(redis, pool, pool.accounts[0].account_id, RESPONSE)
    with pytest.raises(OwnerUnfit, match=f"does not serve this {word}. Send the whole conversation") as refused:
        await take(redis, pool, RESPONSE, **asked)
    assert refused.value.code == "previous_response_not_found"
    assert (await take(redis, pool, **asked)).account == pool.accounts[1]


async def test_an_owner_that_failed_this_request_is_not_left(redis: Redis) -> None:
    """K6: no fail-over away from lost state."""
    pool = made.pool(made.account(), made.account())
    owner = pool.accounts[0].account_id
    await own(redis, pool, owner, RESPONSE)
    with pytest.raises(SelectionError) as refused:
        await take(redis, pool, RESPONSE, exclude=frozenset({owner}))
    assert isinstance(refused.value, OwnerBusy)
    assert await in_flight(redis, pool) == [0, 0]


# -------------------------------------------------------------------------------------------- encrypted reasoning stays


async def entry_of(redis: Redis, pool: PoolSnapshot) -> sticky.Sticky:
    found = sticky.read(await redis.call("GET", live.session_key(pool, SESSION)))
    assert found is not None
    return found


async def test_a_session_stays_with_the_account_that_can_read_it(redis: Redis) -> None:
    """A forced move that the other account refuses (invalid_encrypted_content) is no move: at once, and after half an hour."""
    pool = made.pool(made.account(), made.account())
    now = clock()
    home = (await take(redis, pool, now_ms=now)).account
    limit = Failure(FailureKind.USAGE_LIMIT, movable=True, resets_at=now // 1000 + 7_200)
    await health.report(redis, pool, home, limit, now_ms=now)
    for minutes in (1, 20, 40, 61):
        moved = await take(redis, pool, now_ms=now + minutes * 60_000)
        assert moved.account != home
        await selection.stay(redis, moved)
        entry = await entry_of(redis, pool)
        assert (entry.home, entry.stand_in, entry.last, entry.served_ms) == (home.account_id, None, home.account_id, now)
    back = await take(redis, pool, now_ms=now + 7_201_000, is_bound=lambda: True)
    assert back.account == home


async def test_a_session_that_was_moved_for_good_is_taken_back_too(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account())
    home, other = (account.account_id for account in pool.accounts)
    now = clock()
    await redis.call("SET", live.session_key(pool, SESSION), f"{home}:0:0:{now - 5_000}:9:0:0:0:0:0")
    before = await entry_of(redis, pool)
    lease = await take(redis, pool, now_ms=now)
    await redis.call("SET", live.session_key(pool, SESSION), f"{other}:0:0:{now}:9:0:0:0:0:0")
    await selection.stay(redis, dataclasses.replace(lease, account=pool.accounts[1]))
    assert await entry_of(redis, pool) == before


async def test_a_session_that_has_moved_on_since_is_left_alone(redis: Redis) -> None:
    pool = made.pool(made.account(), made.account(), made.account())
    now = clock()
    lease = await take(redis, pool, now_ms=now)
    again = await take(redis, pool, now_ms=now)
    third = next(account for account in pool.accounts if account != lease.account)
    held = await entry_of(redis, pool)
    await selection.stay(redis, dataclasses.replace(again, account=third))
    await selection.stay(redis, again)
    await selection.stay(redis, dataclasses.replace(again, session_key=None, account=third))
    assert await entry_of(redis, pool) == held
