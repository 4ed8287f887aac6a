"""An owner in a browser adds an account by each way, on two processes at once: begun on one, finished on the other (N44)."""

import json
from pathlib import Path
from typing import Any

import pytest

from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.clients import chromium
from tests.flows.conftest import Stack
from tests.flows.test_browser_limits import signed_in

pytestmark = [pytest.mark.browser, pytest.mark.stack]


@pytest.mark.parametrize("has_script", [True, False], ids=["htmx", "without scripts"])
def test_an_account_joins_by_each_way(
    stack: Stack, has_script: bool, tmp_path: Path, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    password = factories.password()
    organization = factories.organization(timezone="Europe/Berlin")
    owner = factories.member(organization, role="owner", password=password)
    assert owner.user is not None
    first, second = stack.webs[0].url, stack.webs[1].url
    path = f"/o/{organization.slug}/pool"
    key = secrets.register(f"sk-{factories.unique('browser')}{'x' * 30}", "upstream API key")
    good, bad = tmp_path / "auth.json", tmp_path / "broken.json"
    good.write_text(json.dumps(upstream.mint(email="bob@example.test")))
    bad.write_text("{")

    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        page = signed_in(browser, first, owner.user.email, password, problems, java_script_enabled=has_script)
        page.get_by_role("link", name="Pool", exact=True).click()
        page.get_by_text("The pool is empty").wait_for()

        # A key needs no terms.
        page.get_by_role("main").get_by_role("link", name="Add account").last.click()
        page.get_by_label("Name", exact=True).fill("Company key")
        page.get_by_label("API key", exact=True).fill(key)
        page.get_by_role("button", name="Add account").click()
        page.get_by_text("Company key is in the pool and serves from the next request on.").wait_for()

        # In a browser: the terms first, then a link; what it ends at is pasted on another process.
        upstream.person(email="ada@example.test")
        page.get_by_role("main").get_by_role("link", name="Add account").click()
        page.get_by_role("button", name="Get the sign-in link").click()
        page.get_by_text("Accept the terms first.").wait_for()
        page.get_by_label("I accept these terms for the organization").check()
        page.get_by_label("Name", exact=True).fill("Ada")
        page.get_by_role("button", name="Get the sign-in link").click()
        link = page.get_by_role("link", name="Open the sign-in page").get_attribute("href")
        back = upstream.sign_in(link)
        page.goto(page.url.replace(first, second))
        page.get_by_label("Paste it here").fill(back)
        page.get_by_label("Keep for its person").fill("20")
        page.get_by_role("dialog").get_by_role("button", name="Add account").click()
        page.get_by_text("Ada is in the pool and serves from the next request on.").wait_for()

        # By a code: the page goes on by itself where it may run scripts.
        page.goto(f"{first}{path}?add=device")
        page.get_by_label("Name", exact=True).fill("Cleo")
        page.get_by_role("button", name="Get a code").click()
        upstream.approve(page.inner_text("#user-code"), email="cleo@example.test")
        told = page.get_by_text("Cleo is in the pool and serves from the next request on.")
        if has_script:
            told.wait_for(timeout=30_000)
        else:
            page.wait_for_timeout(1500)
            page.get_by_role("button", name="I have entered it").click()
            told.wait_for()

        # By files, each told.
        page.goto(f"{first}{path}?add=files")
        page.get_by_label("Files").set_input_files([good, bad])
        page.get_by_role("button", name="Add accounts").click()
        page.get_by_text("broken.json is not JSON.").wait_for()
        assert page.locator("[data-outcome]").all_inner_texts()[0].split() == ["auth.json", "Added", "bob@example.test"]

        page.goto(f"{first}{path}")
        assert page.locator("[data-account]").count() == 4
        page.get_by_role("link", name="Cleo").click()
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Cleo is paused").wait_for()
        content = page.content()
        page.context.close()

    assert problems == []
    assert key not in content
    rows = {row.label: row for row in PoolAccount.objects.for_organization(organization)}
    assert {label: row.status for label, row in rows.items()} == {
        "Company key": "active",
        "Ada": "active",
        "Cleo": "paused",
        "bob@example.test": "active",
    }
    assert rows["Ada"].floor_percent == 20
    assert not SignInFlow.objects.filter(organization=organization).exists()


def test_the_dialog_is_modal_and_works_by_keyboard(
    stack: Stack, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    password = factories.password()
    organization = factories.organization()
    owner = factories.member(organization, role="owner", password=password)
    assert owner.user is not None
    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        page = signed_in(browser, stack.webs[0].url, owner.user.email, password, problems)
        page.goto(f"{stack.webs[0].url}/o/{organization.slug}/pool?add=key")
        dialog = page.locator("#add")
        assert dialog.evaluate("one => one.matches(':modal')")
        for _ in range(30):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement === document.body || document.activeElement.closest('#add') !== null")
        page.keyboard.press("Escape")
        assert not dialog.evaluate("one => one.open")
        page.context.close()
    assert problems == []
