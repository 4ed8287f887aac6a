"""Asking for more on My key, deciding it on Members & limits: who may, what is said, that nothing else happens."""

import re
from datetime import timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from accounts.models import Member
from config.clock import utc_now
from quotas import limits, remaining, requests
from quotas.models import Limit, LimitBoost, LimitRequest
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def developer() -> Member:
    organization = factories.organization(timezone="Europe/Berlin")
    return factories.member(organization, team=factories.team(organization, "Quality"))


@pytest.fixture
def limit(developer: Member) -> Limit:
    return daily(developer)


def daily(member: Member, amount: str = "100") -> Limit:
    assert member.user is not None
    which = {"scope": "member", "of": member.user.email, "metric": "credits", "window": "day"}
    return Limit.objects.get(uuid=limits.set_limit(member.organization, **which, amount=amount, by=None))


def days_on(days: int) -> str:
    return f"{utc_now().astimezone(BERLIN).date() + timedelta(days=days):%Y-%m-%d}"


def ask(member: Member, of: UUID | str, **fields: Any) -> Any:
    data = {"limit": str(of), "extra": "50", "until": days_on(2), "note": "the handbook", **fields}
    return made.signed_in(member).post(made.path(member, "key/ask"), data)


def decide(decider: Member, request: LimitRequest, decision: str = "approve", note: str = "") -> Any:
    data = {"decision": decision, "note": note}
    return made.signed_in(decider).post(made.path(decider, f"members/requests/{request.uuid}"), data)


def test_from_asking_to_having_more(developer: Member, limit: Limit) -> None:
    lead = factories.member(developer.organization, role="lead", team=developer.team)
    asked = ask(developer, limit.uuid, extra="1,050.5")
    assert (asked.status_code, asked["location"]) == (302, made.path(developer))
    request = LimitRequest.objects.get(member=developer)
    assert (request.asked_amount, request.note, request.status) == (1_050_500_000, "the handbook", "pending")
    # Until the end of that day, in the organization's zone.
    assert f"{request.until.astimezone(BERLIN):%Y-%m-%d %H:%M}" == f"{days_on(3)} 00:00"
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert "1,051 credits more" in page
    assert "Pending" in page

    page = made.signed_in(lead).get(made.path(lead, "members")).content.decode()
    assert f"{developer} asks for 1,051 credits more" in page
    assert "“the handbook”" in page
    assert "1 request for more</strong> waits" in page
    before = remaining.standing(developer, now=utc_now()).spendable.left
    approved = decide(lead, request, note="go on")
    assert (approved.status_code, approved["location"]) == (302, made.path(lead, "members"))
    assert remaining.standing(developer, now=utc_now()).spendable.left - before == 1_050_500_000
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert re.search(r"Approved by lead-[^,]+, .*: “go on”", page)
    assert "Asked for more" not in made.signed_in(lead).get(made.path(lead, "members")).content.decode()


def test_a_denied_request_says_why(developer: Member, limit: Limit) -> None:
    lead = factories.member(developer.organization, role="lead", team=developer.team)
    ask(developer, limit.uuid)
    request = LimitRequest.objects.get(member=developer)
    wordless = decide(lead, request, "deny")
    assert wordless.status_code == 400
    assert "Say why: the member reads it." in wordless.content.decode()
    request.refresh_from_db()
    assert request.status == "pending"
    assert decide(lead, request, "deny", "use the smaller model").status_code == 302
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert "“use the smaller model”" in page
    assert not LimitBoost.objects.filter(organization=developer.organization).exists()


def test_a_request_is_withdrawn_by_who_made_it_only(developer: Member, limit: Limit) -> None:
    ask(developer, limit.uuid)
    request = LimitRequest.objects.get(member=developer)
    path = made.path(developer, f"key/requests/{request.uuid}/withdraw")
    for role in ("lead", "owner", "developer"):
        assert made.signed_in(factories.member(developer.organization, role=role)).post(path).status_code == 403
    request.refresh_from_db()
    assert request.status == "pending"
    assert made.signed_in(developer).post(path).status_code == 302
    request.refresh_from_db()
    assert request.status == "withdrawn"
    # Once more: said, and nothing changed.
    again = made.signed_in(developer).post(path, follow=True)
    assert "The request is withdrawn already." in again.content.decode()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"extra": ""}, "This field is required."),
        ({"extra": "much"}, "How much more? &#x27;much&#x27; is not a decimal number of credits, such as 12 or 0.25."),
        ({"extra": "0"}, "How much more? The amount must be above 0."),
        ({"until": "soon"}, "A day, like 2026-12-04."),
        ({"until": days_on(-1)}, "Until when? That day has passed."),
        ({"until": days_on(requests.MOST_DAYS)}, "At most 92 days, until "),
        ({"note": "x" * 401}, "The note has 401 characters; 400 are kept."),
        ({"limit": "none"}, "Choose one of the limits."),
    ],
)
def test_what_cannot_be_asked_is_said_beside_its_field_and_what_was_typed_stays(
    developer: Member, limit: Limit, fields: dict[str, str], said: str
) -> None:
    answered = ask(developer, limit.uuid, **{"note": "typed", **fields})
    assert 400 <= answered.status_code < 500
    page = answered.content.decode()
    assert re.search(
        rf'aria-invalid="true" aria-describedby="[^"]+">.*?<span class="error" id="[^"]+">{re.escape(said)}', page, re.S
    )
    assert 'value="typed"' in page or "note" in fields
    assert not LimitRequest.objects.filter(organization=developer.organization).exists()


def test_a_second_request_for_the_same_limit_is_refused(developer: Member, limit: Limit) -> None:
    ask(developer, limit.uuid)
    again = ask(developer, limit.uuid)
    assert again.status_code == 409
    assert "You have asked for more of this limit already." in again.content.decode()
    assert LimitRequest.objects.filter(member=developer).count() == 1


def test_what_does_not_hold_one_cannot_be_asked_for(developer: Member) -> None:
    colleague = daily(factories.member(developer.organization))
    foreign = daily(factories.member(factories.organization()))
    assert ask(developer, colleague.uuid).status_code == 400
    assert ask(developer, foreign.uuid).status_code == ask(developer, developer.uuid).status_code == 404
    assert not LimitRequest.objects.filter(organization=developer.organization).exists()


def test_the_form_names_the_limits_that_hold_and_chooses_the_one_to_blame(developer: Member, limit: Limit) -> None:
    weekly = limits.set_limit(
        developer.organization, scope="team", of="Quality", metric="credits", window="week", amount="500", by=None
    )
    page = made.signed_in(developer).get(made.path(developer) + f"?ask={weekly}").content.decode()
    options = re.findall(r'<option value="([^"]+)"( selected)?>([^<]+)</option>', page.split('id="ask"')[1])
    assert options == [
        (str(limit.uuid), "", "Your daily limit: 100 credits"),
        (str(weekly), " selected", "Your team’s weekly limit: 500 credits"),
    ]
    assert 'id="ask-limit"' not in made.signed_in(developer).get(made.path(developer)).content.decode()


@pytest.mark.parametrize(("role", "team", "status"), [
    ("developer", "Quality", 403), ("finance", None, 403), ("lead", "Platform", 403),
    ("lead", "Quality", 302), ("lead", None, 302), ("owner", None, 302),
])  # fmt: skip
def test_who_may_decide(developer: Member, limit: Limit, role: str, team: str | None, status: int) -> None:
    organization = developer.organization
    decider = factories.member(organization, role=role, team=factories.team(organization, team) if team else None)
    ask(developer, limit.uuid)
    request = LimitRequest.objects.get(member=developer)
    assert decide(decider, request).status_code == status
    assert LimitBoost.objects.filter(organization=organization).count() == (status == 302)


def test_a_developer_cannot_approve_their_own_and_a_stranger_finds_nothing(developer: Member, limit: Limit) -> None:
    """J5 in part."""
    ask(developer, limit.uuid)
    request = LimitRequest.objects.get(member=developer)
    assert decide(developer, request).status_code == 403
    stranger = factories.member(factories.organization(), role="owner")
    foreign = decide(stranger, request)
    assert foreign.status_code == 404
    missing = made.signed_in(stranger).post(made.path(stranger, f"members/requests/{limit.uuid}"), {"decision": "approve"})
    assert (missing.status_code, missing.content) == (404, foreign.content)
    request.refresh_from_db()
    assert request.status == "pending"


def test_above_the_leads_own_scope_is_said_and_left_to_an_owner(developer: Member, limit: Limit) -> None:
    lead = factories.member(developer.organization, role="lead", team=developer.team)
    limits.set_limit(developer.organization, scope="team", of="Quality", metric="credits", window="day", amount="120", by=None)
    ask(developer, limit.uuid, extra="50")
    request = LimitRequest.objects.get(member=developer)
    refused = decide(lead, request)
    assert refused.status_code == 403
    said = "Leads do not go above the limit of their own scope: the Quality team may use 120. Ask an owner."
    assert said in refused.content.decode()
    request.refresh_from_db()
    assert request.status == "pending"
    assert not LimitBoost.objects.filter(organization=developer.organization).exists()


def test_who_comes_second_is_told(developer: Member, limit: Limit) -> None:
    first, second = (factories.member(developer.organization, role="lead", team=developer.team) for _ in range(2))
    ask(developer, limit.uuid)
    request = LimitRequest.objects.get(member=developer)
    assert decide(first, request).status_code == 302
    late = decide(second, request, "deny", "no")
    assert late.status_code == 409
    assert "Nothing was changed: The request is approved already." in late.content.decode()
    request.refresh_from_db()
    assert request.status == "approved"
