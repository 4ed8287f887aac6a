"""People in a browser, whole stories: from an empty organization to the first request, and a file whose sum is the page's.

The other stories: a limit, its refusal, a request for more (`test_browser_limits`), accounts by each sign-in (`test_browser_pool`),
a provider (`test_browser_oidc`), a passkey (`test_browser_passkey`).
"""

import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db.models import Sum

from accounts.models import ApiKey, Job, Member
from billing import balances, credits
from billing.models import UsageRecord
from routing.models import PoolAccount
from tests import factories, ports, secrets
from tests.clients import chromium
from tests.flows import stack as processes
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.test_browser_limits import signed_in

pytestmark = [pytest.mark.browser, pytest.mark.stack]


def watched(browser: Any, problems: list[str], **options: Any) -> Any:
    """A tab of a browser of its own, whose console is collected."""
    context = browser.new_context(viewport={"width": 1280, "height": 1000}, **options)
    page = context.new_page()
    page.on("console", lambda told: problems.append(told.text) if told.type == "error" and "status of 4" not in told.text else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    return page


def test_an_empty_organization_comes_to_its_first_request(
    stack: Stack, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    """The owner adds an endpoint and invites; who was invited chooses a password, issues a key, calls with it, finds the call."""
    password, chosen = factories.password(), factories.password()
    organization = factories.organization(plan="plus", timezone="Europe/Berlin")
    owner = factories.member(organization, role="owner", password=password)
    assert owner.user is not None
    email = f"{factories.unique('invited')}@example.test"
    api_key = secrets.register(f"sk-{factories.unique('endpoint')}{'x' * 30}", "upstream API key")
    upstream.script({"usage": {"input_tokens": 0, "output_tokens": 2_000, "total_tokens": 2_000}}, token=api_key)
    web = processes.web("web-stories", stack.upstream.url, stack.logs, UPSTREAM_ALLOWED_NETWORKS="127.0.0.0/8")
    url, home = web.url, f"{web.url}/o/{organization.slug}"
    problems: list[str] = []
    try:
        web.wait_ready()
        with chromium.launched() as browser, django_db_blocker.block():
            boss = signed_in(browser, url, owner.user.email, password, problems)

            # First an address that answers nothing, then the endpoint; it needs no terms.
            boss.goto(f"{home}/pool")
            boss.get_by_role("main").get_by_role("link", name="Add account").last.click()
            boss.get_by_role("link", name="Compatible endpoint").click()
            boss.get_by_label("Base URL").fill(f"http://127.0.0.1:{ports.free()}/v1")
            boss.get_by_label("Name", exact=True).fill("Our gateway")
            boss.get_by_label("API key", exact=True).fill(api_key)
            boss.get_by_role("button", name="Add account").click()
            boss.locator("#add .error").first.wait_for()
            assert api_key not in boss.content()
            boss.get_by_label("Base URL").fill(f"{stack.upstream.url}/v1")
            boss.get_by_label("API key", exact=True).fill(api_key)
            boss.get_by_role("button", name="Add account").click()
            boss.get_by_text("Our gateway is in the pool and serves from the next request on.").wait_for()

            boss.get_by_role("link", name="Members & limits").click()
            boss.get_by_role("link", name="Invite member").click()
            boss.get_by_label("E-mail", exact=True).fill(email)
            boss.get_by_label("Role", exact=True).select_option("developer")
            boss.get_by_role("button", name="Make the link").click()
            boss.get_by_text(f"{email} is a member now.").wait_for()
            link = secrets.register(boss.inner_text("#link"), "link of an invitation")

            guest = watched(browser, problems)
            guest.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
            guest.goto(link)
            assert email in guest.inner_text("body")
            guest.get_by_label("Choose a password").fill("short")
            guest.get_by_role("button", name="Join").click()
            guest.locator(".error").first.wait_for()
            guest.get_by_label("Choose a password").fill(chosen)
            guest.get_by_role("button", name="Join").click()
            guest.wait_for_url(f"{home}/key")
            guest.get_by_label("Name of a new key").fill("laptop")
            guest.get_by_role("button", name="Issue key").click()
            guest.get_by_text("Copy it now; it is not shown again").wait_for()
            guest.locator(".secret").get_by_role("button", name="Copy").click()
            guest.locator(".secret").get_by_text("Copied").wait_for()
            key = secrets.register(guest.evaluate("navigator.clipboard.readText()"), "gateway key")

            answer = httpx.post(
                f"{url}/v1/responses", headers={"authorization": f"Bearer {key}"}, content=tenants.body(), timeout=30
            )
            assert answer.status_code == 200
            name = answer.headers["x-weir-request-id"]

            # The log fetches the row by itself once the ledger has it; opened, it says what the call cost.
            guest.get_by_role("link", name="Request log").click()
            row = guest.locator(f'[data-entry="{name}"]')
            row.wait_for(timeout=60_000)
            assert "1.50" in row.inner_text()
            row.locator("a.expand").press("Enter")
            row.locator(".open-row").wait_for()
            assert name in row.inner_text()
            assert "Our gateway" not in guest.content()
            boss.goto(f"{home}/requests")
            assert "Our gateway" in boss.locator(f'[data-entry="{name}"]').inner_text()

            # The link worked once.
            late = watched(browser, problems)
            late.goto(link)
            late.get_by_text("This link does not work").wait_for()
    finally:
        web.terminate()
    assert problems == []
    member = Member.objects.get(organization=organization, user__email=email)
    assert (member.role, member.removed_at) == ("developer", None)
    issued = ApiKey.objects.get(member=member)
    record = UsageRecord.objects.get(organization=organization)
    account = PoolAccount.objects.for_organization(organization).get()
    assert (record.request_id, record.key_id, record.account_id, record.credits) == (name, issued.pk, account.pk, 1_500_000)
    assert account.kind == "openai_compatible"


@contextmanager
def worker(stack: Stack) -> Iterator[None]:
    """A worker that makes exports, as the README starts it, on this run's services."""
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")
    process = processes.Process(
        name="reports",
        command=[sys.executable, "-m", "celery", "-A", "config.celery", "worker", "-Q", "reports", "--pool", "solo", *quiet],
        environ=processes.environment(stack.upstream.url),
        log=stack.logs / "reports.log",
    )
    process.start()
    try:
        yield
    finally:
        process.terminate()


def test_an_export_goes_on_while_one_is_away_and_adds_up(
    stack: Stack, tmp_path: Path, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    """Begun on one process with no worker there, left, found again on the other; its sum is the page's, the log's, the ledger's."""
    password = factories.password()
    organization = factories.organization(plan="plus", timezone="Europe/Berlin")
    finance = factories.member(organization, role="owner", password=password)
    key = factories.api_key(factories.member(organization))
    _, token = factories.openai_account(organization)
    assert finance.user is not None
    first, second = (web.url for web in stack.webs)
    slug = organization.slug
    for number in (1, 333, 1_999):
        upstream.script({"usage": {"input_tokens": 7, "output_tokens": number, "total_tokens": number + 7}}, token=token)
        headers = {"authorization": f"Bearer {key.secret}"}
        assert httpx.post(f"{first}/v1/responses", headers=headers, content=tenants.body(), timeout=30).status_code == 200
    costs = [tenants.cost(input=7, output=number) for number in (1, 333, 1_999)]
    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        page = signed_in(browser, first, finance.user.email, password, problems, accept_downloads=True)
        total = page.locator("#total")
        for _ in range(80):
            page.goto(f"{first}/o/{slug}/usage?by=day")
            if "3 requests" in page.inner_text(".answer"):
                break
            page.wait_for_timeout(250)
        shown = credits.parse(total.inner_text().replace(",", ""))

        page.get_by_role("button", name="Start").click()
        page.get_by_text("You can leave this page; it goes on without you.").wait_for()
        line = page.locator(".job[data-state]")
        assert line.get_attribute("data-state") == "waiting"
        assert line.locator("progress").count() == 1
        assert "You can leave this page; it goes on." in line.inner_text()
        page.get_by_role("link", name="Overview").click()
        page.wait_for_url(f"{first}/o/{slug}/overview")

        with worker(stack):
            # The same session on another process; the line follows the work without a reload.
            page.goto(f"{second}/o/{slug}/overview")
            page.get_by_role("link", name="Exports").click()
            page.wait_for_url(f"{second}/o/{slug}/jobs")
            page.evaluate("window.isSamePage = true")
            link = page.locator(".job[data-state=done]").get_by_role("link", name="Download")
            link.wait_for(timeout=60_000)
            assert page.evaluate("window.isSamePage")
        with page.expect_download() as fetched:
            link.click()
        file = tmp_path / "usage.csv"
        fetched.value.save_as(file)
        name = fetched.value.suggested_filename
        page.context.close()

    assert problems == []
    assert name.endswith(".csv")
    *rows, closing = csv.DictReader(io.StringIO(file.read_text(), newline=""), strict=True)
    assert sorted(credits.parse(row["credits"]) for row in rows) == costs
    assert (closing["record"], closing["rows"]) == ("total", "3")
    logged = UsageRecord.objects.filter(organization=organization).aggregate(sum=Sum("credits"))["sum"]
    sums = {credits.parse(closing["credits"]), shown, logged, balances.balances(organization.pk)["usage"], sum(costs)}
    assert len(sums) == 1, sums
    job = Job.objects.get(organization=organization)
    assert (job.state, job.member_id) == ("done", finance.pk)
