"""An owner sets a provider up on the settings page; a new person signs in by it, changes groups, and a stranger is refused."""

from pathlib import Path
from typing import Any

import pytest

from accounts.models import AuditEvent, Member
from tests import factories, secrets
from tests.clients import chromium
from tests.flows import stack as processes
from tests.flows.conftest import Stack
from tests.flows.oidc_provider import CLIENT_ID, OidcProvider
from tests.flows.test_browser_passkey import without_violations

pytestmark = [pytest.mark.browser, pytest.mark.stack]


def test_an_owner_sets_a_provider_up_and_people_come_in_by_it(
    stack: Stack, tmp_path: Path, django_db_blocker: Any, transactional_db: None
) -> None:
    password = factories.password()
    organization = factories.organization(plan="plus")
    owner = factories.member(organization, role="owner", password=password)
    assert owner.user is not None
    domain = f"{organization.slug}.example"
    web = processes.web("web-oidc", stack.upstream.url, stack.logs, UPSTREAM_ALLOWED_NETWORKS="127.0.0.0/8")
    url, slug = web.url, organization.slug
    problems: list[str] = []

    def page_of(browser: Any) -> Any:
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.on(
            "console", lambda told: problems.append(told.text) if told.type == "error" and "status of 4" not in told.text else None
        )
        page.on("pageerror", lambda error: problems.append(str(error)))
        return page

    def by_address(page: Any, email: str) -> None:
        page.goto(url)
        page.get_by_role("link", name="Sign in with your organization").click()
        page.get_by_label("Work e-mail").fill(email)
        page.get_by_role("button", name="Find my provider").click()
        without_violations(page, problems)
        page.get_by_role("link", name="Sign in with Acme Okta").click()

    try:
        web.wait_ready()
        with OidcProvider() as okta, chromium.launched() as browser, django_db_blocker.block():
            secrets.register(okta.client_secret, "client secret of a provider")
            boss = page_of(browser)
            boss.goto(url)
            boss.get_by_label("Work e-mail").fill(owner.user.email)
            boss.get_by_label("Password", exact=True).fill(password)
            boss.get_by_role("button", name="Sign in", exact=True).click()
            boss.wait_for_url(f"{url}/o/{slug}/**")
            boss.goto(f"{url}/o/{slug}/settings/identity")
            assert boss.inner_text("#identity-redirect") == f"{url}/accounts/oidc/{slug}/login/callback/"
            boss.get_by_label("Name", exact=True).fill("Acme Okta")
            boss.get_by_label("Issuer").fill(okta.issuer)
            boss.get_by_label("Client id").fill(CLIENT_ID)
            boss.get_by_label("Client secret").fill(okta.client_secret)
            boss.get_by_label("E-mail domains").fill("no domain")
            boss.get_by_label("Groups of leads").fill("weir-leads")
            boss.get_by_label("Groups of developers").fill("weir-users")
            boss.get_by_role("button", name="Set up provider").click()
            assert "is no domain of e-mail addresses" in boss.inner_text("#id_email_domains-error")
            boss.get_by_label("E-mail domains").fill(domain)
            boss.get_by_label("Client secret").fill(okta.client_secret)
            without_violations(boss, problems)
            boss.get_by_role("button", name="Set up provider").click()
            boss.get_by_text("The sign-in provider is saved.").wait_for()
            assert okta.client_secret not in boss.content()
            boss.get_by_role("button", name="Test it").click()
            boss.get_by_text("The provider answers, and is who the issuer says.").wait_for()
            without_violations(boss, problems)

            ada = page_of(browser)
            email = f"ada@{domain}"
            okta.person = {"sub": "ada-1", "email": email, "email_verified": True, "name": "Ada Byron", "groups": ["weir-users"]}
            by_address(ada, email)
            ada.wait_for_url(f"{url}/o/{slug}/key")
            assert "You have no key yet" in ada.inner_text("main")
            assert ada.locator("summary .user").inner_text() == "Ada Byron"
            ada.goto(f"{url}/accounts/password/change/")
            assert "Your organization signed you in" in ada.inner_text("main")
            without_violations(ada, problems)
            ada.goto(f"{url}/accounts/logout/")
            ada.get_by_role("button", name="Sign out").click()
            ada.wait_for_url(f"{url}/accounts/login/**")

            okta.person["groups"] = ["weir-users", "weir-leads"]
            ada.goto(f"{url}/accounts/sso/{slug}")
            ada.get_by_role("link", name="Sign in with Acme Okta").click()
            ada.wait_for_url(f"{url}/o/{slug}/overview")

            eve = page_of(browser)
            okta.person = {"sub": "eve-1", "email": f"eve@{domain}", "email_verified": True, "groups": ["other"]}
            by_address(eve, f"eve@{domain}")
            eve.get_by_text("Acme Okta names no group of yours that has a role here.").wait_for()
            without_violations(eve, problems)
            eve.goto(f"{url}/o/{slug}/key")
            assert eve.url.startswith(f"{url}/accounts/login/")

            # Switched off, who is in is out at the next click.
            boss.get_by_label("People can sign in with it").uncheck()
            boss.get_by_role("button", name="Save provider").click()
            boss.get_by_text("The sign-in provider is saved.").wait_for()
            ada.reload()
            ada.wait_for_url(f"{url}/accounts/login/**")
            assert problems == []
    finally:
        web.terminate()

    member = Member.objects.get(organization=organization, display_name="Ada Byron")
    assert member.role == "lead"
    assert Member.objects.filter(organization=organization).count() == 2
    changed = AuditEvent.objects.get(organization=organization, action="member.changed")
    assert changed.actor_label == "Acme Okta (sign-in provider)"
