"""Usage polls against the scripted upstream."""

import io
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from accounts.models import AuditEvent, Organization
from config import snapshot
from config.clock import utc_now
from config.redis import Redis, sync_client
from routing import accounts, credentials, due, health, live, plans, polls, pools, tasks
from routing.failures import Failure, Kind
from routing.models import PoolAccount
from tests.routing import made
from tests.routing.test_credentials import pool_of
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.django_db(transaction=True)

USAGE_PATH = "/backend-api/wham/usage"


def middle(low: float, high: float) -> float:
    """Chance, without it."""
    return (low + high) / 2


@pytest.fixture(autouse=True)
def alone(remote: ScriptedUpstream) -> Iterator[ScriptedUpstream]:
    """Nothing is due but what a test makes due; accounts of other tests are planned for later."""
    plan_nobody()
    yield remote
    plan_nobody()


def plan_nobody() -> None:
    far = due.server_ms() + 10_000_000
    sync_client().delete(due.DUE, polls.RUNNING)
    everybody = PoolAccount.objects.filter(kind="chatgpt").values_list("pk", flat=True)
    due.fill(dict.fromkeys(everybody, far))
    sync_client().set(polls.PLANNED, "1", ex=600)


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def join(organization: Organization, upstream: ScriptedUpstream, **options: Any) -> PoolAccount:
    """A sign-in account that no poll is due for."""
    account = accounts.add_chatgpt(
        organization, upstream.mint(**options), label=f"Ada {made.number()}", accept_terms=True, by=None, now=utc_now()
    )
    due.put(account.pk, due.server_ms() + 10_000_000)
    return account


def key_of(account: PoolAccount) -> str:
    return live.pool_live_key(account.pool_id, account.pool.organization_id)


def state(account: PoolAccount) -> live.AccountState:
    return live.state_of(key_of(account), account.pk)


def due_in(account: PoolAccount) -> float | None:
    """Seconds until the account's next poll."""
    score = sync_client().zscore(due.DUE, str(account.pk))
    return None if score is None else (score - due.server_ms()) / 1000


def exhaust(account: PoolAccount, *, seconds: int) -> int:
    """A 429 of a minute ago says that it is exhausted until then."""
    until = int(time.time()) + seconds
    ago = due.server_ms() - 60_000
    health._report.run(sync_client(), [key_of(account)], [account.pk, ago, 0, until])
    return until


# ---------------------------------------------------------------------------------------------------------- one poll


def test_a_poll_asks_with_the_accounts_own_token_and_stores_both_windows(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    account = join(organization, upstream, short_percent=42, week_percent=17)
    polled = polls.poll(account.pk, rng=middle)
    assert (polled.outcome, polled.told is not None and polled.told.plan) == ("ok", "plus")
    asked = upstream.received(account=account.chatgpt_account_id)
    assert [(one.method, one.path) for one in asked] == [("GET", USAGE_PATH)]
    assert asked[0].headers["chatgpt-account-id"] == account.chatgpt_account_id
    assert asked[0].token == credentials.load(account.pk).token
    found = state(account).windows
    assert {minutes: window.used_percent for minutes, window in found.items()} == {300: 42.0, 10_080: 17.0}
    account.refresh_from_db()
    assert account.poll_outcome == "ok"
    assert account.polled_at is not None
    assert utc_now() - account.polled_at < timedelta(seconds=30)
    assert due_in(account) == pytest.approx(300, abs=5)


def test_a_reset_that_is_granted_ends_the_wait_at_once(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N10 E18: blocked until +3 d; a fresh poll says 12 % with a new reset: selectable at once, and the new reset stored."""
    account = join(organization, upstream)
    exhaust(account, seconds=3 * 86_400)
    assert state(account).exhausted_until_ms(due.server_ms())
    reset = int(time.time()) + 7 * 86_400
    upstream.windows(account.chatgpt_account_id, short_percent=0, week_percent=12, week_reset_at=reset)
    polls.poll(account.pk, rng=middle)
    found = state(account)
    assert found.exhausted_until_ms(due.server_ms()) == 0
    assert (found.windows[10_080].used_percent, found.windows[10_080].resets_at) == (12.0, reset)


def test_a_window_that_was_seen_full_is_forgotten_when_a_poll_says_so(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """E18: the weekly window itself was reported full; on day 3 of 7 a poll reports 0 % and a new reset."""
    account = join(organization, upstream, week_percent=100)
    polls.poll(account.pk, rng=middle)
    assert state(account).exhausted_until_ms(due.server_ms())
    assert due_in(account) == pytest.approx(120, abs=5)
    reset = int(time.time()) + 4 * 86_400
    upstream.windows(account.chatgpt_account_id, week_percent=0, week_reset_at=reset)
    polls.poll(account.pk, rng=middle)
    found = state(account)
    assert found.exhausted_until_ms(due.server_ms()) == 0
    assert (found.windows[10_080].used_percent, found.windows[10_080].resets_at) == (0.0, reset)


def test_room_in_the_short_window_leaves_the_account_blocked_by_the_week(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """N12: short window 4 %, weekly 100 %: blocked until the weekly reset."""
    account = join(organization, upstream, short_percent=4, week_percent=100)
    exhaust(account, seconds=600)
    polls.poll(account.pk, rng=middle)
    found = state(account)
    assert found.exhausted_until_ms(due.server_ms()) == found.windows[10_080].resets_at * 1000
    assert found.windows[10_080].resets_at > time.time() + 6 * 86_400


def test_room_in_the_very_window_of_a_429_is_confirmed_by_a_second_poll(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """A stale replica may say so: the second poll comes soon, and is believed."""
    account = join(organization, upstream, short_percent=20)
    reset = exhaust(account, seconds=3000)
    upstream.windows(account.chatgpt_account_id, short_reset_at=reset)
    polls.poll(account.pk, rng=middle)
    assert state(account).exhausted_until == reset
    assert due_in(account) == pytest.approx(15, abs=5)
    polls.poll(account.pk, rng=middle)
    assert state(account).exhausted_until == 0
    assert due_in(account) == pytest.approx(300, abs=5)


def test_a_429_that_came_while_a_poll_was_under_way_stands(organization: Organization, upstream: ScriptedUpstream) -> None:
    """The answer is as old as its question."""
    account = join(organization, upstream, short_percent=60)
    upstream.script({"hold": {"name": "poll"}}, path=USAGE_PATH)
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(in_own_connection, polls.poll, account.pk)
        while not upstream.received(account=account.chatgpt_account_id):
            time.sleep(0.01)
        until = int(time.time()) + 900
        health._report.run(sync_client(), [key_of(account)], [account.pk, 0, 0, until])
        upstream.release("poll")
        assert polling.result(20).outcome == "ok"
    assert state(account).exhausted_until == until


def test_a_window_that_has_been_reset_is_unknown_and_asked_for_at_once(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """N11: last sample 100 %, its reset passed 5 s ago: not exhausted, not 0 %, and the poll that it waits for is due."""
    account = join(organization, upstream, short_percent=100)
    reset = int(time.time()) + 400
    upstream.windows(account.chatgpt_account_id, short_reset_at=reset)
    polls.poll(account.pk, rng=middle)
    # With a reset within the usual interval, the next poll is right after it.
    upstream.windows(account.chatgpt_account_id, short_reset_at=int(time.time()) + 60)
    polls.poll(account.pk, rng=middle)
    assert due_in(account) == pytest.approx(63, abs=2)
    passed = int(time.time()) - 5
    observed = due.server_ms() - 600_000
    sync_client().hset(key_of(account), f"{account.pk}:w", f"300=100:{passed}:{observed}:0:0:0")
    assert state(account).exhausted_until_ms(due.server_ms()) == 0
    assert shown(organization, account)["windows"] == {"5h": "unknown"}
    PoolAccount.objects.filter(pk=account.pk).update(polled_at=utc_now() - timedelta(minutes=5))
    due.put(account.pk, (passed + 3) * 1000)
    upstream.windows(account.chatgpt_account_id, short_percent=3, short_reset_at=int(time.time()) + 17_000)
    assert polls.poll_due(seconds=2, rng=middle) == 1
    assert shown(organization, account)["windows"]["5h"] == "3 %"


def shown(organization: Organization, account: PoolAccount, *arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("poll_accounts", organization.slug, *(arguments or ("--show",)), "--json", stdout=out)
    rows = [row for row in json.loads(out.getvalue())["accounts"] if row["id"] == str(account.uuid)]
    return dict(rows[0])


def in_own_connection(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_that_two_polls_in_a_row_name_is_the_accounts(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N15: claims say plus, the usage payload says free twice in a row: the plan becomes free and capacity follows."""
    account = join(organization, upstream, plan="plus")
    version = organization_version(organization)
    upstream.mint(account_id=account.chatgpt_account_id, plan="free")
    polls.poll(account.pk)
    account.refresh_from_db()
    assert (account.plan_type, account.reported_plan, weight(account)) == ("plus", "free", 1000)
    assert organization_version(organization) == version
    polls.poll(account.pk)
    account.refresh_from_db()
    assert (account.plan_type, account.reported_plan, weight(account)) == ("free", "", 100)
    assert organization_version(organization) == version + 1
    event = AuditEvent.objects.get(organization=organization, action="account.plan_changed")
    assert event.data == {"label": account.label, "before": "plus", "after": "free"}


def test_a_plan_that_is_named_once_changes_nothing(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N15: once is not enough, and once again later is once."""
    account = join(organization, upstream, plan="plus")
    for name in ("free", "plus", "free", "go", "free", "quite new", "free"):
        assert plans.reported(account.pk, name) is False
    account.refresh_from_db()
    assert (account.plan_type, account.reported_plan) == ("plus", "free")


@pytest.mark.parametrize(
    ("held", "told"),
    [("pro_200", "pro"), ("pro_5x", "pro"), ("pro", "pro_100"), ("business_premium", "team"), ("business_seat", "business")],
)
def test_a_name_that_does_not_say_the_size_agrees_with_every_size(
    organization: Organization, upstream: ScriptedUpstream, held: str, told: str
) -> None:
    """N15: a lead who said `pro_200` keeps that: the payload only says `pro`."""
    account = join(organization, upstream)
    PoolAccount.objects.filter(pk=account.pk).update(plan_type=held)
    assert [plans.reported(account.pk, told) for _ in range(3)] == [False] * 3
    account.refresh_from_db()
    assert (account.plan_type, account.reported_plan) == (held, "")


def test_signing_in_again_keeps_the_size_that_a_lead_named(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N15: the claims do not say it either."""
    account = join(organization, upstream, plan="pro")
    PoolAccount.objects.filter(pk=account.pk).update(plan_type="pro_200", weight_thousandths=17_000)
    again = join(organization, upstream, account_id=account.chatgpt_account_id)
    assert (again.pk, again.plan_type, again.weight_thousandths) == (account.pk, "pro_200", 17_000)
    other = join(organization, upstream, account_id=account.chatgpt_account_id, plan="plus")
    assert (other.plan_type, other.weight_thousandths) == ("plus", None)


def organization_version(organization: Organization) -> int:
    organization.refresh_from_db()
    return organization.config_version


def weight(account: PoolAccount) -> int:
    return next(one for one in pool_of(account).accounts if one.account_id == account.pk).weight


# ----------------------------------------------------------------------------------------------------- refused polls


def test_a_refused_token_is_renewed_and_asked_with_once_more(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream, short_percent=7)
    upstream.expire(account.chatgpt_account_id)
    assert polls.poll(account.pk).outcome == "ok"
    assert upstream.refreshes(account.chatgpt_account_id) == 1
    assert [one.status for one in upstream.received(path=USAGE_PATH)] == [401, 200]
    assert state(account).windows[300].used_percent == 7.0


def test_a_sign_in_that_cannot_be_renewed_is_needed_again_and_not_polled_any_more(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    account = join(organization, upstream)
    upstream.revoke(account_id=account.chatgpt_account_id)
    assert polls.poll(account.pk).outcome == "out"
    account.refresh_from_db()
    assert (account.status, account.status_reason, account.poll_outcome) == (
        "needs_sign_in",
        "refresh_token_invalidated",
        "out",
    )
    assert due_in(account) is None
    assert polls.poll(account.pk).outcome == "out"
    assert len(upstream.received(path=USAGE_PATH)) == 1
    assert AuditEvent.objects.filter(organization=organization, action="account.needs_sign_in").count() == 1
    # Signed in again, it is asked next.
    accounts.add_chatgpt(
        organization,
        upstream.mint(account_id=account.chatgpt_account_id),
        label="Ada",
        accept_terms=True,
        by=None,
        now=utc_now(),
    )
    assert sync_client().zscore(due.DUE, str(account.pk)) == 0


def test_an_account_whose_workspace_is_gone_needs_sign_in(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    upstream.script({"error": "402"}, path=USAGE_PATH)
    assert polls.poll(account.pk).outcome == "refused: 402 deactivated_workspace"
    account.refresh_from_db()
    assert (account.status, account.status_reason) == ("needs_sign_in", "deactivated_workspace")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"error": "500"}, "refused: 500 server_error"),
        ({"error": "429_plain"}, "refused: 429 429"),
        ({"status": 403, "body": "<html><title>Just a moment...</title></html>"}, "refused: 403 403"),
        ({"status": 200, "body": {"plan_type": "free"}}, "unreadable"),
        ({"status": 200, "body": "<html></html>"}, "unreadable"),
        ({"cut_before_head": True}, "unanswered: ReadError"),
    ],
)
def test_a_poll_that_comes_to_nothing_changes_nothing_and_is_repeated_soon(
    organization: Organization, upstream: ScriptedUpstream, answer: dict[str, Any], outcome: str
) -> None:
    account = join(organization, upstream)
    until = exhaust(account, seconds=900)
    upstream.script(answer, path=USAGE_PATH, repeat=2)
    assert polls.poll(account.pk, rng=middle).outcome == outcome
    assert due_in(account) == pytest.approx(60, abs=5)
    account.refresh_from_db()
    assert (account.status, account.plan_type, account.reported_plan, account.poll_outcome) == ("active", "plus", "", outcome)
    assert (state(account).exhausted_until, dict(state(account).windows), state(account).cooling_until_ms) == (until, {}, 0)
    # The next ones wait for their turn.
    assert polls.poll(account.pk, rng=middle).outcome == outcome
    assert due_in(account) == pytest.approx(300, abs=5)


def test_an_answer_that_drips_for_ever_is_given_up(
    organization: Organization, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "ANSWER_SECONDS", 0.3)
    account = join(organization, upstream)
    answer = {"status": 200, "body": "x" * 400, "chunk": 1, "chunk_delay": 0.05}
    upstream.script(answer, path=USAGE_PATH)
    began = time.monotonic()
    assert polls.poll(account.pk).outcome == "too slow"
    assert time.monotonic() - began < 5


def test_an_account_that_says_it_serves_nothing_cools_for_a_minute(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream, short_percent=99)
    usage = {"plan_type": "plus", "rate_limit": {"allowed": False, "limit_reached": True, "primary_window": None}}
    upstream.script({"status": 200, "body": usage}, path=USAGE_PATH)
    assert polls.poll(account.pk).outcome == "ok"
    assert state(account).cooling_until_ms - due.server_ms() == pytest.approx(60_000, abs=5_000)


# ------------------------------------------------------------------------------------------------- many, and at once


def test_one_account_is_polled_once_at_a_time(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    upstream.script({"hold": {"name": "one"}}, path=USAGE_PATH)
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(in_own_connection, polls.poll, account.pk)
        while not upstream.received(path=USAGE_PATH):
            time.sleep(0.01)
        assert polls.poll(account.pk).outcome == "busy"
        upstream.release("one")
        assert polling.result(20).outcome == "ok"
    assert len(upstream.received(path=USAGE_PATH)) == 1
    assert polls.poll(account.pk).outcome == "ok"


def test_what_is_due_in_one_minute_is_asked_few_at_once_and_each_once(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """E20: every account is reset in the same second, and two workers begin a round at the same time."""
    mine = [join(organization, upstream) for _ in range(20)]
    upstream.script({"delay": 0.1}, path=USAGE_PATH, repeat=20)
    for account in mine:
        due.put(account.pk, 1)
    rounds: list[int] = []
    both = [threading.Thread(target=lambda: rounds.append(in_own_connection(lambda: polls.poll_due(seconds=60)))) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60)
    assert sorted(rounds) == [0, 20]
    asked = upstream.received(path=USAGE_PATH)
    assert sorted(one.account or "" for one in asked) == sorted(account.chatgpt_account_id for account in mine)
    assert most_at_once([(one.at, one.ended_at or 0.0) for one in asked]) <= polls.SIDE_BY_SIDE
    # And their next turns are spread.
    turns = [due_in(account) or 0.0 for account in mine]
    assert min(turns) > 200
    assert max(turns) - min(turns) > 30


def most_at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(begun <= moment < ended for begun, ended in spans) for moment, _ in spans)


def test_an_upstream_that_hangs_for_one_account_keeps_nobody_waiting(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    slow, *others = (join(organization, upstream) for _ in range(12))
    upstream.script({"hold": {"name": "slow"}}, path=USAGE_PATH, account=slow.chatgpt_account_id)
    for number, account in enumerate([slow, *others]):
        due.put(account.pk, 1 + number)
    with ThreadPoolExecutor(1) as threads:
        polling = threads.submit(in_own_connection, polls.poll_due)
        deadline = time.monotonic() + 20
        while len(upstream.received(path=USAGE_PATH)) < 12 and time.monotonic() < deadline:
            time.sleep(0.02)
        done = [one.account for one in upstream.received(path=USAGE_PATH) if one.state == "done"]
        upstream.release("slow")
        assert polling.result(20) == 12
    assert slow.chatgpt_account_id not in done
    assert len(done) >= 10


def test_an_account_is_not_asked_again_within_seconds(organization: Organization, upstream: ScriptedUpstream) -> None:
    """A burst of 429s asks for one poll, not for one each."""
    account = join(organization, upstream)
    polls.poll(account.pk)
    due.soon(account.pk)
    assert polls.poll_due(seconds=1) == 0
    assert due_in(account) == pytest.approx(10, abs=3)
    assert len(upstream.received(path=USAGE_PATH)) == 1


async def test_an_account_that_is_refused_for_its_use_is_asked_next(organization: Organization, upstream: ScriptedUpstream) -> None:
    """E18 N10: what else is known of it is asked for at once; a burst asks for nothing."""
    account = await snapshot.in_thread(lambda: join(organization, upstream))
    pool = await snapshot.in_thread(pool_of, account)
    seen = next(one for one in pool.accounts if one.account_id == account.pk)
    redis = Redis(settings.REDIS_URL)
    await health.report(redis, pool, seen, Failure(Kind.RATE, movable=True, cooldown_seconds=2.0))
    assert (due_in(account) or 0) > 1000
    await health.report(redis, pool, seen, Failure(Kind.USAGE_LIMIT, movable=True, resets_at=int(time.time()) + 9_000))
    await redis.close()
    assert sync_client().zscore(due.DUE, str(account.pk)) == 0


def test_who_has_no_next_poll_gets_one_and_who_is_unknown_an_early_one(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """After Redis lost its memory: nothing is trusted that is old; the others are spread over the interval."""
    idle, known, paused, out = (join(organization, upstream) for _ in range(4))
    PoolAccount.objects.filter(pk=paused.pk).update(status="paused")
    PoolAccount.objects.filter(pk=out.pk).update(status="needs_sign_in")
    now = due.server_ms()
    fresh, old = f"10080=5:{now // 1000 + 90_000}:{now - 60_000}:0:0:0", f"10080=5:{now // 1000 + 90_000}:{now - 3_600_000}:0:0:0"
    sync_client().hset(key_of(known), f"{known.pk}:w", fresh)
    sync_client().hset(key_of(idle), f"{idle.pk}:w", old)
    for account in (idle, known, paused, out):
        due.drop(account.pk)
    assert polls.plan(rng=lambda low, high: high) == 3
    assert due_in(idle) == pytest.approx(20, abs=3)
    assert due_in(paused) == pytest.approx(20, abs=3)
    assert due_in(known) == pytest.approx(300, abs=3)
    assert due_in(out) is None
    assert polls.plan() == 0


def test_a_moved_account_is_asked_for_its_new_pool(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream, week_percent=33)
    second = pools.set_pool(organization, "Second", by=None).pool
    pools.move_account(account, second, by=None)
    assert tasks.poll_due_accounts() == 1
    account.refresh_from_db()
    assert (account.pool_id, state(account).windows[10_080].used_percent) == (second.pk, 33.0)


def test_a_poll_under_way_whose_process_dies_is_due_again(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream)
    due.put(account.pk, 1)
    assert due.take() == account.pk
    assert due.take() is None
    assert due_in(account) == pytest.approx(120, abs=3)


# ----------------------------------------------------------------------------------------------------------- by hand


def test_an_operator_polls_by_hand_and_reads_what_was_said(organization: Organization, upstream: ScriptedUpstream) -> None:
    account = join(organization, upstream, short_percent=40, week_percent=100)
    other = join(organization, upstream)
    row = shown(organization, account, "--account", account.label)
    assert (row["account"], row["plan"], row["status"], row["outcome"]) == (account.label, "plus", "active", "ok")
    assert row["windows"] == {"5h": "40 %", "week": "100 %"}
    assert row["blocked_until"] is not None
    assert row["polled_at"] is not None
    assert [one.account for one in upstream.received(path=USAGE_PATH)] == [account.chatgpt_account_id]
    assert shown(organization, other)["outcome"] is None
    out = io.StringIO()
    call_command("poll_accounts", organization.slug, stdout=out)
    assert out.getvalue().count(" ok") == 2
    assert "5h 40 %, week 100 %" in out.getvalue()
