"""Every page as each kind of person sees it: pictures, and what is wrong with it that a program can tell.

`PAGES` lists them; `walk` opens each in each of the modes and yields what it found: violations of WCAG 2.2 A and AA and of axe's
best practice, errors of the console (a breach of the content policy is one), a page wider than the screen, what can be clicked
but not reached by keyboard, focus that cannot be seen, another language than was asked for.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.urls import resolve

AXE = {
    "resultTypes": ["violations"],
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]},
}
QUIET_MILLISECONDS = 250
"""What charts and live numbers need after the page has loaded."""
CONFIRMATION = "/accounts/reauthenticate/"
MOST_TABS, PARTS_OF_A_FIELD, MOST_WALKS = 400, 6, 3


@dataclass(frozen=True, slots=True)
class Page:
    """`path` below the organization's front door, or from `/` on; `follow` selects the link on it that leads to the page, by the
    route `leads_to`."""

    name: str
    role: str
    """Whose login; empty: nobody's."""
    path: str
    follow: str = ""
    leads_to: str = ""
    status: int = 200


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    width: int
    scheme: str
    language: str = "en"


@dataclass(frozen=True, slots=True)
class Login:
    email: str
    password: str


@dataclass(frozen=True, slots=True)
class Seen:
    page: Page
    mode: Mode
    picture: Path | None
    problems: tuple[str, ...]


NEW = ("overview", "key", "pool", "requests", "alerts", "usage", "invoices", "jobs")
"""Of the demo's organization that has only begun: its first steps, and pages that wait for something."""
PAGES = (
    Page("sign-in", "", "/accounts/login/"),
    Page("sso", "", "/accounts/sso/"),
    Page("password-reset", "", "/accounts/password/reset/"),
    Page("password-reset-sent", "", "/accounts/password/reset/done/"),
    Page("password-reset-over", "", "/accounts/password/reset/key/1-no-such-key/"),
    Page("password-reset-done", "", "/accounts/password/reset/key/done/"),
    Page("sign-up-closed", "", "/accounts/signup/"),
    Page("inactive", "", "/accounts/inactive/"),
    Page("confirm-sent", "", "/accounts/confirm-email/"),
    Page("confirm-over", "", "/accounts/confirm-email/no-such-key/"),
    Page("join-over", "", "/join/no-such-token", status=404),
    Page("key", "developer", "key"),
    Page("my-overview", "developer", "overview"),
    Page("my-requests", "developer", "requests"),
    Page("my-usage", "developer", "usage"),
    Page("my-jobs", "developer", "jobs"),
    Page("my-tokens", "developer", "settings/tokens"),
    Page("pool-glance", "developer", "pool"),
    Page("forbidden", "developer", "members", status=403),
    Page("finance-usage", "finance", "usage"),
    Page("finance-invoices", "finance", "invoices"),
    Page("overview", "owner", "overview"),
    Page("members", "owner", "members"),
    Page("members-invite", "owner", "members?invite="),
    Page("member", "owner", "members", follow="main table tbody th a", leads_to="o/<slug:slug>/members/<uuid:uuid>"),
    Page("pool", "owner", "pool"),
    Page("pool-account", "owner", "pool", follow="[data-account] a", leads_to="o/<slug:slug>/pool"),
    *(Page(f"pool-add-{way}", "owner", f"pool?add={way}") for way in ("browser", "device", "files", "key", "endpoint")),
    Page("requests", "owner", "requests"),
    Page("requests-month", "owner", "requests?range=30d"),
    Page("request", "owner", "requests?range=30d", follow="main table tbody a", leads_to="o/<slug:slug>/requests/<str:name>"),
    Page("alerts", "owner", "alerts"),
    Page("alerts-add", "owner", "alerts?add="),
    Page("usage", "owner", "usage"),
    Page("invoices", "owner", "invoices"),
    Page(
        "invoice",
        "owner",
        "invoices",
        follow="main table tbody a[href*='/invoices/']",
        leads_to="o/<slug:slug>/invoices/<uuid:uuid>",
    ),
    Page("plan", "owner", "invoices/plan?plan=plus"),
    Page("jobs", "owner", "jobs"),
    Page("settings", "owner", "settings"),
    Page("settings-sign-in", "owner", "settings/sign-in"),
    Page("settings-identity", "owner", "settings/identity"),
    Page("settings-models", "owner", "settings/models"),
    Page("settings-tokens", "owner", "settings/tokens"),
    Page("settings-audit", "owner", "settings/audit"),
    *(Page(f"new-{name}", "owner", f"/o/tern-studio/{name}") for name in NEW),
    Page("security", "owner", "/accounts/security/"),
    Page("password", "owner", "/accounts/password/change/"),
    Page("e-mail", "owner", "/accounts/email/"),
    Page("reauthenticate", "owner", "/accounts/reauthenticate/"),
    Page("app-add", "owner", "/accounts/2fa/totp/activate/"),
    Page("passkey-add", "owner", "/accounts/2fa/webauthn/add/"),
    Page("not-found", "owner", "no-such-page", status=404),
    Page("sign-out", "owner", "/accounts/logout/"),
)
LIGHT, DARK, PHONE = Mode("light", 1440, "light"), Mode("dark", 1440, "dark"), Mode("phone", 390, "light")
SPOKEN = tuple(
    Mode(f"{language}-{like.name}", like.width, like.scheme, language) for language in ("ru", "vi") for like in (LIGHT, PHONE)
)
MODES = (LIGHT, DARK, PHONE, *SPOKEN)

UNREACHABLE = """() => [...document.querySelectorAll('[hx-get],[hx-post],[x-on\\\\:click],[\\\\@click],[role=button],[role=tab]')]
  .filter((one) => !one.matches('a[href],button,input,select,textarea,summary,form,[tabindex]')
    && !/load|every|revealed|weir:|changed|submit/.test(one.getAttribute('hx-trigger') || '') && one.offsetParent)
  .map((one) => one.outerHTML.slice(0, 120))"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const isShown = style.outlineStyle !== 'none' || style.boxShadow !== 'none' || one.matches(':focus-visible') === false;
  window.weirSeen = window.weirSeen || new Set();
  const isNew = !window.weirSeen.has(one), isSame = window.weirLast === one;
  window.weirSeen.add(one);
  window.weirLast = one;
  return {isNew, isSame, isShown: isShown && (box.width > 0 || one.matches('.vh')), html: one.outerHTML.slice(0, 120)};
}"""
STILL = """() => {
  document.activeElement.blur();
  window.weirSeen = new Set();
  window.weirLast = null;
  if (window.weirMoved === undefined) document.addEventListener('weir:parts', () => { window.weirMoved = true; });
  window.weirMoved = false;
}"""
REST = """() => [...document.querySelectorAll('a[href],button,input:not([type=hidden]),select,textarea,summary,[tabindex="0"]')]
  .filter((one) => one.checkVisibility({checkVisibilityCSS: true}) && !one.disabled && one.tabIndex >= 0
    && !one.closest('[inert]') && (one.closest(':modal') || !document.querySelector(':modal'))
    && !(one.type === 'radio' && !one.checked) && !(window.weirSeen || new Set()).has(one))
  .map((one) => one.outerHTML.slice(0, 120))"""


def walk(
    browser: Any,
    url: str,
    slug: str,
    logins: Mapping[str, Login],
    *,
    folder: Path | None,
    pages: tuple[Page, ...] = PAGES,
    modes: tuple[Mode, ...] = MODES,
    with_keyboard: tuple[Mode, ...] = (LIGHT,),
) -> Iterator[Seen]:
    """`browser` is playwright's; `logins` by role. Pictures are `<page>-<mode>.png` in `folder`; without one none is taken."""
    roles = sorted({page.role for page in pages})
    for mode, role in itertools.product(modes, roles):
        shown = tuple(page for page in pages if page.role == role)
        yield from _as_one(browser, url, slug, logins.get(role), mode, shown, folder, with_keyboard)


def _as_one(
    browser: Any,
    url: str,
    slug: str,
    login: Login | None,
    mode: Mode,
    pages: tuple[Page, ...],
    folder: Path | None,
    with_keyboard: tuple[Mode, ...],
) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": mode.width, "height": 1000}, color_scheme=mode.scheme, locale=mode.language)
    context.add_cookies([{"name": "django_language", "value": mode.language, "url": url}])
    try:
        tab = context.new_page()
        errors: list[str] = []
        tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("response", lambda answer: errors.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
        if login is not None:
            _sign_in(tab, url, login)
        for page in pages:
            errors.clear()
            picture = folder / f"{page.name}-{mode.name}.png" if folder is not None else None
            problems = _open(tab, url, slug, page, login)
            # Before the picture and axe, which both add styles of their own that the policy blocks.
            said = [f"console: {text}" for text in errors if not _is_expected(text, page, tab.url)]
            if not problems:
                if picture is not None:
                    tab.screenshot(path=str(picture), full_page=True)
                problems = [*(_by_keyboard(tab) if mode in with_keyboard else []), *_wrong(tab, mode)]
            yield Seen(page, mode, picture, (*problems, *said))
    finally:
        context.close()


def _sign_in(tab: Any, url: str, login: Login) -> None:
    tab.goto(f"{url}/accounts/login/")
    tab.locator("input[name=login]").fill(login.email)
    tab.locator("input[name=password]").fill(login.password)
    tab.locator("input[name=password]").press("Enter")
    tab.wait_for_url(f"{url}/o/**")


def _is_expected(text: str, page: Page, address: str) -> bool:
    """Is it only that the page itself is a refusal, as it should be?"""
    return page.status >= 400 and (
        text == f"{page.status} {address}" or f"the server responded with a status of {page.status}" in text
    )


def _open(tab: Any, url: str, slug: str, page: Page, login: Login | None) -> list[str]:
    answer = tab.goto(url + page.path if page.path.startswith("/") else f"{url}/o/{slug}/{page.path}")
    if page.follow and answer.status == 200:
        link = tab.locator(page.follow).first
        if not link.count():
            return [f"no link {page.follow}"]
        answer = tab.goto(link.evaluate("one => one.href"))
    if login is not None and _path(tab) == CONFIRMATION and page.path != CONFIRMATION:
        tab.locator("input[name=password]").fill(login.password)
        with tab.expect_navigation() as confirmed:
            tab.locator("input[name=password]").press("Enter")
        answer = confirmed.value
    if answer.status != page.status:
        return [f"answered {answer.status}"]
    path = _path(tab)
    if page.leads_to and resolve(path).route != page.leads_to:
        return [f"{path} is not {page.leads_to}"]
    if not page.follow and path != urlsplit(page.path if page.path.startswith("/") else f"/o/{slug}/{page.path}").path:
        return [f"led to {path}"]
    tab.wait_for_timeout(QUIET_MILLISECONDS)
    return []


def _path(tab: Any) -> str:
    return urlsplit(str(tab.url)).path


def _wrong(tab: Any, mode: Mode) -> list[str]:
    from axe_playwright_python.sync_playwright import Axe

    # What the keyboard left under the bar at the top is not what a person aims at.
    tab.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    found = [
        f"axe {one['id']} ({one['impact']}): {one['help']}: {one['nodes'][0]['html'][:160]}" + f" and {len(one['nodes']) - 1} more"
        for one in Axe().run(tab, options=AXE).response["violations"]
    ]
    wide = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if wide > 0:
        found.append(f"{wide} px wider than the screen")
    spoken = tab.evaluate("document.documentElement.lang")
    if spoken != mode.language:
        found.append(f"speaks {spoken}")
    found += [f"not reached by keyboard: {html}" for html in tab.evaluate(UNREACHABLE)]
    return found


def _by_keyboard(tab: Any) -> list[str]:
    """Tabs through the page once: all that can be used is reached, and one sees where one is.

    A page that has moved by itself meanwhile is another one than that which was begun: then once more. Whether the focus stays
    where it was is for the tests of the live pages.
    """
    found: list[str] = []
    for _ in range(MOST_WALKS):
        tab.evaluate(STILL)
        found = _walked(tab)
        if not tab.evaluate("window.weirMoved"):
            break
    return found


def _walked(tab: Any) -> list[str]:
    found: list[str] = []
    stays = 0
    has_ended = False
    for _ in range(MOST_TABS):
        tab.keyboard.press("Tab")
        focused = tab.evaluate(FOCUSED)
        # A field of several parts, such as a date, keeps the focus for each of them.
        stays = stays + 1 if focused is not None and focused["isSame"] else 0
        if focused is None and not has_ended:
            # Where a field takes the focus when the page opens, what stands before it comes after the end.
            has_ended = True
            continue
        if focused is None or stays > PARTS_OF_A_FIELD or not (focused["isNew"] or focused["isSame"]):
            break
        if not focused["isShown"]:
            found.append(f"focus cannot be seen: {focused['html']}")
    return found + [f"not reached by Tab: {html}" for html in tab.evaluate(REST)]
