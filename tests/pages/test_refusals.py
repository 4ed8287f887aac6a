"""Why was I refused: whose limit, how much of it, when there is room, what to do; to whom it happened, and to their lead."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.core.management import call_command

from accounts.models import Member
from config.clock import utc_now
from quotas import limits, requests
from quotas import refused as words
from quotas.models import Limit, Refusal
from quotas.refusal_log import CODES
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db

CREDIT = made.CREDIT


@pytest.fixture
def developer() -> Member:
    organization = factories.organization(timezone="Europe/Berlin")
    return factories.member(organization, team=factories.team(organization, "Quality"))


def refused(member: Member, **fields: Any) -> Refusal:
    """318.40 credits needed where 272.10 of 3,000 were left; room at the next midnight of Berlin."""
    at = fields.pop("at", utc_now() - timedelta(minutes=1))
    facts: dict[str, Any] = {"limit": 3000 * CREDIT, "used": 2686 * CREDIT, "held": 41_900_000, "need": 318_400_000}
    about = {"code": "limit_reached", "scope": "member", "scope_name": str(member), "metric": "credits", "window": "day"}
    return Refusal.objects.create(
        **{
            "organization": member.organization,
            "member_id": member.pk,
            "team_id": member.team_id,
            "key_id": member.pk,
            "minute": at.replace(second=0, microsecond=0),
            "last_at": at,
            "model": "gpt-6-astra",
            "message": "Limit reached.",
            "resets_at": at + timedelta(hours=9),
            **facts,
            **about,
            **fields,
        }
    )


def unnumbered(member: Member, code: str, message: str, **fields: Any) -> Refusal:
    nothing = {"scope": "", "scope_name": "", "metric": "", "window": "", "resets_at": None, "model": ""}
    numbers = {"limit": None, "used": None, "held": None, "need": None}
    return refused(member, code=code, message=message, **{**nothing, **numbers, **fields})


def told(member: Member, page: str = "key", of: Member | None = None) -> list[str]:
    """The refusals on a page, as read."""
    content = made.signed_in(of or member).get(made.path(member, page)).content.decode()
    articles = re.findall(r'<article class="refusal".*?</article>', content, re.S)
    return [" ".join(re.sub(r"<[^>]+>", " ", article).split()) for article in articles]


def test_a_refusal_says_whose_limit_how_much_and_when_there_is_room(developer: Member) -> None:
    key = factories.api_key(developer, name="laptop")
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    refused(developer, key_id=key.row.pk, at=at, count=3)
    [said] = told(developer)
    assert said.startswith("Your daily limit would have been passed ")
    assert "3 times within the minute 272 left but 318 needed: gpt-6-astra" in said
    assert f"Limit Member {developer} · credits, today Used then 2,686 of 3,000 Held 41.90 Room again " in said
    assert " CET, in 8 h 58 min Key laptop" in said or " CET, in 8 h 59 min Key laptop" in said


def test_an_overdraft_is_shown_and_a_remainder_is_never_less(developer: Member) -> None:
    """L7: used 120 of 100: pages show the overdraft."""
    refused(developer, limit=100 * CREDIT, used=120 * CREDIT, held=0, need=5 * CREDIT)
    [said] = told(developer)
    assert "−20.00 left, an overdraft, but 5.00 needed" in said
    assert "Used then 120 of 100" in said


def test_what_never_fits_and_what_waits_for_a_running_request_are_told(developer: Member) -> None:
    now = utc_now()
    refused(developer, need=3001 * CREDIT, resets_at=None, at=now - timedelta(minutes=3))
    refused(
        developer, code="concurrency_limit", metric="concurrent", window="", limit=2, used=2, held=0, need=1, resets_at=None, at=now
    )
    refused(developer, resets_at=now - timedelta(minutes=1), at=now - timedelta(hours=10))
    at_once, large, past = told(developer)
    assert at_once.startswith("Your limit of requests at once was reached")
    assert "0 left but 1 needed" in at_once
    assert "Room again when a running request ends" in at_once
    assert "Room again never: more was needed than the limit gives" in large
    assert " CET, so now" in past


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ({"scope": "team", "scope_name": "Quality", "window": "7d"}, "Your team’s 7-day limit would have been passed"),
        (
            {"scope": "organization", "scope_name": "Org", "window": "month"},
            "The organization’s monthly limit would have been passed",
        ),
        ({"scope": "key", "scope_name": "ci", "metric": "tokens"}, "The key ci’s daily limit of tokens would have been passed"),
        ({"scope": "member", "metric": "requests_per_minute", "window": ""}, "Your limit of requests per minute was reached"),
        ({"scope": "member", "metric": "requests_per_second", "window": ""}, "Your limit of requests per second was reached"),
        ({"scope": "plan", "scope_name": "plus", "window": "period"}, "The plan’s quota would have been passed"),
        ({"scope": "plan", "scope_name": "", "window": "period", "limit": 0}, "There is no plan to draw on"),
    ],
)
def test_the_title_names_the_level(developer: Member, fields: dict[str, Any], title: str) -> None:
    """G4: whose limit it was is never hidden."""
    refused(developer, **fields)
    [said] = told(developer)
    assert said.startswith(title)


def test_every_code_has_a_title_and_what_to_do(developer: Member) -> None:
    codes = sorted(CODES - {"limit_reached", "rate_limit_exceeded"})
    for code in codes:
        unnumbered(developer, code, f"Sentence of {code}.")
    said = words.own(developer, count=100)
    assert sorted(one.row.code for one in said) == codes
    assert len({one.title for one in said}) == len(codes)
    assert "The request was refused" not in {one.title for one in said}
    # What is wrong with the request itself is in the sentence already.
    assert {one.row.code for one in said if not one.advice} == {"invalid_json", "invalid_encoding"}


def test_more_can_be_asked_for_once_where_a_limit_is_to_blame(developer: Member) -> None:
    assert developer.user is not None
    made_ = limits.set_limit(
        developer.organization, scope="member", of=developer.user.email, metric="credits", window="day", amount="3000", by=None
    )
    limit = Limit.objects.get(uuid=made_)
    refused(developer, limit_uuid=made_)
    client = made.signed_in(developer)
    page = client.get(made.path(developer)).content.decode()
    assert f'href="{made.path(developer)}?ask={made_}#ask"' in page
    requests.ask(developer, limit, extra="500", until=utc_now() + timedelta(days=1), by=None, now=utc_now())
    page = client.get(made.path(developer)).content.decode()
    assert f'href="{made.path(developer)}?ask={made_}#ask"' not in page
    assert "You asked for more of it" in page
    limits.change(limit, "none", by=None)
    assert "You asked for more of it" not in client.get(made.path(developer)).content.decode()


def test_everybody_sees_their_own_and_leads_their_scope(developer: Member) -> None:
    organization = developer.organization
    lead = factories.member(organization, role="lead", team=developer.team)
    owner = factories.member(organization, role="owner")
    colleague = factories.member(organization, team=developer.team)
    elsewhere = factories.member(organization, team=factories.team(organization, "Platform"))
    for one in (developer, colleague, elsewhere):
        unnumbered(one, "model_not_found", f"Refused was {one.uuid}.")
    foreign = factories.member(factories.organization())
    unnumbered(foreign, "model_not_found", f"Refused was {foreign.uuid}.")

    def seen(member: Member, page: str) -> set[Member]:
        said = " ".join(told(member, page))
        return {one for one in (developer, colleague, elsewhere, foreign) if str(one.uuid) in said}

    assert seen(developer, "key") == {developer}
    assert seen(lead, "key") == set()
    assert seen(lead, "members") == {developer, colleague}
    assert seen(owner, "members") == {developer, colleague, elsewhere}
    assert seen(owner, f"members/{elsewhere.uuid}") == {elsewhere}
    assert made.signed_in(lead).get(made.path(lead, f"members/{elsewhere.uuid}")).status_code == 403


def test_who_moved_to_a_team_does_not_bring_old_refusals_along(developer: Member) -> None:
    lead = factories.member(developer.organization, role="lead", team=developer.team)
    unnumbered(developer, "model_not_found", "From before.", team_id=None)
    assert told(lead, "members") == []
    assert len(told(developer)) == 1


def test_nothing_of_what_a_client_sent_is_markup(developer: Member) -> None:
    unnumbered(developer, "model_not_found", "<script>alert(1)</script>", model="<b>x</b>")
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>x</b>" not in page


def test_the_command_shows_them_newest_first(developer: Member, capsys: Any) -> None:
    assert developer.user is not None
    refused(developer, at=utc_now() - timedelta(hours=1), limit_uuid=UUID(int=1))
    unnumbered(developer, "pool_busy", "Every account of the pool is cooling down.")
    call_command("show_refusals", developer.organization.slug, "--member", developer.user.email)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("pool_busy  1x  Every account of the pool is cooling down.")
    assert second.endswith("limit_reached  1x  Limit reached.")
    call_command("show_refusals", developer.organization.slug, "--count", "1", "--json")
    assert '"code": "pool_busy"' in capsys.readouterr().out
