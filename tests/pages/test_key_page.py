"""My key: who may see it, the secret that is shown once, what is left, the configuration to paste."""

import re
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import keys, organizations
from accounts.models import ApiKey, AuditEvent, Member, Organization
from config.clock import utc_now
from quotas import limits
from tests import factories, secrets
from tests.pages import made

pytestmark = pytest.mark.django_db


@pytest.fixture
def developer() -> Member:
    organization = factories.organization(timezone="Europe/Berlin")
    factories.member(organization, role="owner")
    return factories.member(organization, team=factories.team(organization, "Quality"))


def set_limit(member: Member, amount: str, *, window: str = "day", metric: str = "credits", scope: str = "member") -> None:
    assert member.user is not None
    limits.set_limit(member.organization, scope=scope, of=member.user.email, metric=metric, window=window, amount=amount, by=None)


def answer(content: bytes) -> str:
    """The first sentence, as read."""
    found = re.search(r'<p class="answer"[^>]*>(.*?)</p>', content.decode(), re.S)
    assert found is not None
    return " ".join(re.sub(r"<[^>]+>", "", found[1]).split())


@pytest.mark.parametrize(("role", "status"), [("developer", 200), ("lead", 200), ("owner", 200), ("finance", 403)])
def test_who_may_see_the_page(role: str, status: int) -> None:
    member = factories.member(factories.organization(), role=role)
    client = made.signed_in(member)
    assert client.get(made.path(member)).status_code == status
    issued = client.post(made.path(member, "key/issue"), {"name": "laptop"})
    assert issued.status_code == status
    assert member.api_keys.count() == (1 if status == 200 else 0)


def test_a_stranger_gets_404_as_for_a_missing_organization_and_changes_nothing(developer: Member) -> None:
    key = factories.api_key(developer)
    stranger = made.signed_in(factories.member(factories.organization(), role="owner"))
    for path in ("key", "key/issue", f"key/{key.row.uuid}/revoke"):
        method = stranger.get if path == "key" else stranger.post
        foreign = method(made.path(developer, path))
        missing = method(made.path(developer, path).replace(developer.organization.slug, "no-such"))
        assert foreign.status_code == missing.status_code == 404
        assert foreign.content == missing.content
    assert developer.api_keys.count() == 1
    assert developer.api_keys.get().revoked_at is None


def test_who_is_not_signed_in_is_asked_to(developer: Member) -> None:
    answered = Client().get(made.path(developer))
    assert answered.status_code == 302
    assert answered["location"] == f"/accounts/login/?next={made.path(developer)}"


def test_navigation_leads_only_where_the_role_may_go(developer: Member) -> None:
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    links = re.findall(r'<a href="(/o/[^"]+)"', page.split('<nav class="nav"')[1].split("</nav>")[0])
    assert links == [
        made.path(developer, page) for page in ("key", "overview", "requests", "alerts", "usage", "jobs", "settings/tokens")
    ]
    finance = factories.member(developer.organization, role="finance")
    page = made.signed_in(finance).get(made.path(finance, "overview")).content.decode()
    links = re.findall(r'<a href="(/o/[^"]+)"', page.split('<nav class="nav"')[1].split("</nav>")[0])
    assert links == [made.path(finance, page) for page in ("overview", "alerts", "usage", "invoices", "jobs", "settings/tokens")]
    assert "<h2>Money</h2>" in page
    assert "My key" not in page
    lead = factories.member(developer.organization, role="lead", team=developer.team)
    page = made.signed_in(lead).get(made.path(lead)).content.decode()
    assert f'<a href="{made.path(lead, "members")}">' in page


def everything_stored() -> str:
    """Every row of every table that Django knows, as text."""
    rows = []
    with connection.cursor() as cursor:
        for model in apps.get_models(include_auto_created=True):
            cursor.execute(f'SELECT * FROM "{model._meta.db_table}"')
            rows += [repr(row) for row in cursor.fetchall()]
    return "\n".join(rows) + "\n".join(repr(session.get_decoded()) for session in Session.objects.all())


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true", "HX-Target": "keys"}], ids=["plain", "htmx"])
def test_a_secret_is_in_the_answer_of_its_post_and_nowhere_else(
    developer: Member, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    client = made.signed_in(developer)
    with caplog.at_level("DEBUG"):
        issued = client.post(made.path(developer, "key/issue"), {"name": "laptop"}, headers=headers)
    assert issued.status_code == 200
    text = issued.content.decode()
    found = re.search(r'<code id="secret">(wr_[0-9A-Za-z]{10}_[0-9A-Za-z]{43})</code>', text)
    assert found is not None
    whole = secrets.register(found[1], "gateway key")
    part = secrets.register(whole.split("_")[2], "gateway key's secret")
    assert text.count(part) == 1
    assert ("<html" in text) is (headers == {})

    snapshot = keys.parse(whole)
    assert snapshot is not None
    assert ApiKey.objects.get(public_id=snapshot.public_id).member_id == developer.pk
    assert "no-store" in issued["cache-control"]
    assert part not in repr(issued.headers.items())
    assert part not in repr(client.cookies)
    assert part not in everything_stored()
    assert part not in caplog.text
    assert part not in repr([record.__dict__ for record in caplog.records])
    for page in ("key", "overview"):
        assert part not in client.get(made.path(developer, page)).content.decode()


def test_the_new_key_works_from_the_page_that_shows_it(developer: Member) -> None:
    issued = made.signed_in(developer).post(made.path(developer, "key/issue"), {"name": "  laptop   two "})
    whole = secrets.register(re.search(r'id="secret">([^<]+)<', issued.content.decode())[1], "gateway key")  # type: ignore[index]
    row = developer.api_keys.get()
    assert row.name == "laptop two"
    parsed = keys.parse(whole)
    assert parsed is not None
    from accounts import snapshots

    known = snapshots.load(developer.organization_id).keys[parsed.public_id]
    assert keys.verify(whole, known, now=utc_now())
    assert AuditEvent.objects.get(organization=developer.organization_id, action="key.issued").actor == developer.user


@pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\u202eb"])
def test_a_key_without_a_proper_name_is_not_issued(developer: Member, name: str) -> None:
    refused = made.signed_in(developer).post(made.path(developer, "key/issue"), {"name": name})
    assert 400 <= refused.status_code < 500
    assert 'id="key-name-error"' in refused.content.decode()
    assert developer.api_keys.count() == 0


def test_a_key_is_narrowed_where_it_is_issued(developer: Member) -> None:
    """What the page says is what the gateway is told; the day ends in the organization's zone."""
    Organization.objects.filter(pk=developer.organization_id).update(timezone="Asia/Tokyo")
    until = (utc_now() + timedelta(days=9)).date()
    asked = {"name": "ci", "models": "gpt-5.5,\n gpt-5.4-mini", "efforts": "low", "until": until.isoformat(), "never_fast": "on"}
    client = made.signed_in(developer)
    issued = client.post(made.path(developer, "key/issue"), asked).content.decode()
    secrets.register(re.search(r'id="secret">([^<]+)<', issued)[1], "gateway key")  # type: ignore[index]
    row = developer.api_keys.get()
    assert (row.allowed_models, row.allowed_efforts, row.fast_allowed) == (["gpt-5.4-mini", "gpt-5.5"], ["low"], False)
    assert row.expires_at == datetime.combine(until + timedelta(days=1), datetime.min.time(), ZoneInfo("Asia/Tokyo"))
    page = client.get(made.path(developer)).content.decode()
    assert "<dd>gpt-5.4-mini, gpt-5.5, fast mode off</dd>" in page
    assert "Reasoning efforts</dt><dd>low</dd>" in page
    # Whoever wants none of it is not asked: it is folded, and after a key was issued it is empty again.
    assert '<details class="more whole"><summary>Narrow what it may do' in issued
    assert 'value="gpt-5.5' not in issued


@pytest.mark.parametrize(("field", "value"), [
    ("models", "x" * 121), ("models", "a\u202eb"), ("models", "x" * 2001), ("efforts", "x" * 21), ("until", "soon"),
    ("until", "2020-01-01"), ("until", "9999-12-31"), ("until", "2200-01-01"),
])  # fmt: skip
def test_what_a_key_cannot_be_narrowed_to_is_said_beside_its_field(developer: Member, field: str, value: str) -> None:
    refused = made.signed_in(developer).post(made.path(developer, "key/issue"), {"name": "ci", field: value})
    page = refused.content.decode()
    assert 400 <= refused.status_code < 500
    assert f'id="key-{field}-error"' in page
    # What was typed is there, and not folded away.
    assert '<details class="more whole" open><summary>Narrow what it may do' in page
    assert 'name="name" maxlength="80" required autocomplete="off" placeholder="laptop, ci, …" value="ci"' in page
    assert developer.api_keys.count() == 0


def test_posts_need_the_csrf_token(developer: Member) -> None:
    key = factories.api_key(developer)
    client = made.signed_in(developer, enforce_csrf_checks=True)
    assert client.post(made.path(developer, "key/issue"), {"name": "laptop"}).status_code == 403
    assert client.post(made.path(developer, f"key/{key.row.uuid}/revoke"), {"confirm": "laptop"}).status_code == 403
    assert developer.api_keys.count() == 1
    assert developer.api_keys.get().revoked_at is None


def test_a_get_neither_issues_nor_revokes(developer: Member) -> None:
    key = factories.api_key(developer)
    client = made.signed_in(developer)
    assert client.get(made.path(developer, "key/issue")).status_code == 405
    assert client.get(made.path(developer, f"key/{key.row.uuid}/revoke")).status_code == 405
    assert developer.api_keys.get().revoked_at is None


def test_revoking_names_the_key_and_asks_for_its_name(developer: Member) -> None:
    key = factories.api_key(developer, name="ci <runner>")
    client = made.signed_in(developer)
    page = client.get(made.path(developer)).content.decode()
    assert "Revoke the key <strong>ci &lt;runner&gt;</strong>" in page
    assert "Type ci &lt;runner&gt; to confirm" in page

    wrong = client.post(made.path(developer, f"key/{key.row.uuid}/revoke"), {"confirm": "ci"}, follow=True)
    assert "Nothing was revoked: the name typed was not ci &lt;runner&gt;." in wrong.content.decode()
    assert developer.api_keys.get().revoked_at is None

    right = client.post(made.path(developer, f"key/{key.row.uuid}/revoke"), {"confirm": " ci <runner> "}, follow=True)
    assert "ci &lt;runner&gt; is revoked." in right.content.decode()
    assert key.row.public_id not in right.content.decode()
    assert developer.api_keys.get().revoked_at is not None


def test_a_colleagues_key_is_not_ones_own_to_revoke(developer: Member) -> None:
    """403 for a developer; a lead of another team neither; the owner may."""
    key = factories.api_key(developer)
    path = made.path(developer, f"key/{key.row.uuid}/revoke")
    other_team = factories.team(developer.organization, "Platform")
    for one in (
        factories.member(developer.organization),
        factories.member(developer.organization, role="lead", team=other_team),
    ):
        assert made.signed_in(one).post(path, {"confirm": "laptop"}).status_code == 403
        assert developer.api_keys.get().revoked_at is None
    owner = factories.member(developer.organization, role="owner")
    assert made.signed_in(owner).post(path, {"confirm": "laptop"}).status_code == 302
    assert developer.api_keys.get().revoked_at is not None


def test_only_ones_own_keys_and_requests_are_on_the_page(developer: Member) -> None:
    colleague = factories.member(developer.organization, team=developer.team)
    theirs = factories.api_key(colleague, name="a colleague's")
    row = made.used(theirs.row, 7 * made.CREDIT)
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert theirs.row.public_id not in page
    assert row.request_id not in page
    assert "You have no key yet" in page
    assert "No requests yet" in page


def test_what_is_left_is_said_in_the_first_sentence(developer: Member) -> None:
    client = made.signed_in(developer)
    assert answer(client.get(made.path(developer)).content).startswith(
        "You can spend 1,000,000 credits more in this plan period; the organization’s plan quota resets in "
    )
    set_limit(developer, "3000")
    assert answer(client.get(made.path(developer)).content).startswith(
        "You can spend 3,000 credits more today; your daily limit resets in "
    )


def test_a_tight_limit_and_an_empty_one_are_told(developer: Member) -> None:
    key = factories.api_key(developer)
    made.used(key.row, 2_739 * made.CREDIT, at=utc_now())
    set_limit(developer, "3000")
    page = made.signed_in(developer).get(made.path(developer)).content
    assert answer(page).startswith("You can spend 261 credits more today. Tighter than usual: your daily limit resets in ")
    assert '<section class="meter low" data-meter="member-credits-day">' in page.decode()

    set_limit(developer, "2700")
    page = made.signed_in(developer).get(made.path(developer)).content
    assert answer(page).startswith("Nothing can be sent now: your daily limit is used up. There is more in ")
    assert answer(page).endswith("; −39.00 credits left.")
    assert '<section class="meter out" data-meter="member-credits-day">' in page.decode()
    assert "<span data-used>2,739</span> of 2,700" in page.decode()


def test_a_limit_of_zero_never_comes_back(developer: Member) -> None:
    set_limit(developer, "0")
    said = answer(made.signed_in(developer).get(made.path(developer)).content)
    assert said == "Nothing can be sent now: your daily limit is set to 0; 0 credits left."


def test_every_limit_of_every_level_is_on_the_page(developer: Member) -> None:
    key = factories.api_key(developer, name="ci")
    organization = developer.organization
    limits.set_limit(organization, scope="organization", of=None, metric="credits", window="month", amount="50000", by=None)
    limits.set_limit(organization, scope="team", of="Quality", metric="tokens", window="week", amount="900000", by=None)
    limits.set_limit(organization, scope="key", of=key.row.public_id, metric="credits", window="day", amount="12.5", by=None)
    set_limit(developer, "60", metric="requests_per_minute", window="")
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert re.findall(r'data-meter="([^"]+)"', page) == [
        f"{key.row.public_id}-credits-day",
        "member-requests_per_minute-now",
        "organization-credits-month",
        "plan",
        "team-tokens-week",
    ]
    for text in (
        "the organization’s monthly limit",
        "your team’s weekly limit of tokens",
        "the key ci’s daily limit",
        "your limit of requests per minute",
        "of 900,000",
        "of 12.50",
        "of 50,000",
        "more within a minute",
    ):
        assert text in page, text


def test_without_a_plan_the_page_says_why_nothing_can_be_told() -> None:
    member = factories.member(factories.organization(plan=None))
    page = made.signed_in(member).get(made.path(member))
    assert page.status_code == 200
    assert answer(page.content).startswith("What is left cannot be told now: Your organization has no active plan.")


def test_a_suspended_organization_says_so(developer: Member) -> None:
    organizations.suspend(developer.organization, by=None)
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert "is suspended: every key is refused." in page


def test_the_configuration_is_the_one_that_works_with_this_address(developer: Member, settings: Any) -> None:
    settings.PUBLIC_URL = "https://weir.halden.example/"
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    codex = page.split('id="cfg-codex"')[1].split("<pre>")[1].split("</pre>")[0]
    text = re.sub(r"<[^>]+>", "", codex).replace("&quot;", '"').splitlines()
    assert text[1:] == [
        'model_provider = "weir"',
        'model = "gpt-5.5"',
        "",
        "[model_providers.weir]",
        'name = "OpenAI"',
        'base_url = "https://weir.halden.example/backend-api/codex"',
        'wire_api = "responses"',
        'env_key = "WEIR_KEY"',
    ]
    assert "https://weir.halden.example/v1/responses" in page.split('id="cfg-curl"')[1]
    assert '"https://weir.halden.example/v1"' in page.split('id="cfg-python"')[1]


def test_last_requests_show_price_status_and_estimates(developer: Member) -> None:
    key = factories.api_key(developer)
    made.used(key.row, 65_500, model="gpt-5.5")
    late = made.used(key.row, 3_380_000, status="client_closed", is_estimated=True, at=utc_now() - timedelta(seconds=5))
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    rows = re.findall(r"<tr data-request=.*?</tr>", page, re.S)
    assert len(rows) == 2
    assert late.request_id in rows[0]
    assert '<td class="num">3.38</td>' in rows[0]
    assert "Client left" in rows[0]
    assert "estimated" in rows[0]
    assert '<td class="num">0.0655</td>' in rows[1]
    assert "<span>1,200 in</span><span>+ 3,400 cached</span><span>+ 56 out</span>" in rows[1]
    assert "badge" not in rows[1]


def test_the_number_of_queries_does_not_grow(developer: Member) -> None:
    client = made.signed_in(developer)
    key = factories.api_key(developer)
    made.used(key.row, made.CREDIT)
    set_limit(developer, "3000")
    client.get(made.path(developer))
    with CaptureQueriesContext(connection) as few:
        client.get(made.path(developer))
    for number in range(12):
        more = factories.api_key(developer, name=f"key {number}")
        colleague = factories.api_key(factories.member(developer.organization, team=developer.team))
        made.used(more.row, made.CREDIT, model=f"model-{number}")
        made.used(colleague.row, made.CREDIT)
        set_limit(developer, "3000", window=("day", "week", "month")[number % 3])
    with CaptureQueriesContext(connection) as many:
        assert client.get(made.path(developer)).status_code == 200
    assert len(many) == len(few)


def test_what_a_request_costs_is_told_by_model_from_ones_own_use() -> None:
    organization = factories.organization()
    member, other = factories.member(organization), factories.member(organization)
    key = factories.api_key(member).row
    page = made.signed_in(member).get(made.path(member)).content.decode()
    assert "Nothing to go by yet" in page
    for credits in (1, 2, 3, 4, 50):
        made.used(key, credits * made.CREDIT, model="gpt-5.5")
    made.used(key, 7 * made.CREDIT, model="gpt-6.1-sol")
    made.used(key, 99 * made.CREDIT, model="gpt-6.1-sol", status="failed")
    made.used(factories.api_key(other).row, 500 * made.CREDIT, model="gpt-6-luna")
    page = made.signed_in(member).get(made.path(member)).content.decode()
    [card] = re.findall(r'<section class="card flush" id="prices".*?</section>', page, re.S)
    rows = [" ".join(re.sub(r"<[^>]+>", " ", row).split()) for row in re.findall(r"<tr>.*?</tr>", card, re.S)][1:]
    assert [row.rsplit(" ", 2)[0] for row in rows] == ["gpt-5.5 3.00 50.00 5", "gpt-6.1-sol 7.00 7.00 1"]
    assert "of your usual gpt-5.5 requests." in page
    assert "166 credits" in page.split('id="keys"')[1].split("Name of a new key")[0]
