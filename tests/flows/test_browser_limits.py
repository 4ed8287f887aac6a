"""Two people in a browser: a lead sets a limit; a developer is refused, sees why, asks for more; the lead approves; it goes on."""

from typing import Any

import httpx
import pytest

from quotas.models import Limit, LimitBoost
from tests import factories
from tests.clients import chromium
from tests.flows import tenants
from tests.flows.conftest import Stack

pytestmark = [pytest.mark.browser, pytest.mark.stack]

USAGE = {"input_tokens": 0, "output_tokens": 2_000, "total_tokens": 2_000}
"""1.5 credits of gpt-5.5."""


def signed_in(browser: Any, url: str, email: str, password: str, problems: list[str], **options: Any) -> Any:
    page = browser.new_context(viewport={"width": 1440, "height": 1000}, **options).new_page()
    # A form that is refused answers 4xx, which the browser reports too.
    page.on("console", lambda told: problems.append(told.text) if told.type == "error" and "status of 4" not in told.text else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    page.get_by_label("Work e-mail").fill(email)
    page.get_by_label("Password", exact=True).fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/o/**")
    return page


@pytest.mark.parametrize("has_script", [True, False], ids=["htmx", "without scripts"])
def test_a_limit_a_refusal_its_reason_a_request_and_more(
    stack: Stack, has_script: bool, django_db_blocker: Any, transactional_db: None, upstream: Any
) -> None:
    password = factories.password()
    organization = factories.organization(plan="plus", timezone="Europe/Berlin")
    team = factories.team(organization, "Quality")
    lead = factories.member(organization, role="lead", team=team, password=password)
    developer = factories.member(organization, team=team, password=password)
    key = factories.api_key(developer)
    _, token = factories.openai_account(organization)
    assert lead.user is not None
    assert developer.user is not None
    upstream.script({"usage": USAGE}, token=token)
    url, home = stack.webs[0].url, f"{stack.webs[0].url}/o/{organization.slug}"

    def call() -> httpx.Response:
        headers = {"authorization": f"Bearer {key.secret}"}
        return httpx.post(f"{url}/v1/responses", headers=headers, content=tenants.body(max_output_tokens=2_000), timeout=30)

    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        boss = signed_in(browser, url, lead.user.email, password, problems, java_script_enabled=has_script)
        user = signed_in(browser, url, developer.user.email, password, problems, java_script_enabled=has_script)

        boss.goto(f"{home}/members")
        boss.get_by_role("link", name="Add a limit").click()
        boss.get_by_label("Whose use").select_option(label=str(developer))
        boss.get_by_label("In which time").select_option("day")
        boss.get_by_label("At most").fill("a few")
        boss.get_by_role("button", name="Set the limit").click()
        boss.get_by_text("'a few' is not a decimal number of credits").wait_for()
        boss.get_by_label("At most").fill("2")
        boss.get_by_role("button", name="Set the limit").click()
        boss.get_by_text(f"{developer}’s daily limit is 2.00 credits from the next request on.").wait_for()

        assert call().status_code == 200
        refused = call()
        assert (refused.status_code, refused.json()["error"]["scope"]) == (429, "member")
        # The client is told why, in words.
        assert "may use 2 credits" in refused.json()["error"]["message"]

        article = user.locator("article.refusal")
        for _ in range(40):
            user.goto(f"{home}/key")
            if article.count():
                break
            user.wait_for_timeout(250)
        said = article.first.inner_text()
        assert "Your daily limit would have been passed" in said
        assert "0.5000 left" in said
        assert "1.50 of 2.00" in said
        article.first.get_by_role("link", name="Ask for more").click()
        user.get_by_label("How much more").fill("5")
        user.get_by_label("What for").fill("the handbook")
        user.get_by_role("button", name="Ask for more").click()
        user.get_by_text("Your request waits for your lead; the answer appears here.").wait_for()
        assert "You asked for more of it" in article.first.inner_text()

        boss.goto(f"{home}/members")
        waiting = boss.locator("#waiting")
        assert f"{developer} asks for 5.00 credits more" in waiting.inner_text()
        assert "the handbook" in waiting.inner_text()
        waiting.get_by_role("button", name="Approve").click()
        boss.get_by_text(f"{developer} has more from the next request on.").wait_for()
        assert boss.locator("#waiting").count() == 0

        assert call().status_code == 200
        user.goto(f"{home}/key")
        assert "Approved" in user.locator("#ask").inner_text()

        # Changed in the table itself, by keyboard: Escape leaves, Enter saves.
        row = boss.locator("#people tr", has_text=str(developer)).first
        row.get_by_role("link", name="daily limit:").click()
        field = boss.get_by_label(f"{developer}’s daily limit, in credits")
        if has_script:
            field.press("Escape")
            field.wait_for(state="detached")
            row.get_by_role("link", name="daily limit:").click()
        field.fill("20")
        field.press("Enter")
        boss.get_by_text(f"{developer}’s daily limit is 20.00 credits from the next request on.").wait_for()
        row.get_by_role("link", name="daily limit:").click()
        boss.get_by_role("button", name="Remove the limit").click()
        boss.get_by_text(f"{developer}’s daily limit is gone from the next request on").wait_for()
        assert call().status_code == 200
    assert problems == []
    assert not Limit.objects.filter(organization=organization).exists()
    # What was given went with its limit.
    assert not LimitBoost.objects.filter(organization=organization).exists()


def test_a_key_is_rotated_on_its_page(stack: Stack, django_db_blocker: Any, transactional_db: None, upstream: Any) -> None:
    password = factories.password()
    organization = factories.organization()
    developer = factories.member(organization, password=password)
    key = factories.api_key(developer)
    _, token = factories.openai_account(organization)
    assert developer.user is not None
    upstream.script({"usage": USAGE}, token=token)
    url = stack.webs[0].url

    def status(secret: str) -> int:
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(f"{url}/v1/responses", headers=headers, content=tenants.body(), timeout=30).status_code

    problems: list[str] = []
    with chromium.launched() as browser, django_db_blocker.block():
        page = signed_in(browser, url, developer.user.email, password, problems)
        page.get_by_role("button", name="Rotate… laptop").click()
        page.get_by_role("button", name="Rotate key").click()
        page.get_by_text("The new secret. Copy it now; it is not shown again.").wait_for()
        second = page.inner_text("#secret")
        assert [status(key.secret), status(second)] == [200, 200]
        page.goto(f"{url}/o/{organization.slug}/key")
        assert second not in page.content()
        page.get_by_role("button", name="Rotate… laptop").click()
        page.get_by_label("The old secret ends at once").check()
        page.get_by_role("button", name="Rotate key").click()
        page.get_by_text("the old secret has ended").wait_for()
        third = page.inner_text("#secret")
    assert [status(key.secret), status(second), status(third)] == [401, 401, 200]
    assert problems == []
