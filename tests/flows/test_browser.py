"""A person in a browser: sign in, issue a key, copy it, call the gateway with it, see the number move and the call on the page."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import factories, secrets
from tests.clients import chromium
from tests.flows import tenants
from tests.flows.conftest import Stack

pytestmark = [pytest.mark.browser, pytest.mark.stack]

USAGE = {"input_tokens": 8_000, "output_tokens": 1_000, "total_tokens": 9_000}
"""1 + 0.75 = 1.75 credits of gpt-5.5."""


def test_from_sign_in_to_the_first_metered_call(
    stack: Stack, tmp_path: Path, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    password = factories.password()
    organization = factories.organization(plan="free")
    developer = factories.member(organization, password=password)
    _, token = factories.openai_account(organization)
    assert developer.user is not None
    email = developer.user.email
    upstream.script({"usage": USAGE}, token=token)
    url = stack.webs[0].url

    with chromium.launched() as browser, django_db_blocker.block():
        context = browser.new_context(viewport={"width": 1440, "height": 1000})
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
        page = context.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))

        page.goto(url)
        page.get_by_label("Work e-mail").fill(email)
        page.get_by_label("Password", exact=True).fill(password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/o/{organization.slug}/key")
        assert "You have no key yet" in page.inner_text("main")

        page.get_by_label("Name of a new key").fill("laptop")
        page.get_by_role("button", name="Issue key").click()
        page.get_by_text("Copy it now; it is not shown again").wait_for()
        shown = page.inner_text("#secret")
        secrets.register(shown, "gateway key")
        page.locator(".secret").get_by_role("button", name="Copy").click()
        page.locator(".secret").get_by_text("Copied").wait_for()
        key = page.evaluate("navigator.clipboard.readText()")
        assert key == shown

        left = page.locator(".answer [data-live-left]")
        assert left.inner_text() == "100,000"
        page.locator(".live .word", has_text="Live").first.wait_for()
        answer = httpx.post(f"{url}/v1/responses", headers={"authorization": f"Bearer {key}"}, content=tenants.body(), timeout=30)
        assert answer.status_code == 200
        # The number moves by itself, without a reload: 100,000 - 1.75.
        page.locator(".answer [data-live-left]", has_text="99,998").wait_for(timeout=30_000)

        row = page.locator("#requests tbody tr")
        deadline = 20
        page.goto(f"{url}/o/{organization.slug}/key")
        while row.count() == 0 and deadline:
            page.wait_for_timeout(250)
            page.reload()
            deadline -= 1
        assert row.count() == 1
        assert "1.75" in row.inner_text()
        assert "gpt-5.5" in row.inner_text()
        assert key not in page.content()
        assert key.split("_")[2] not in str(context.cookies())
        page.screenshot(path=str(tmp_path / "key.png"), full_page=True)

        page.get_by_role("link", name="Overview").click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")
        page.locator(".plot canvas").wait_for()
        assert "1.75" in page.locator("#requests").inner_text()

        page.goto(f"{url}/o/{organization.slug}/key")
        page.get_by_text("Revoke…").click()
        page.get_by_label("Type laptop to confirm").fill("laptop")
        page.get_by_role("button", name="Revoke key").click()
        page.get_by_text("You have no key yet").wait_for()
        assert problems == []
        context.close()

    refused = httpx.post(f"{url}/v1/responses", headers={"authorization": f"Bearer {key}"}, content=tenants.body(), timeout=30)
    assert refused.status_code == 401
