"""People at open pages: what they see moves by itself, also after the server was away, and nothing they are at is lost; a lead
changes many members at once, by keyboard, and takes it back."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from quotas.models import Limit
from tests import factories
from tests.clients import chromium
from tests.flows import stack as processes
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.test_browser_limits import signed_in

pytestmark = [pytest.mark.browser, pytest.mark.stack]

USAGE = {"input_tokens": 8_000, "output_tokens": 1_000, "total_tokens": 9_000}
"""1 + 0.75 = 1.75 credits of gpt-5.5."""


def test_pages_move_by_themselves_and_keep_what_one_is_at(
    stack: Stack, tmp_path: Path, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    password = factories.password()
    organization = factories.organization(plan="free")
    owner = factories.member(organization, role="owner", password=password)
    key = factories.api_key(owner)
    _, token = factories.openai_account(organization)
    assert owner.user is not None
    limit = Limit.objects.create(
        organization=organization, scope="member", member=owner, metric="credits", window="day", amount=10**9
    )
    upstream.script({"usage": USAGE}, token=token)
    # A web process of its own, to be stopped and started.
    web = processes.web("web-live", stack.upstream.url, stack.logs)
    web.wait_ready()
    home = f"{web.url}/o/{organization.slug}"

    def call() -> None:
        headers = {"authorization": f"Bearer {key.secret}"}
        answer = httpx.post(f"{stack.webs[0].url}/v1/responses", headers=headers, content=tenants.body(), timeout=30)
        assert answer.status_code == 200

    problems: list[str] = []
    try:
        with chromium.launched() as browser, django_db_blocker.block():
            page = signed_in(browser, web.url, owner.user.email, password, problems)
            page.goto(f"{home}/requests")
            page.locator(".live .word", has_text="Live").first.wait_for()
            call()
            rows = page.locator("tbody[data-entry]")
            rows.first.wait_for(timeout=30_000)

            # Opened by keyboard; what is opened stays open when the list grows.
            page.locator("tbody[data-entry] a.expand").first.focus()
            page.keyboard.press("Enter")
            page.locator("tbody[data-entry] .detail").wait_for()
            name = rows.first.get_attribute("data-entry")
            page.evaluate("() => { window.isTheSamePage = true; }")
            call()
            rows.nth(1).wait_for(timeout=30_000)
            assert page.locator(f'tbody[data-entry="{name}"] .detail').count() == 1
            page.locator(f'tbody[data-entry="{name}"] a.expand').focus()
            page.keyboard.press("Enter")
            page.locator("tbody[data-entry] .detail").wait_for(state="detached")

            # The server goes away: the page says so, and goes on when it is back, with what came meanwhile.
            web.terminate()
            page.locator(".live.lost .word", has_text="Not live").wait_for(timeout=30_000)
            call()
            web.start()
            web.wait_ready()
            page.locator(".live:not(.lost) .word", has_text="Live").wait_for(timeout=40_000)
            rows.nth(2).wait_for(timeout=30_000)
            assert page.evaluate("() => window.isTheSamePage") is True
            # What the browser says of a server that is away is no fault of the page.
            problems[:] = [told for told in problems if "WebSocket connection" not in told and "ERR_CONNECTION" not in told]

            # A form that is open keeps what was typed, while the rest of the page moves.
            page.goto(f"{home}/members")
            page.locator(".live .word", has_text="Live").first.wait_for()
            page.locator(f"#edit-{limit.uuid}").click()
            field = page.get_by_label(f"{owner}’s daily limit, in credits")
            field.fill("77")
            used = page.locator("#levels tbody tr").first.locator("td").nth(2)
            before = used.inner_text()
            call()
            for _ in range(60):
                if used.inner_text() != before:
                    break
                page.wait_for_timeout(250)
            assert used.inner_text() != before
            assert field.input_value() == "77"
            assert field.evaluate("element => element === document.activeElement") is True
            field.press("Enter")
            page.locator(".toast", has_text="daily limit is 77.00 credits from the next request on.").wait_for()
            assert "saved" in page.locator(f"#cell-{limit.uuid}").inner_text()
            page.locator(".toast").get_by_role("button", name="Undo").click()
            page.get_by_text("Undone: it is as it was before.").wait_for()
            assert "1,000" in page.locator(f"#cell-{limit.uuid}").inner_text()
        assert problems == []
    finally:
        web.terminate()


def test_a_lead_changes_many_at_once_by_keyboard_and_takes_it_back(
    stack: Stack, django_db_blocker: Any, transactional_db: None
) -> None:
    password = factories.password()
    organization = factories.organization()
    lead = factories.member(organization, role="lead", password=password)
    people = [factories.member(organization) for _ in range(3)]
    assert lead.user is not None
    url = stack.webs[0].url
    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        page = signed_in(browser, url, lead.user.email, password, problems)
        page.goto(f"{url}/o/{organization.slug}/members")
        page.get_by_label("Choose all that are shown").focus()
        page.keyboard.press("Space")
        page.get_by_text("3 chosen").wait_for()
        page.get_by_label(f"Choose {people[2]}").focus()
        page.keyboard.press("Space")
        page.get_by_text("2 chosen").wait_for()
        page.get_by_role("button", name="Set one limit…").focus()
        page.keyboard.press("Enter")
        page.get_by_label("At most").fill("25")
        page.get_by_role("button", name="Preview").focus()
        page.keyboard.press("Enter")
        table = page.locator("#many table")
        table.wait_for()
        assert table.locator("tbody tr").count() == 2
        assert "no limit" in table.inner_text()
        page.get_by_role("button", name="Change 2 members").focus()
        page.keyboard.press("Enter")
        page.locator(".toast", has_text="2 members are changed.").wait_for()
        assert page.locator("#people").inner_text().count("25.00") >= 2
        page.locator(".toast").get_by_role("button", name="Undo").click()
        page.get_by_text("Undone: it is as it was before.").wait_for()
        assert "25.00" not in page.locator("#people").inner_text()
    assert problems == []
    assert not Limit.objects.filter(organization=organization).exists()
