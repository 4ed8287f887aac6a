"""One sum: files by every grouping, requests file, page, API, ledger and invoices of the same time agree to the last digit."""

import csv
import io
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db.models import Sum
from django.test import Client

from accounts import api_tokens
from billing import balances, credits, invoicing, subscriptions, usage, usage_report
from billing.models import Invoice, InvoiceLine, Plan, Subscription, UsageHour, UsageRecord
from config.clock import utc_now
from tests import factories, secrets
from tests.billing.usage_events import event_for, line
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.stack

GROUPINGS = usage_report.GROUPINGS


class Books:
    """A tenant whose plan began ten days ago, so that one period is over; with an owner's session and token."""

    def __init__(self) -> None:
        self.now = utc_now()
        self.tenant = tenants.make(plan=None, timezone="Europe/Berlin")
        organization = self.tenant.organization
        plus = Plan.objects.get(slug="plus")
        self.subscription = subscriptions.start(organization, plus, now=self.now - timedelta(days=10))
        self.core = factories.member(organization, team=factories.team(organization, "Core"))
        self.core_key = factories.api_key(self.core, name="=laptop")
        self.owner = factories.member(organization, role="owner")
        assert self.owner.user is not None
        client = Client()
        client.force_login(self.owner.user)
        self.session = client.cookies[settings.SESSION_COOKIE_NAME].value
        made = api_tokens.issue(self.owner, name="books", by=None, now=self.now)
        self.token = secrets.register(made.secret, "API token")

    def period(self, at: datetime) -> Any:
        return subscriptions.period_of(Subscription.objects.get(pk=self.subscription.pk), at)

    def event(self, **fields: Any) -> Any:
        key = self.core_key.row
        at = fields.pop("admitted_at", self.now - timedelta(minutes=5))
        start = self.period(at).start
        return event_for(key, admitted_at=at, period_start=start, team_id=self.core.team_id, **fields)

    def book(self, *events: Any) -> None:
        usage.record(self.tenant.organization.pk, events)

    def book_what_traffic_does_not_bring(self) -> None:
        """An orphan whose real end came later, two attempts with output, odd micro-credits, and one for the period that is over."""
        organization, account = self.tenant.organization, self.tenant.account
        assert account is not None
        before = self.now - timedelta(days=8)
        self.book(self.event(credits=700_001, admitted_at=before, lines=(line(credits=700_001, output=3),)))
        invoicing.close_due(organization.pk, now=self.now)
        orphan = self.event(credits=2_000_003, state="O", is_estimated=True)
        self.book(orphan)
        settled = (line("gpt-5.5", account_id=account.pk, input=100, output=7, credits=1_234_567),)
        self.book(self.event(credits=1_234_567, request_id=orphan.request_id, lines=settled, account_id=account.pk))
        two = (
            line("gpt-5.4", account_id=account.pk, input=10, output=1, credits=1_000_001),
            line("gpt-5.5", account_id=account.pk, input=10, cached_input=90, output=2, reasoning=1, credits=2_000_000),
        )
        self.book(self.event(credits=3_000_007, lines=two, account_id=account.pk, funds=(3_000_000, 0, 0, 7)))
        late = before + timedelta(hours=1)
        self.book(self.event(credits=11, admitted_at=late, status="client_closed", lines=(line(credits=11, input=1),)))

    def settled(self) -> bool:
        return UsageRecord.objects.filter(organization=self.tenant.organization).exclude(key=self.core_key.row).count() == 4

    def log(self) -> int:
        return int(UsageRecord.objects.filter(organization=self.tenant.organization).aggregate(sum=Sum("credits"))["sum"])

    def rollups(self) -> int:
        return int(UsageHour.objects.filter(organization=self.tenant.organization).aggregate(sum=Sum("credits"))["sum"])

    def ledger(self) -> int:
        return balances.balances(self.tenant.organization.pk)["usage"]

    def invoiced(self) -> int:
        """After the period that runs has been closed, too."""
        invoicing.close_due(self.tenant.organization.pk, now=self.period(self.now).end + timedelta(hours=1))
        lines = InvoiceLine.objects.filter(organization=self.tenant.organization, kind__in=list(invoicing.USAGE))
        return int(lines.aggregate(sum=Sum("credits"))["sum"])

    def invoices(self) -> list[Invoice]:
        return list(Invoice.objects.for_organization(self.tenant.organization))


async def traffic(stack: Stack, tenant: Tenant) -> None:
    """A plain one, one with cache and reasoning, one whose usage cannot be, one that fails with usage."""
    impossible = {"input_tokens": -1_000_000, "output_tokens": 5, "total_tokens": -999_995}
    plain = {"input_tokens": 1_000, "output_tokens": 77, "total_tokens": 1_077}
    cached = {
        "input_tokens": 900, "input_tokens_details": {"cached_tokens": 333}, "output_tokens": 41,
        "output_tokens_details": {"reasoning_tokens": 13}, "total_tokens": 941,
    }  # fmt: skip
    async with stack.client() as client:
        for script in (
            {"usage": plain},
            {"usage": cached},
            {"usage": impossible},
            {"usage": plain, "terminal": "response.incomplete"},
        ):
            stack.upstream.script(script, token=tenant.upstream_token)
            content = body(input="weir " * 1_000, max_output_tokens=500)
            answer = await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=content)
            assert answer.status_code == 200


def closing(content: bytes) -> dict[str, str]:
    *rows, total = csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True)
    assert (total["record"], int(total["rows"])) == ("total", len(rows))
    assert sum(credits.parse(row["credits"]) for row in rows) == credits.parse(total["credits"])
    return dict(total)


async def test_every_view_of_one_time_gives_one_sum(
    stack: Stack, upstream: ScriptedUpstream, transactional_db: None, eventually: Any
) -> None:
    """I3, D1: real traffic with an implausible one, an amended orphan, two attempts with output and a late one."""
    books = await in_thread(Books)
    organization = books.tenant.organization
    await traffic(stack, books.tenant)
    await eventually(books.settled, 15)
    await in_thread(books.book_what_traffic_does_not_bring)

    first, last = books.now - timedelta(days=12), books.now + timedelta(days=1)
    days = {"start": first.date().isoformat(), "end": last.date().isoformat()}
    query = {"range": "custom", "from": days["start"], "to": days["end"]}
    path = f"{stack.url}/o/{organization.slug}/usage"
    found: dict[str, int] = {}
    async with stack.client(cookies={settings.SESSION_COOKIE_NAME: books.session}) as browser, stack.client() as program:
        for by in GROUPINGS:
            file = await browser.get(f"{path}/totals.csv", params={**query, "by": by})
            found[f"file by {by}"] = credits.parse(closing(file.content)["credits"])
            page = await browser.get(path, params={**query, "by": by})
            ((whole, part),) = re.findall(r'id="total">([^<]+)<span class="micro">([^<]+)</span>', page.text)
            found[f"page by {by}"] = credits.parse(whole.replace(",", "") + part)
            headers = {"authorization": f"Bearer {books.token}"}
            answer = await program.get(f"{stack.url}/api/v1/usage", params={**days, "by": by}, headers=headers)
            found[f"API by {by}"] = credits.parse(answer.json()["total"]["credits"])
            found[f"API's rows by {by}"] = sum(credits.parse(row["credits"]) for row in answer.json()["rows"])
        requests = await browser.get(f"{path}/requests.csv", params=query)
        total = closing(requests.content)
    found["requests file"] = credits.parse(total["credits"])
    funds = ("from_quota", "from_purchased", "from_overage", "overdraft")
    found["requests file's funds"] = sum(credits.parse(total[name]) for name in funds)
    found["log"] = await in_thread(books.log)
    found["hourly sums"] = await in_thread(books.rollups)
    found["ledger"] = await in_thread(books.ledger)
    found["invoices"] = await in_thread(books.invoiced)
    assert len(set(found.values())) == 1, found

    # The odd ones are in it: 0.700001 + 1.234567 + 3.000007 + 0.000011 beside the traffic.
    rows = list(csv.DictReader(io.StringIO(requests.text, newline="")))[:-1]
    traffic_rows = [row for row in rows if row["member_id"] == str(books.tenant.member.uuid)]
    assert len(traffic_rows) == 4
    assert [row["implausible"] for row in traffic_rows].count("true") == 1
    assert found["log"] - sum(credits.parse(row["credits"]) for row in traffic_rows) == 4_934_586
    assert {row["key_name"] for row in rows} == {"laptop", "'=laptop"}
    assert sorted(row["part"] for row in rows) == ["0"] * 8 + ["1"]
    assert len(await in_thread(books.invoices)) == 2
