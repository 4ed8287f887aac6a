"""Usage polls: a sign-in account's windows, asked of its upstream by its own token. A poll is never an inference.

Every account is asked about every five minutes; at once when a window of it has been reset, or when it has just been refused for
its use (E18: a granted reset is known within minutes, not when the stored one would have come). One poll of an account at a time,
over all processes; few at once; spread by chance, so that what resets in one minute is not asked in one second.
"""

import logging
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
import redis as redis_py
from django.conf import settings
from django.db import connection

from config import redis as weir_redis
from config import scope, tls
from config.clock import utc_now
from routing import accounts, addresses, credentials, due, failures, health, live, observations, plans
from routing.credentials import Credential
from routing.errors import CredentialError, SignInNeeded
from routing.failures import Failure
from routing.models import PoolAccount
from routing.observations import Told

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 300.0
EXHAUSTED_SECONDS = 120.0
"""Between two polls of an account that is exhausted: its reset may have been moved or granted."""
RETRY_SECONDS = 60.0
"""After the first poll that came to nothing; the next ones wait for their turn."""
CONFIRM_SECONDS = 15.0
"""After a fall within one window, which is believed at the second sample."""
SHORTEST_GAP_SECONDS = 10.0
AFTER_RESET_SECONDS = (1.0, 5.0)
JITTER = 0.2

STALE_SECONDS = 900.0
"""What was observed longer ago is asked for first when polls begin again."""
STALE_WITHIN_SECONDS = 20.0

SIDE_BY_SIDE = 8
ROUND_SECONDS = 10.0
ANSWER_SECONDS = 10.0
MOST_ANSWER_BYTES = 1024 * 1024
TIMEOUT = httpx.Timeout(5.0, read=8.0)
REFRESH_PATIENCE = 5.0

OK, BUSY, OUT = "ok", "busy", "out"
RECENT, WINDOWLESS = "recent", "windowless"
"""Not asked by a person's wish: it was a moment ago; it has no windows to tell of."""
RUNNING, RUNNING_SECONDS = "routing:polls:running", 150
PLANNED, PLANNED_SECONDS = "routing:polls:planned", 60
LOCK_SECONDS = 110
"""Less than `due.TAKEN_MS`, more than any poll takes."""

Random = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class Polled:
    """What came of one poll. `outcome`: ok; busy, somebody else is asking; out, the account is not there or must be signed in; else
    why there is no answer. `told` None unless ok."""

    account_id: int
    outcome: str
    told: Told | None = None


class Unanswered(Exception):
    """No answer, or none that can be read; the text says why."""


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: dict[str, str]
    body: bytes


# ---------------------------------------------------------------------------------------------------------- one poll


def ask(account: PoolAccount, *, now: datetime) -> Polled:
    """As `poll`, by a person's wish: `recent` for one that was asked within SHORTEST_GAP_SECONDS, `windowless` for an API key.

    Raises RedisUnavailable.
    """
    if account.kind != PoolAccount.Kind.CHATGPT:
        return Polled(account.pk, WINDOWLESS)
    if account.polled_at is not None and (now - account.polled_at).total_seconds() < SHORTEST_GAP_SECONDS:
        return Polled(account.pk, RECENT)
    return poll(account.pk)


def poll(account_id: int, *, rng: Random = random.uniform) -> Polled:
    """Asks an account's upstream for its use, stores what it says and plans the next poll.

    Not in a transaction. Takes a minute at most, a renewal of its sign-in included. Raises RedisUnavailable.
    """
    lock = weir_redis.sync_client().lock(f"routing:polls:of:{account_id}", timeout=LOCK_SECONDS, thread_local=False)
    with weir_redis.translated():
        if not lock.acquire(blocking=False):
            return Polled(account_id, BUSY)
    try:
        with scope.everything():
            return _poll(account_id, rng)
    finally:
        try:
            lock.release()
        except redis_py.exceptions.RedisError:
            # It lapses by itself.
            logger.info("a poll's lock was not given back", extra={"account_id": account_id})


def _poll(account_id: int, rng: Random) -> Polled:
    row = _row(account_id)
    if row is None or row.status in credentials.OUT:
        due.drop(account_id)
        return Polled(account_id, OUT)
    key = live.pool_live_key(row.pool_id, row.pool.organization_id)
    asked_ms = due.server_ms()
    told: Told | None = None
    try:
        told = _asked(account_id)
        outcome = OK
    except CredentialError as error:
        outcome = OUT if isinstance(error, SignInNeeded) else error.code
    except Unanswered as error:
        outcome = str(error)
    if told is not None:
        health.store(key, account_id, told, observed_ms=asked_ms)
        plans.reported(account_id, told.plan)
    PoolAccount.objects.filter(pk=account_id).update(polled_at=utc_now(), poll_outcome=outcome[:100])
    if outcome == OUT:
        due.drop(account_id)
    else:
        due.put(account_id, _next_ms(key, account_id, told, asked_ms, failed_before=row.poll_outcome not in ("", OK), rng=rng))
    if outcome != OK:
        logger.info("account not polled", extra={"account": str(row.uuid), "outcome": outcome})
    return Polled(account_id, outcome, told)


def _row(account_id: int) -> PoolAccount | None:
    rows = PoolAccount.objects.without_secrets().select_related("pool")
    return rows.filter(pk=account_id, kind=PoolAccount.Kind.CHATGPT).first()


def _asked(account_id: int) -> Told:
    """One question, and one more with a renewed token if the first was refused. Raises CredentialError, Unanswered."""
    credential = credentials.load(account_id)
    if credential.is_expiring(utc_now()):
        credential = credentials.refresh(account_id, "proactive_expiry", used_version=credential.version, patience=REFRESH_PATIENCE)
    answer = _get(credential)
    if answer.status != 200:
        failure = _failure(answer)
        if failure.refresh:
            credential = credentials.refresh(
                account_id, "unauthorized_recovery", used_version=credential.version, patience=REFRESH_PATIENCE
            )
            answer = _get(credential)
    if answer.status != 200:
        failure = _failure(answer)
        if failure.sign_in:
            accounts.need_sign_in(account_id, failure.code, version=credential.version)
        raise Unanswered(f"refused: {answer.status} {failure.code}")
    told = observations.of_usage(answer.body, utc_now().timestamp())
    if told is None:
        raise Unanswered("unreadable")
    return told


def _failure(answer: _Answer) -> Failure:
    return failures.classify(answer.status, answer.headers, answer.body)


def _get(credential: Credential) -> _Answer:
    """Bounded in time and size, however slowly the answer drips in. Raises Unanswered."""
    url = f"{settings.UPSTREAM_CHATGPT_URL}/wham/usage"
    headers = {
        "authorization": f"Bearer {credential.token}",
        "chatgpt-account-id": credential.chatgpt_account_id or "",
        "user-agent": "weir",
    }
    give_up_at = time.monotonic() + ANSWER_SECONDS
    body = bytearray()
    try:
        trusts = not addresses.is_local(url)
        with (
            httpx.Client(
                timeout=TIMEOUT, verify=tls.authorities(trusts_env=trusts), trust_env=trusts, follow_redirects=False
            ) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > MOST_ANSWER_BYTES:
                    raise Unanswered("too long")
                if time.monotonic() > give_up_at:
                    raise Unanswered("too slow")
            return _Answer(answer.status_code, dict(answer.headers), bytes(body))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unanswered(f"unanswered: {type(error).__name__}") from None


def _next_ms(key: str, account_id: int, told: Told | None, now_ms: int, *, failed_before: bool, rng: Random) -> int:
    """When to ask again, server milliseconds. Raises RedisUnavailable."""

    def about(seconds: float) -> int:
        return now_ms + round(1000 * seconds * rng(1 - JITTER, 1 + JITTER))

    if told is None:
        return about(INTERVAL_SECONDS if failed_before else RETRY_SECONDS)
    state = live.state_of(key, account_id)
    exhausted_ms = state.exhausted_until_ms(now_ms)
    wanted = [about(EXHAUSTED_SECONDS if exhausted_ms else INTERVAL_SECONDS)]
    resets = [window.resets_at * 1000 for window in state.windows.values()] + [exhausted_ms]
    wanted += [reset + round(1000 * rng(*AFTER_RESET_SECONDS)) for reset in resets if reset > now_ms]
    if _is_doubted(state, told, now_ms):
        wanted.append(about(CONFIRM_SECONDS))
    return max(min(wanted), now_ms + round(1000 * SHORTEST_GAP_SECONDS))


def _is_doubted(state: live.AccountState, told: Told, now_ms: int) -> bool:
    """Whether it said less than is believed now: a second sample decides."""
    if told.has_room and state.exhausted_until_ms(now_ms):
        return True
    known = state.windows
    return any(window.minutes in known and window.used_percent < known[window.minutes].used_percent for window in told.windows)


# ------------------------------------------------------------------------------------------------------------ rounds


def poll_due(*, seconds: float = ROUND_SECONDS, rng: Random = random.uniform) -> int:
    """Polls what is due, at most SIDE_BY_SIDE at once in the whole install, for about so many seconds; returns how many were asked.

    One process does it at a time: another returns 0. Raises RedisUnavailable.
    """
    client = weir_redis.sync_client()
    lock = client.lock(RUNNING, timeout=RUNNING_SECONDS, thread_local=False)
    with weir_redis.translated():
        if not lock.acquire(blocking=False):
            return 0
    try:
        with weir_redis.translated():
            is_to_be_planned = bool(client.set(PLANNED, "1", nx=True, ex=PLANNED_SECONDS))
        if is_to_be_planned:
            plan(rng=rng)
        until = time.monotonic() + seconds
        first = due.take()
        if first is None:
            return 0
        # Each takes the next by itself: an upstream that hangs for one account does not keep the others waiting.
        with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE, thread_name_prefix="polls") as threads:
            starts = [first, *[None] * (SIDE_BY_SIDE - 1)]
            return sum(threads.map(lambda start: _work(start, until, rng), starts))
    finally:
        try:
            lock.release()
        except redis_py.exceptions.RedisError:
            logger.info("the lock of polls was not given back")


def _work(account_id: int | None, until: float, rng: Random) -> int:
    """One thread's share of a round, begun with an account that was taken already."""
    count = 0
    try:
        while True:
            if account_id is None:
                if time.monotonic() >= until:
                    return count
                account_id = due.take()
                if account_id is None:
                    return count
            count += _poll_taken(account_id, rng)
            account_id = None
    except weir_redis.RedisUnavailable:
        logger.warning("polls end: redis does not answer")
        return count
    finally:
        connection.close()


def _poll_taken(account_id: int, rng: Random) -> bool:
    """Whether it was asked. One that was asked a moment ago, or is being asked, waits."""
    with scope.everything():
        row = _row(account_id)
        now = utc_now()
        if row is not None and row.polled_at is not None and now - row.polled_at < timedelta(seconds=SHORTEST_GAP_SECONDS):
            due.put(account_id, due.server_ms() + round(1000 * SHORTEST_GAP_SECONDS))
            return False
    try:
        polled = poll(account_id, rng=rng)
    except weir_redis.RedisUnavailable:
        raise
    except Exception:
        # One that cannot be asked must not keep the others from it; it is due again in a while.
        logger.exception("poll failed", extra={"account_id": account_id})
        return False
    if polled.outcome == BUSY:
        due.put(account_id, due.server_ms() + round(1000 * SHORTEST_GAP_SECONDS))
        return False
    return polled.outcome != OUT


def plan(*, rng: Random = random.uniform) -> int:
    """Gives every sign-in account that has no next poll one: soon if nothing is known of it, or nothing new (it would be trusted
    otherwise); else somewhere in the next interval. Returns how many. Raises RedisUnavailable."""
    with scope.everything():
        rows = list(
            PoolAccount.objects.filter(kind=PoolAccount.Kind.CHATGPT)
            .exclude(status__in=credentials.OUT)
            .values_list("pk", "pool_id", "pool__organization_id")
        )
    missing = set(due.missing(pk for pk, _, _ in rows))
    if not missing:
        return 0
    now_ms = due.server_ms()
    planned = {}
    for pk, pool_id, organization_id in rows:
        if pk in missing:
            state = live.state_of(live.pool_live_key(pool_id, organization_id), pk)
            within = STALE_WITHIN_SECONDS if _is_stale(state.windows.values(), now_ms) else INTERVAL_SECONDS
            planned[pk] = now_ms + round(1000 * rng(0.0, within))
    due.fill(planned)
    return len(planned)


def _is_stale(windows: Iterable[live.Window], now_ms: int) -> bool:
    """Nothing is known that still holds: no window, one that has ended, or the newest was seen too long ago."""
    found = list(windows)
    newest = max((window.observed_ms for window in found), default=0)
    return newest < now_ms - STALE_SECONDS * 1000 or any(window.is_over(now_ms) for window in found)
