"""Names and prices through the front door: aliases, organizations' own prices, the fallback; by the moment of admission."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import Organization
from billing import aliases, overrides
from billing.models import RateAlias
from billing.overrides import Terms
from config import snapshot
from config.clock import utc_now
from tests import factories
from tests.flows.tenants import MODEL, Tenant, cost, in_thread
from tests.proxy.conftest import Gateway, check_counters, is_clean, logged
from tests.proxy.test_exchange_clients import read_deltas
from tests.upstream import ScriptedUpstream

MakeTenant = Callable[..., Any]
USAGE = {"input_tokens": 1000, "output_tokens": 100, "total_tokens": 1100}
DOUBLE = Terms(input=250_000_000, cached_input=25_000_000, output=1_500_000_000)
SAMPLE = {"openai-model": MODEL}


@pytest.fixture
async def alias(gateway: Gateway) -> AsyncIterator[str]:
    """A name that stands for MODEL until the test ends."""
    name = factories.unique("alias")
    row: RateAlias = await in_thread(aliases.add, name, MODEL, now=utc_now())
    yield name
    await in_thread(aliases.end, row, now=utc_now())


@pytest.mark.parametrize("kind", ["openai", "chatgpt"])
async def test_an_alias_is_asked_and_priced_as_its_model(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, alias: str, kind: str
) -> None:
    """The upstream never sees the name, the client reads its own in the header that Codex warns by."""
    one: Tenant = await tenant(account=kind)
    upstream.script({"usage": USAGE, "headers": SAMPLE}, token=one.upstream_token)
    got = await gateway.post(one, model=alias)
    assert got.status_code == 200
    assert (got.headers["openai-model"], got.headers["x-weir-served-model"]) == (alias, MODEL)
    [received] = upstream.received(token=one.upstream_token)
    assert received.json["model"] == MODEL
    [row] = await logged(one)
    assert (row.model_asked, row.lines[0]["model"], row.credits) == (alias, MODEL, cost(input=1000, output=100))
    await check_counters(one, [row])


async def test_a_stream_by_an_alias_that_is_aborted_is_priced_at_the_model(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, alias: str
) -> None:
    """B8: the partial row has a price, that of the model the alias stands for."""
    one: Tenant = await tenant()
    upstream.script({"deltas": 200, "event_delay": 0.02}, token=one.upstream_token)
    await read_deltas(gateway, one, 40, model=alias)
    [row] = await logged(one)
    assert (row.status, row.is_estimated, row.model_asked) == ("client_closed", True, alias)
    assert row.lines[0]["model"] == MODEL
    assert row.credits == cost(input=row.input_tokens, output=row.output_tokens) > 0
    await check_counters(one, [row])


async def test_only_who_may_use_the_model_may_use_its_alias(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream, alias: str
) -> None:
    """A17 in part: another name is no way round."""
    one: Tenant = await tenant()
    one.key.row.allowed_models = ["gpt-5.4"]
    await in_thread(one.key.row.save)
    await in_thread(snapshot.bump, one.organization.pk)
    got = await gateway.post(one, model=alias)
    assert (got.status_code, got.json()["error"]["code"]) == (400, "model_not_allowed")
    assert upstream.received(token=one.upstream_token) == []
    assert await is_clean(one)
    listed = await gateway.get(one, "/v1/models")
    assert [model["id"] for model in listed.json()["data"]] == ["gpt-5.4"]


async def test_the_very_next_request_is_priced_by_an_organizations_new_price(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """C17: and the one before it never again."""
    one: Tenant = await tenant()
    other: Tenant = await tenant()
    for token in (one.upstream_token, other.upstream_token):
        upstream.script(*[{"usage": USAGE}] * 3, token=token)
    assert (await gateway.post(one)).status_code == 200
    row = await in_thread(overrides.set_override, one.organization, MODEL, DOUBLE, now=utc_now())
    assert (await gateway.post(one)).status_code == 200
    assert (await gateway.post(other)).status_code == 200
    before, after = await logged(one, 2)
    [theirs] = await logged(other)
    standard = cost(input=1000, output=100)
    assert (before.credits, after.credits, theirs.credits) == (standard, 2 * standard, standard)
    assert before.rate_id == theirs.rate_id
    assert before.rate_id is not None
    assert before.rate_id > 0
    assert (after.rate_id, after.lines[0]["rate_id"]) == (-row.pk, -row.pk)
    assert await in_thread(overrides.row_of, -row.pk) == row
    await in_thread(overrides.end, row, now=utc_now() + timedelta(seconds=2))
    await check_counters(one, [before, after])


async def test_what_has_no_rate_is_priced_by_the_fallback_where_that_was_chosen(
    gateway: Gateway, tenant: MakeTenant, upstream: ScriptedUpstream
) -> None:
    """C13: never 0; the record names the fallback's row and the model that was asked."""
    one: Tenant = await tenant()
    name = f"gpt-9-new-{one.organization.pk}"
    upstream.script({"usage": USAGE}, token=one.upstream_token)
    fallback = await in_thread(overrides.set_override, one.organization, "fallback", DOUBLE, now=utc_now())
    assert (await gateway.post(one, model=name)).status_code == 400
    chosen = {"unpriced_models": Organization.UnpricedModels.FALLBACK}
    await in_thread(Organization.objects.filter(pk=one.organization.pk).update, **chosen)
    await in_thread(snapshot.bump, one.organization.pk)
    assert (await gateway.post(one, model=name)).status_code == 200
    [row] = await logged(one)
    assert (row.rate_id, row.model_asked, row.credits) == (-fallback.pk, name, 2 * cost(input=1000, output=100))
    assert row.lines[0]["model"] in (name, row.model_served)
