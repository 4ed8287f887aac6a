"""Refusals: noted beside the request, kept once per key, code, limit and minute, forgotten after 30 days."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connections

from accounts.snapshots import KeySnapshot
from config import scope
from config.clock import utc_now
from config.errors import DomainError
from config.redis import Redis, RedisUnavailable, sync_client
from config.snapshot import Snapshot
from quotas import refusal_log
from quotas.errors import LimitReached
from quotas.models import Refusal
from quotas.refusal_log import Note
from tests import ports
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, in_thread

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = datetime(2026, 11, 18, 14, 11, tzinfo=UTC)
LIMIT = str(uuid4())


@pytest.fixture
def tenant() -> Tenant:
    return tenancy.make(plan=None, team=True)


def reached(**fields: Any) -> LimitReached:
    """2,686 of 3,000 used, 41.90 held, 318.40 needed; room at the next midnight."""
    facts: dict[str, Any] = {"limit": 3000 * CREDIT, "used": 2686 * CREDIT, "held": 41_900_000, "need": 318_400_000}
    about = {"scope": "member", "scope_name": "Ada", "metric": "credits", "window": "day", "resets_at": 1_795_042_800}
    return LimitReached("Limit reached.", **{**facts, **about, "retry_after": 60, "shown": {}, "limit_uuid": LIMIT, **fields})


def other(code: str, message: str = "No.", **facts: Any) -> DomainError:
    return type("Other", (DomainError,), {"code": code})(message, **facts)


def rows(tenant: Tenant) -> list[Refusal]:
    return list(Refusal.objects.filter(organization=tenant.organization).order_by("id"))


def entry(tenant: Tenant, at: datetime, number: int = 0, **fields: Any) -> None:
    """An entry of the stream at a moment of ours."""
    known = {
        "key_id": tenant.key.row.pk,
        "member_id": tenant.member.pk,
        "code": "limit_reached",
        "metric": "credits",
        "window": "day",
    }
    encoded = refusal_log._encoder.encode(Note(**{**known, "scope": "member", "limit_uuid": LIMIT, **fields}))
    redis: Any = sync_client()
    redis.xadd(refusal_log.stream_key(tenant.organization.pk), {"e": encoded}, id=f"{int(at.timestamp() * 1000)}-{number}")
    redis.sadd(refusal_log.refused_key(tenant.organization.pk), tenant.organization.pk)


def drain(tenant: Tenant, redis: Any = None) -> int:
    return refusal_log.drain_organization(redis or sync_client(), tenant.organization.pk)


async def noted(tenant: Tenant, *refusals: DomainError, **options: Any) -> None:
    """Notes them and waits until Redis has them."""
    snapshot, key = await in_thread(lambda: (loaded := tenant.snapshot(), tenant.key_of(loaded)))
    redis = Redis(_url())
    for refusal in refusals:
        refusal_log.note(redis, snapshot, key, refusal, **options)
    await redis.call("PING")
    await redis.close()


def _url() -> str:
    from django.conf import settings

    return str(settings.REDIS_URL)


def test_every_refusal_of_the_wire_is_among_those_that_are_kept() -> None:
    """The table of design section 8, written out."""
    assert {
        *("invalid_api_key", "model_not_found", "model_unpriced", "model_not_allowed", "reasoning_effort_not_allowed"),
        *("fast_mode_not_allowed", "invalid_json", "payload_too_large", "invalid_encoding", "previous_response_not_found"),
        *("limit_reached", "rate_limit_exceeded", "concurrency_limit", "pool_exhausted", "pool_busy"),
        *("no_account_available", "draining", "degraded", "upstream_unavailable"),
    } == refusal_log.CODES


async def test_a_refusal_is_kept_with_its_facts(tenant: Tenant) -> None:
    before = utc_now()
    await noted(tenant, reached(), model="gpt-6-astra")
    assert await in_thread(drain, tenant) == 1
    [row] = await in_thread(rows, tenant)
    assert (row.key_id, row.member_id, row.team_id) == (tenant.key.row.pk, tenant.member.pk, tenant.member.team_id)
    assert (row.code, row.scope, row.scope_name, row.metric, row.window) == ("limit_reached", "member", "Ada", "credits", "day")
    assert (row.limit, row.used, row.held, row.need) == (3000 * CREDIT, 2686 * CREDIT, 41_900_000, 318_400_000)
    assert row.resets_at == datetime.fromtimestamp(1_795_042_800, UTC)
    assert (row.model, row.message, row.count, str(row.limit_uuid)) == ("gpt-6-astra", "Limit reached.", 1, LIMIT)
    assert row.minute == row.last_at.replace(second=0, microsecond=0)
    assert before - timedelta(seconds=2) < row.last_at < utc_now() + timedelta(seconds=2)


async def test_what_is_no_refusal_of_a_request_is_not_kept(tenant: Tenant) -> None:
    await noted(tenant, other("not_found"), other("method_not_allowed"), other("internal_error"), other("stale"))
    assert await in_thread(drain, tenant) == 0
    assert await in_thread(rows, tenant) == []


async def test_a_refusal_without_numbers_keeps_its_sentence_and_when_it_ends(tenant: Tenant) -> None:
    await noted(tenant, other("pool_exhausted", "Every account is used up.", resets_at=1_795_000_000))
    await noted(tenant, other("invalid_api_key", "Incorrect API key provided."), told="The key laptop has expired.")
    await in_thread(drain, tenant)
    first, second = await in_thread(rows, tenant)
    assert (first.code, first.limit, first.metric, first.limit_uuid) == ("pool_exhausted", None, "", None)
    assert first.resets_at == datetime.fromtimestamp(1_795_000_000, UTC)
    assert (second.code, second.message) == ("invalid_api_key", "The key laptop has expired.")


async def test_what_a_client_sent_cannot_hurt_the_log(tenant: Tenant) -> None:
    model = "gpt\x00\ud800\u202e\n" + "x" * 5000
    await noted(tenant, other("model_not_found", f"{model} is not known."), model=model)
    assert await in_thread(drain, tenant) == 1
    [row] = await in_thread(rows, tenant)
    assert row.model == "gpt ?  " + "x" * 113
    assert len(row.message) == 500


def test_one_row_per_key_code_limit_and_minute_with_how_many(tenant: Tenant) -> None:
    for second, used in ((1, 10), (20, 20), (59, 30)):
        entry(tenant, MINUTE + timedelta(seconds=second), used=used)
    entry(tenant, MINUTE + timedelta(seconds=60), used=40)
    entry(tenant, MINUTE + timedelta(seconds=61), limit_uuid=str(uuid4()))
    entry(tenant, MINUTE + timedelta(seconds=62), code="rate_limit_exceeded", metric="requests_per_minute", window="")
    assert drain(tenant) == 6
    found = rows(tenant)
    assert [(row.minute, row.count, row.used, row.code) for row in found] == [
        (MINUTE, 3, 30, "limit_reached"),
        (MINUTE + timedelta(minutes=1), 1, 40, "limit_reached"),
        (MINUTE + timedelta(minutes=1), 1, None, "limit_reached"),
        (MINUTE + timedelta(minutes=1), 1, None, "rate_limit_exceeded"),
    ]
    assert found[0].last_at == MINUTE + timedelta(seconds=59)
    assert drain(tenant) == 0


def test_a_later_batch_adds_to_the_minute_with_the_newest_facts(tenant: Tenant) -> None:
    entry(tenant, MINUTE, used=10)
    drain(tenant)
    # The same millisecond: told apart by their number in it.
    entry(tenant, MINUTE, 1, used=20)
    entry(tenant, MINUTE, 2, used=30, held=5)
    assert drain(tenant) == 2
    [row] = rows(tenant)
    assert (row.count, row.used, row.held) == (3, 30, 5)


class Dying:
    """A Redis that goes away after the rows are committed, before the stream is trimmed."""

    def __init__(self) -> None:
        self._client: Any = sync_client()

    def __getattr__(self, name: str) -> Any:
        if name == "xtrim":
            raise RedisUnavailable("gone")
        return getattr(self._client, name)


def test_what_comes_again_after_a_crash_is_counted_once(tenant: Tenant) -> None:
    for number in range(5):
        entry(tenant, MINUTE, number)
    with pytest.raises(RedisUnavailable):
        drain(tenant, Dying())
    assert [row.count for row in rows(tenant)] == [5]
    entry(tenant, MINUTE, 5)
    assert drain(tenant) == 6
    assert [row.count for row in rows(tenant)] == [6]


def test_ledger_processes_at_once_count_each_entry_once(tenant: Tenant) -> None:
    for number in range(900):
        entry(tenant, MINUTE + timedelta(milliseconds=number))

    def work() -> None:
        try:
            for _ in range(20):
                refusal_log.drain(sync_client())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refusal_log.drain(sync_client())
    assert [row.count for row in rows(tenant)] == [900]
    redis: Any = sync_client()
    assert redis.xlen(refusal_log.stream_key(tenant.organization.pk)) == 0
    assert not redis.sismember(refusal_log.refused_key(tenant.organization.pk), tenant.organization.pk)


def test_an_entry_that_cannot_be_read_is_left_out(tenant: Tenant) -> None:
    redis: Any = sync_client()
    redis.xadd(refusal_log.stream_key(tenant.organization.pk), {"e": b"{"}, id=f"{int(MINUTE.timestamp() * 1000) - 1}-0")
    redis.xadd(refusal_log.stream_key(tenant.organization.pk), {"x": b"1"}, id=f"{int(MINUTE.timestamp() * 1000) - 1}-1")
    entry(tenant, MINUTE)
    assert drain(tenant) == 3
    assert [row.count for row in rows(tenant)] == [1]


def test_an_organization_that_is_not_there_keeps_nobody_waiting(tenant: Tenant) -> None:
    redis: Any = sync_client()
    nowhere = 2**31 - 5
    redis.xadd(refusal_log.stream_key(nowhere), {"e": refusal_log._encoder.encode(Note(key_id=1, member_id=1, code="degraded"))})
    redis.sadd(refusal_log.refused_key(nowhere), nowhere)
    entry(tenant, MINUTE)
    assert refusal_log.drain(redis) >= 2
    assert [row.count for row in rows(tenant)] == [1]
    assert redis.xlen(refusal_log.stream_key(nowhere)) == 0


@pytest.mark.alone
async def test_a_note_waits_for_nothing_and_leaves_nothing_behind(tenant: Tenant, caplog: pytest.LogCaptureFixture) -> None:
    """No Redis at all: every note returns at once, at most so many are kept in memory, and no error escapes."""
    snapshot, key = await in_thread(lambda: (loaded := tenant.snapshot(), tenant.key_of(loaded)))
    redis = Redis(f"redis://127.0.0.1:{ports.free()}/0")
    tasks = asyncio.all_tasks()
    began = asyncio.get_running_loop().time()
    for _ in range(5000):
        refusal_log.note(redis, snapshot, key, reached())
    assert asyncio.get_running_loop().time() - began < 0.5
    assert refusal_log._unanswered[redis] == len(redis._queued) == refusal_log.MOST_UNANSWERED
    assert asyncio.all_tasks() == tasks
    await asyncio.sleep(0.1)
    assert refusal_log._unanswered[redis] == 0
    await redis.close()
    refusal_log.note(redis, snapshot, key, reached())
    await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


async def test_the_stream_keeps_the_newest_and_stays_bounded(tenant: Tenant) -> None:
    snapshot, key = await in_thread(lambda: (loaded := tenant.snapshot(), tenant.key_of(loaded)))
    await flood(tenant, snapshot, key, 3000)
    redis: Any = sync_client()
    stream = refusal_log.stream_key(tenant.organization.pk)
    # "~" lets the server keep the rest of a block of 100 entries.
    assert refusal_log.MOST_ENTRIES <= redis.xlen(stream) <= refusal_log.MOST_ENTRIES + 100
    [(_, newest)] = redis.xrevrange(stream, count=1)
    assert refusal_log._decoder.decode(newest[b"e"]).need == 3000


async def flood(tenant: Tenant, snapshot: Snapshot, key: KeySnapshot, count: int) -> None:
    redis = Redis(_url())
    for number in range(1, count + 1):
        refusal_log.note(redis, snapshot, key, reached(need=number))
        if number % 100 == 0:
            await redis.call("PING")
    await redis.close()


def test_refusals_are_forgotten_after_30_days(tenant: Tenant) -> None:
    now = MINUTE + timedelta(days=30)
    entry(tenant, MINUTE - timedelta(seconds=1), code="degraded")
    entry(tenant, MINUTE + timedelta(seconds=1))
    drain(tenant)
    assert refusal_log.forget_old(now=now) >= 1
    assert [row.code for row in rows(tenant)] == ["limit_reached"]
    assert refusal_log.forget_old(now=now) == 0


def test_another_organization_sees_none_of_it(tenant: Tenant) -> None:
    entry(tenant, MINUTE)
    drain(tenant)
    with scope.organization(tenancy.make(plan=None).organization.pk):
        assert not Refusal.objects.filter(organization=tenant.organization).exists()
    with scope.organization(tenant.organization.pk):
        assert Refusal.objects.filter(organization=tenant.organization).count() == 1
