"""The pages of the running demo, as the command that takes their pictures sees them."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from django.urls import resolve

from demo import pictures
from tests import ports
from tests.clients import chromium
from tests.flows.test_routes import RULES, routes, spelled
from tests.launch import processes
from tests.launch.launching import Stack, run

FILES = (".csv", "/file", "/download/")
SIGN_IN_WITH_A_FACTOR = "asks for a second factor: with axe in tests/flows/test_browser_passkey.py"
BY_A_PROVIDER = "of a provider: tests/flows/test_browser_oidc.py"
UNSEEN = {
    "o/<slug:slug>/": "leads on",
    "o/<slug:slug>/jobs/<uuid:uuid>": "a line of the page for htmx; else leads to the page",
    "accounts/2fa/": "leads to Security",
    "accounts/2fa/webauthn/": "leads to Security",
    "accounts/sessions/": "leads to Security",
    "accounts/security/sessions/end": "takes POST only; leads to Security for who comes back from a confirmation",
    "accounts/security/sessions/end-others": "takes POST only; leads to Security for who comes back from a confirmation",
    "accounts/2fa/authenticate/": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/reauthenticate/": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/webauthn/reauthenticate/": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/webauthn/login/": "no page: what the browser's passkey is asked for",
    "accounts/2fa/totp/deactivate/": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/recovery-codes/": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/recovery-codes/generate/": SIGN_IN_WITH_A_FACTOR,
    "accounts/security/passkeys/<slug:name>/rename": SIGN_IN_WITH_A_FACTOR,
    "accounts/security/passkeys/<slug:name>/remove": SIGN_IN_WITH_A_FACTOR,
    "accounts/2fa/webauthn/keys/<int:pk>/remove/": "not there: passkeys have names",
    "accounts/2fa/webauthn/keys/<int:pk>/edit/": "not there: passkeys have names",
    "accounts/password/set/": "for who has no password, looks like the page that changes one",
    "accounts/login/code/confirm/": "switched off: nobody signs in by a code",
    "accounts/reauthenticate/code/": "switched off: nobody signs in by a code",
    "accounts/reauthenticate/code/confirm/": "switched off: nobody signs in by a code",
    "accounts/3rdparty/": "not there",
    "accounts/3rdparty/signup/": "not there",
    "accounts/3rdparty/login/cancelled/": BY_A_PROVIDER,
    "accounts/3rdparty/login/error/": BY_A_PROVIDER,
    "accounts/social/connections/": "not there",
    "accounts/social/signup/": "not there",
    "accounts/social/login/cancelled/": "leads to the new address",
    "accounts/social/login/error/": "leads to the new address",
    "accounts/sso/<slug:slug>": BY_A_PROVIDER,
    "accounts/oidc/<provider_id>/login/": BY_A_PROVIDER,
    "accounts/oidc/<provider_id>/login/callback/": BY_A_PROVIDER,
    "accounts/oidc/<str:provider_id>/login/": BY_A_PROVIDER,
    "accounts/oidc/<str:provider_id>/login/callback/": BY_A_PROVIDER,
}
"""Addresses without a picture, and why."""
PHONE = re.compile("sign-in|key|overview|members|member|pool|request|alerts|invoice|settings|settings-audit|security")
"""One page of each layout, on a phone in the language with the longest words."""
DARK = ["sign-in", "key", "overview", "members", "pool", "settings"]
"""Which show every component between them."""


def route_of(page: pictures.Page) -> str:
    if page.follow:
        return page.leads_to
    path = page.path.split("?")[0]
    return spelled(resolve(path if path.startswith("/") else f"/o/any/{path}").route)


def test_every_page_has_a_picture_or_a_reason() -> None:
    """Every address below an organization and below `/accounts/` that answers GET; the files aside."""
    seen = {route_of(one) for one in pictures.PAGES if one.status == 200}
    asked = {
        route
        for route in routes()
        if route.startswith(("o/", "accounts/")) and not route.endswith(FILES) and RULES[route].get != (405,)
    }
    assert sorted(asked - seen - set(UNSEEN)) == []
    assert sorted(set(UNSEEN) - asked) == []
    assert sorted(set(UNSEEN) & seen) == []


@pytest.mark.stack
@pytest.mark.browser
@pytest.mark.timeout(600)
def test_nothing_is_wrong_with_any_page(launch: Callable[..., Stack], environ: dict[str, str], tmp_path: Path) -> None:
    """Each in light with the keyboard; some on a phone in Russian; some in dark, of which it takes the pictures."""
    chromium.executable()
    stack = launch("demo", ports.free())
    stack.wait_until((stack.var / "demo.json").exists)
    beside = {**environ, "WEIR_VAR": str(stack.var)}
    names = [one.name for one in pictures.PAGES]
    for mode, chosen in (("light", names), ("ru-phone", [one for one in names if PHONE.fullmatch(one)]), ("dark", DARK)):
        files = mode == "dark"
        asked = ["--to", str(tmp_path)] if files else ["--check"]
        asked += ["--mode", mode, *(word for name in chosen for word in ("--page", name))]
        done = run("pictures", *asked, environ=beside, timeout=400)
        said = f"{len(chosen)} {f'pictures in {tmp_path}' if files else 'pages'}, 0 problems"
        assert done.stdout.splitlines()[-1:] == [said], done.stdout + done.stderr
        assert done.returncode == 0
    assert len(list(tmp_path.glob("*.png"))) == len(DARK)
    assert all(path.stat().st_size > 5_000 for path in tmp_path.iterdir())
    everything = stack.everything()
    stack.process.send_signal(signal.SIGTERM)
    assert stack.process.wait(60) == 0
    assert processes.still_alive(everything, within=30) == []
