"""A person secures their sign-in in a browser: a passkey, an authenticator app, recovery codes; then signs in by each."""

from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe

from accounts.models import AuditEvent
from tests import factories, secrets
from tests.accounts.signing_in import code_of
from tests.clients import chromium
from tests.flows.conftest import Stack

pytestmark = [pytest.mark.browser, pytest.mark.stack]

DEVICE = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}
"""Chromium's virtual authenticator: a laptop with a fingerprint that always fits."""


def without_violations(page: Any, problems: list[str]) -> None:
    """What the console tells while axe looks is axe's: it writes styles of its own, and reads sheets' imports from elsewhere."""
    assert problems == []
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})
    assert found.violations_count == 0, found.generate_report()
    page.wait_for_timeout(50)
    problems.clear()


def test_a_passkey_an_app_and_a_recovery_code_each_let_one_in(stack: Stack, django_db_blocker: Any, transactional_db: None) -> None:
    password = factories.password()
    organization = factories.organization(plan="free")
    owner = factories.member(organization, role="owner", password=password)
    organization.second_factor = "leads"
    organization.save()
    assert owner.user is not None
    email = owner.user.email
    # Passkeys belong to a host name; the browser takes http for this one.
    url = f"http://localhost:{urlsplit(stack.webs[0].url).port}"

    with chromium.launched() as browser, django_db_blocker.block():
        context = browser.new_context(viewport={"width": 1280, "height": 1000})
        page = context.new_page()
        problems: list[str] = []
        page.on("console", lambda told: problems.append(f"{told.text} {told.location}") if told.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        devtools = context.new_cdp_session(page)
        devtools.send("WebAuthn.enable")
        device = devtools.send("WebAuthn.addVirtualAuthenticator", {"options": DEVICE})["authenticatorId"]

        def give_password() -> None:
            page.goto(url)
            page.get_by_label("Work e-mail").fill(email)
            page.get_by_label("Password", exact=True).fill(password)
            page.get_by_role("button", name="Sign in").click()

        def sign_out() -> None:
            page.goto(f"{url}/accounts/logout/")
            page.get_by_role("button", name="Sign out").click()
            page.wait_for_url(f"{url}/accounts/login/**")

        # The organization requires a factor: the first page is Security, and nothing else of it opens.
        give_password()
        page.wait_for_url(f"{url}/accounts/security/")
        assert f"A second factor is required by {organization.name}" in page.inner_text("#answer")
        without_violations(page, problems)
        page.get_by_role("link", name="Add passkey").click()
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Confirm").click()
        page.get_by_label("Name").fill("Laptop")
        without_violations(page, problems)
        page.get_by_role("button", name="Add passkey").click()
        page.wait_for_url(f"{url}/accounts/2fa/recovery-codes/")
        codes = page.locator("#recovery-codes").get_attribute("data-text").split()
        assert len(codes) == 10
        without_violations(page, problems)
        with page.expect_download() as kept:
            page.get_by_role("link", name="Download").click()
        assert kept.value.path().read_text().split() == codes
        page.get_by_role("link", name="I have kept them").click()
        assert "Signs in without a password" in page.inner_text("#factors")
        page.get_by_role("link", name="Go on").click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")

        # By the passkey alone: no address, no password; the page that was asked for comes next.
        sign_out()
        page.goto(f"{url}/o/{organization.slug}/members")
        without_violations(page, problems)
        page.get_by_role("button", name="Use a passkey").click()
        page.wait_for_url(f"{url}/o/{organization.slug}/members")

        # An app beside it: the key is typed from the page, a code of it is the second step.
        page.goto(f"{url}/accounts/security/")
        page.get_by_role("link", name="Set up app").click()
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Confirm").click()
        without_violations(page, problems)
        assert page.locator("img.qr").evaluate("image => image.complete && image.naturalWidth > 0")
        key = secrets.register(page.locator("#totp-key").get_attribute("data-text"), "key of an authenticator app")
        page.get_by_label("Code that the app shows now").fill("000 000")
        page.get_by_role("button", name="Turn on").click()
        page.get_by_text("That code does not fit.").wait_for()
        page.get_by_label("Code that the app shows now").fill(code_of(key, steps=-1))
        page.get_by_role("button", name="Turn on").click()
        page.wait_for_url(f"{url}/accounts/security/")
        assert "The authenticator app is on." in page.inner_text("#notices")
        without_violations(page, problems)

        sign_out()
        give_password()
        page.wait_for_url(f"{url}/accounts/2fa/authenticate/")
        without_violations(page, problems)
        page.get_by_label("Code").fill(code_of(key))
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")

        # The passkey as the second step; then a recovery code, which works once.
        sign_out()
        give_password()
        page.get_by_role("button", name="Use a passkey").click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")
        sign_out()
        give_password()
        page.get_by_label("Code").fill(codes[0])
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")
        sign_out()
        give_password()
        page.get_by_label("Code").fill(codes[0])
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.get_by_text("That code does not fit.").wait_for()

        # A browser without the passkey says so, and the other ways stay open.
        devtools.send("WebAuthn.removeVirtualAuthenticator", {"authenticatorId": device})
        devtools.send("WebAuthn.addVirtualAuthenticator", {"options": {**DEVICE, "isUserVerified": False}})
        page.get_by_role("button", name="Use a passkey").click()
        page.get_by_text("The browser gave no passkey.").wait_for()
        page.get_by_label("Code").fill(codes[1])
        page.get_by_role("button", name="Sign in", exact=True).click()
        page.wait_for_url(f"{url}/o/{organization.slug}/overview")
        assert problems == []
        context.close()

    rows = AuditEvent.objects.filter(organization=organization, actor=owner.user).order_by("pk")
    told = [(row.action, row.data.get("kind")) for row in rows]
    assert told == [("second_factor.added", "webauthn"), ("recovery_codes.made", None), ("second_factor.added", "totp")]
