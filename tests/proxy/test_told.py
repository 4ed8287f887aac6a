"""What Codex is told of its key's own limits: headers, the frame, the usage answer, the accounts check. Never the pool's."""

import json
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from billing import ledger
from billing.models import Plan
from config.clock import utc_now
from config.redis import client
from proxy import told
from quotas import admission, filters, limits
from quotas.gauges import Gauge
from tests import factories
from tests.flows.tenants import Tenant, in_thread
from tests.proxy.conftest import Gateway, logged, set_limit
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, credits_of
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]

HOUR, DAY, WEEK, MONTH = 3600, 86_400, 7 * 86_400, 30 * 86_400
USAGE_PATHS = ("/api/codex/usage", "/backend-api/wham/usage")
CHECK_PATHS = ("/api/codex/accounts/check", "/backend-api/wham/accounts/check")


def spent(credits: float) -> dict[str, Any]:
    """A scripted answer that costs so much at gpt-5.5's 750 credits for a million output tokens."""
    return {"usage": {"input_tokens": 0, "output_tokens": round(credits * 1_000_000 / 750)}}


def windows(headers: Any) -> dict[str, tuple[str, str]]:
    """Percent and minutes by slot, as the headers say."""
    return {
        slot: (headers[f"x-codex-{slot}-used-percent"], headers[f"x-codex-{slot}-window-minutes"])
        for slot in ("primary", "secondary")
        if f"x-codex-{slot}-used-percent" in headers
    }


# ------------------------------------------------------------------------------------------------------------- choice


def gauge(seconds: int, used: int, **fields: Any) -> Gauge:
    return Gauge(seconds, fields.pop("metric", "credits"), used, 100, 2_000_000_000, **fields)


def test_the_shortest_window_is_first_and_the_fullest_of_the_longer_ones_second() -> None:
    short, day, week, month = gauge(5 * HOUR, 3), gauge(DAY, 40), gauge(WEEK, 20), gauge(MONTH, 39, is_plan=True)
    assert told.chosen([month, week, short, day]) == (short, day)
    assert told.chosen([month, week, short]) == (short, month)
    assert told.chosen([week, month]) == (week, month)


def test_a_limit_that_stops_requests_is_always_among_the_two() -> None:
    lengths = (5 * HOUR, DAY, WEEK, MONTH)
    for full in lengths:
        both = told.chosen([gauge(seconds, 100 if seconds == full else 60) for seconds in lengths])
        assert 100 in [one.used for one in both if one is not None]


def test_of_one_length_the_fullest_stands_for_all_whatever_it_counts() -> None:
    mine, teams = gauge(WEEK, 20), gauge(WEEK, 70, metric="requests")
    assert told.chosen([mine, teams]) == (teams, None)
    assert told.chosen([gauge(WEEK, 70), teams])[0] == gauge(WEEK, 70)


def test_a_week_and_the_plan_come_before_others_as_long_as_nothing_is_used() -> None:
    short, day, week, plan = gauge(5 * HOUR, 0), gauge(DAY, 0), gauge(WEEK, 0), gauge(MONTH, 0, is_plan=True)
    assert told.chosen([short, day, plan, week]) == (short, week)
    assert told.chosen([short, day, plan]) == (short, plan)


def test_limits_of_some_models_and_no_limits_choose_nothing() -> None:
    assert told.chosen([gauge(WEEK, 100, models="Sol")]) == (None, None)
    assert told.chosen([]) == (None, None)


# ------------------------------------------------------------------------------------------------------------ headers


async def test_headers_speak_of_the_keys_limits_and_never_of_the_pools(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """N6: key limit 40 credits, the account's own windows at 81 and 64 percent of far more."""
    one: Tenant = await tenant(account="chatgpt")
    assert one.account is not None
    upstream.windows(one.account.chatgpt_account_id, short_percent=81, week_percent=64)
    await set_limit(one, scope="key", metric="credits", window="5h", amount="40")
    for costs, percent in ((12, "0"), (3, "30"), (3, "37.5")):
        upstream.script(spent(costs), token=one.upstream_token)
        got = await gateway.post(one, stream=costs == 3)
        assert got.status_code == 200
        assert windows(got.headers)["primary"] == (percent, "300")
    seconds = utc_now().timestamp()
    assert 5 * HOUR < int(got.headers["x-codex-primary-reset-at"]) - seconds < 5 * HOUR + 601
    assert windows(got.headers)["secondary"] == ("0", "10080")
    assert "x-codex-primary-reset-after-seconds" not in got.headers
    names = {name for name in got.headers if name.startswith("x-codex-")}
    slots = {
        f"x-codex-{slot}-{what}" for slot in ("primary", "secondary") for what in ("used-percent", "window-minutes", "reset-at")
    }
    credits = {f"x-codex-credits-{what}" for what in ("has-credits", "unlimited", "balance")}
    assert names == slots | credits | {"x-codex-limit-name", "x-codex-turn-state"}
    assert [got.headers[name] for name in sorted(credits)] == ["0", "false", "false"]
    await logged(one, 3)


async def test_a_refusal_tells_the_window_that_refused(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    """L7: 120 of 100 used: nothing is left and all is used, in the answer, its headers, and both usage answers."""
    one: Tenant = await tenant()
    await set_limit(one, scope="key", metric="credits", window="week", amount="100")
    upstream.script(spent(120), token=one.upstream_token)
    assert (await gateway.post(one, max_output_tokens=10)).status_code == 200
    got = await gateway.post(one, max_output_tokens=10)
    error = got.json()["error"]
    assert (got.status_code, error["code"], error["used"], error["limit"]) == (429, "limit_reached", "120", "100")
    assert windows(got.headers) == {"primary": ("100", "10080")}
    assert int(got.headers["x-codex-primary-reset-at"]) == error["resets_at"]
    [limit] = (await gateway.get(one, "/v1/usage")).json()["limits"]
    assert (limit["used"], limit["remaining"]) == ("120", "0")
    told_of = (await gateway.get(one, USAGE_PATHS[0])).json()["rate_limit"]
    assert (told_of["allowed"], told_of["limit_reached"]) == (False, True)
    assert told_of["primary_window"]["used_percent"] == 100
    assert told_of["primary_window"]["reset_at"] == limit["resets_at"] == error["resets_at"]


async def test_the_plans_quota_is_a_window_too(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    got = await gateway.post(one)
    assert windows(got.headers) == {"primary": ("0", "10080")}
    period = (await gateway.get(one, "/v1/usage")).json()["period"]
    assert int(got.headers["x-codex-primary-reset-at"]) == datetime.fromisoformat(period["end"]).timestamp()


async def test_too_many_at_once_and_no_account_tell_no_false_window(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """A rate has no window. An exhausted pool refuses with the key's windows as they stand: not used up (N6)."""
    one: Tenant = await tenant(account="chatgpt")
    await set_limit(one, scope="key", metric="credits", window="5h", amount="40")
    await set_limit(one, scope="key", metric="requests_per_minute", window="", amount="1")
    used_up = {"error": {"type": "usage_limit_reached", "message": "Used up", "resets_at": int(time.time()) + 7200}}
    upstream.script({"error": "429_usage", "body": used_up}, repeat=0, token=one.upstream_token)
    exhausted = await gateway.post(one)
    assert (exhausted.status_code, exhausted.json()["error"]["code"]) == (429, "pool_exhausted")
    assert windows(exhausted.headers) == {"primary": ("0", "300"), "secondary": ("0", "10080")}
    busy = await gateway.post(one)
    assert (busy.status_code, busy.json()["error"]["type"]) == (429, "rate_limit_exceeded")
    assert windows(busy.headers) == {}


async def test_a_key_that_is_nobodys_is_told_nothing(gateway: Gateway, tenant: MakeTenant) -> None:
    headers = {"authorization": "Bearer wr_0123456789_" + "x" * 43}
    got = await gateway.client.post(f"{gateway.url}/v1/responses", headers=headers, content=b"{}")
    assert got.status_code == 401
    assert [name for name in got.headers if name.startswith("x-codex")] == []
    for path in (*USAGE_PATHS, *CHECK_PATHS):
        assert (await gateway.client.get(f"{gateway.url}{path}", headers=headers)).status_code == 401


# -------------------------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize("path", USAGE_PATHS)
async def test_usage_is_told_in_the_upstreams_shape(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, path: str
) -> None:
    """N6: 12.3 of 40 credits are 30 percent, whatever the pool holds. Whole numbers: clients read integers there."""
    one: Tenant = await tenant(account="chatgpt")
    await set_limit(one, scope="key", metric="credits", window="5h", amount="40")
    await set_limit(one, scope="organization", metric="tokens", window="week", amount="1000000")
    upstream.script(spent(12.3), token=one.upstream_token)
    await gateway.post(one)
    got = await gateway.get(one, path)
    value = got.json()
    assert got.status_code == 200
    assert value["plan_type"] == "team"
    limit = value["rate_limit"]
    assert (limit["allowed"], limit["limit_reached"]) == (True, False)
    first, second = limit["primary_window"], limit["secondary_window"]
    assert (first["used_percent"], first["limit_window_seconds"]) == (30, 5 * HOUR)
    assert (second["used_percent"], second["limit_window_seconds"]) == (1, WEEK)
    now = utc_now().timestamp()
    for window in (first, second):
        assert set(window) == {"used_percent", "limit_window_seconds", "reset_after_seconds", "reset_at"}
        assert {type(number) for number in window.values()} == {int}
        assert abs(window["reset_at"] - window["reset_after_seconds"] - now) < 5
    assert value["credits"] == {"has_credits": False, "unlimited": False, "balance": "0", "overage_limit_reached": False}
    assert value["additional_rate_limits"] is None
    assert not re.search(r"\b9000\b", got.text)
    assert one.account is not None
    assert str(one.account.chatgpt_account_id) not in got.text


async def test_usage_without_a_plan_is_told_as_not_allowed(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant(plan=None)
    value = (await gateway.get(one, USAGE_PATHS[1])).json()
    assert value["rate_limit"] == {"allowed": False, "limit_reached": True, "primary_window": None, "secondary_window": None}


async def test_only_what_reads_is_served(gateway: Gateway, tenant: MakeTenant) -> None:
    one: Tenant = await tenant()
    for path in (*USAGE_PATHS, *CHECK_PATHS):
        url = f"{gateway.url}{path}"
        assert (await gateway.client.head(url, headers=one.headers)).status_code == 200
        got = await gateway.client.post(url, headers=one.headers, content=b"{}")
        assert (got.status_code, got.json()["error"]["code"]) == (405, "method_not_allowed")


# ----------------------------------------------------------------------------------------------------- accounts check


@pytest.mark.parametrize("path", CHECK_PATHS)
async def test_the_check_lists_the_account_that_asks_once_and_sends_it_nowhere_else(
    gateway: Gateway, tenant: MakeTenant, path: str
) -> None:
    one: Tenant = await tenant(account="chatgpt")
    headers = {**one.headers, "chatgpt-account-id": "acct_of_the_client"}
    value = (await gateway.client.get(f"{gateway.url}{path}", headers=headers)).json()
    [account] = value["accounts"]
    assert (account["id"], account["workspace_backend_origin"], account["account_routing_override"]) == (
        "acct_of_the_client",
        "NO_CONSTRAINT",
        "NO_CONSTRAINT",
    )
    assert (value["account_ordering"], value["default_account_id"]) == (["acct_of_the_client"], "acct_of_the_client")
    for headers in (one.headers, {**one.headers, "chatgpt-account-id": "x" * 129}):
        value = (await gateway.client.get(f"{gateway.url}{path}", headers=headers)).json()
        assert value["default_account_id"] == one.key.row.public_id


# --------------------------------------------------------------------------------------------- frame, credits, filters


async def test_purchased_credits_are_the_balance_and_keep_a_used_up_plan_open(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    slug = factories.unique("topped")
    await in_thread(topped_plan, slug)
    one: Tenant = await tenant(plan=slug)
    await in_thread(ledger.grant, one.organization, 20 * CREDIT, reason="test", actor=None, now=utc_now())
    upstream.script(spent(12), spent(3), token=one.upstream_token)
    for percent, balance in (("0", "20"), ("100", "18")):
        got = await gateway.post(one, max_output_tokens=10)
        assert got.headers["x-codex-primary-used-percent"] == percent
        assert got.headers["x-codex-credits-has-credits"] == "true"
        assert got.headers["x-codex-credits-balance"] == balance
    value = (await gateway.get(one, USAGE_PATHS[0])).json()
    assert (value["rate_limit"]["allowed"], value["rate_limit"]["primary_window"]["used_percent"]) == (True, 100)
    assert (value["credits"]["has_credits"], value["credits"]["balance"]) == (True, "15")


def topped_plan(slug: str) -> None:
    """10 credits a week, and purchased ones beyond."""
    plan = Plan.objects.get(slug="plus")
    plan.pk, plan.slug, plan.name, plan._state.adding = None, slug, slug, True
    plan.base_quota, plan.overage_policy = 10 * CREDIT, "purchased"
    plan.save()


async def test_a_limit_of_some_models_is_told_apart(gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream) -> None:
    one: Tenant = await tenant()
    of = one.key.row.public_id
    fields = {"scope": "key", "of": of, "metric": "credits", "window": "7d", "amount": "3", "models": ("gpt-5.5",), "by": None}
    await in_thread(limits.set_limit, one.organization, **fields)
    await in_thread(filters.fill, one.organization.pk)
    upstream.script(spent(3), token=one.upstream_token)
    assert windows((await gateway.post(one, max_output_tokens=10)).headers) == {"primary": ("0", "10080")}
    value = (await gateway.get(one, USAGE_PATHS[0])).json()
    assert (value["rate_limit"]["limit_reached"], value["rate_limit"]["secondary_window"]) == (False, None)
    [family] = value["additional_rate_limits"]
    assert set(family) == {"limit_name", "metered_feature", "rate_limit"}
    assert "gpt-5.5" in family["limit_name"]
    assert family["rate_limit"]["limit_reached"] is True
    window = family["rate_limit"]["primary_window"]
    assert (window["used_percent"], window["limit_window_seconds"]) == (100, WEEK)
    refused = await gateway.post(one, max_output_tokens=10)
    assert (refused.status_code, windows(refused.headers)) == (429, {"primary": ("100", "10080")})


async def test_the_frame_says_what_the_headers_say(transactional_db: None) -> None:
    tenant = await in_thread(tenancy.make)
    await in_thread(tenant.set_limit, "40", scope="key", window="5h")
    loaded = await in_thread(tenant.snapshot)
    redis = client()
    try:
        admitted = await admission.admit(
            redis, loaded, tenant.key_of(loaded), request_id="req_frame", need=credits_of(1), about=tenant.about
        )
        await admission.settle(redis, admitted.hold, amount=credits_of(10), body=tenant.body())
        admitted = await admission.admit(
            redis, loaded, tenant.key_of(loaded), request_id="req_frame2", need=credits_of(1), about=tenant.about
        )
        again = await admission.admit(
            redis, loaded, tenant.key_of(loaded), request_id="req_frame2", need=credits_of(1), about=tenant.about
        )
    finally:
        await redis.close()
    frame = json.loads(told.rate_limits_frame(admitted))
    assert (frame["type"], frame["plan_type"], frame["metered_limit_name"]) == ("codex.rate_limits", "team", "codex")
    limits = frame["rate_limits"]
    assert (limits["allowed"], limits["limit_reached"]) == (True, False)
    assert (limits["primary"]["used_percent"], limits["primary"]["window_minutes"]) == (25, 300)
    assert limits["secondary"]["window_minutes"] == 10_080
    headers = {name.decode(): value.decode() for name, value in told.headers(admitted)}
    for slot in ("primary", "secondary"):
        assert float(headers[f"x-codex-{slot}-used-percent"]) == limits[slot]["used_percent"]
        assert int(headers[f"x-codex-{slot}-reset-at"]) == limits[slot]["reset_at"]
    assert frame["credits"] == {"has_credits": False, "unlimited": False, "balance": "0"}
    # The answer to a repeated admission tells nothing, and so nothing is told.
    assert told.rate_limits_frame(again) == b""
    assert told.headers(again) == []
