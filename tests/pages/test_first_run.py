"""Getting started: a new organization's list of first steps, and what every page says before there is anything."""

import html
import re
from datetime import timedelta

import pytest

from accounts import keys
from accounts.models import AuditEvent, Member
from config.clock import utc_now
from quotas import first_run, limits
from routing.models import Pool, PoolAccount
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner() -> Member:
    return factories.member(factories.organization(), role="owner")


def page(member: Member, name: str = "overview") -> str:
    answered = made.signed_in(member).get(made.path(member, name))
    assert answered.status_code == 200
    return str(answered.content.decode())


def text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup)).split())


def steps(member: Member) -> dict[str, str]:
    """By its name how a step stands: done, current or nothing."""
    return {name: state for state, name in re.findall(r'<li class="(\w*)" data-step="(\w+)"', page(member))}


class TestSteps:
    def test_a_new_organization_begins_with_an_account(self, owner: Member) -> None:
        assert steps(owner) == {"account": "current", "invite": "", "limits": "", "request": ""}
        said = text(page(owner).split('id="first-run"')[1])
        assert "4 steps left; you can leave and come back" in said
        assert "Waits for the first account: without one every request would be refused." in said
        assert f'href="{made.path(owner, "pool")}?add=key"' in page(owner)

    def test_each_is_done_by_what_there_is_in_any_order(self, owner: Member) -> None:
        limits.set_limit(owner.organization, scope="organization", of="", metric="credits", window="day", amount="5")
        assert steps(owner) == {"account": "current", "invite": "", "limits": "done", "request": ""}
        factories.member(owner.organization)
        assert steps(owner) == {"account": "current", "invite": "done", "limits": "done", "request": ""}
        account, _ = factories.openai_account(owner.organization)
        assert steps(owner) == {"account": "done", "invite": "done", "limits": "done", "request": "current"}
        made.used(keys.issue(owner, name="x", by=None, now=utc_now()).key, 5)
        assert steps(owner) == {}
        # What is undone again is told again, as long as the organization is new.
        PoolAccount.objects.filter(pk=account.pk).update(status=PoolAccount.Status.WITHDRAWN)
        assert steps(owner)["account"] == "current"

    def test_an_operators_shared_pool_is_an_account(self, owner: Member) -> None:
        shared = Pool.objects.create(organization=None, name=factories.unique("shared"), plans=["plus"])
        account, _ = factories.openai_account(factories.organization())
        PoolAccount.objects.filter(pk=account.pk).update(pool=shared)
        assert steps(owner) == {"account": "done", "invite": "current", "limits": "", "request": ""}

    def test_a_week_after_the_first_request_it_is_over_whatever_was_not_set(self, owner: Member) -> None:
        key = keys.issue(owner, name="x", by=None, now=utc_now()).key
        made.used(key, 5, at=utc_now() - timedelta(days=6))
        assert steps(owner)["limits"] == ""
        made.used(key, 5, at=utc_now() - timedelta(days=8))
        assert steps(owner) == {}

    def test_it_is_put_away_for_all_once(self, owner: Member) -> None:
        lead = factories.member(owner.organization, role="lead")
        assert steps(lead)
        for _ in range(2):
            answered = made.signed_in(owner).post(made.path(owner, "overview/begun"), follow=True)
            assert "Put away." in text(answered.content.decode())
        assert steps(owner) == steps(lead) == {}
        assert AuditEvent.objects.filter(organization=owner.organization, action=first_run.PUT_AWAY).count() == 1

    @pytest.mark.parametrize(("role", "is_of_team"), [("developer", False), ("finance", False), ("lead", True)])
    def test_who_does_not_look_after_the_pool_has_none_of_it(self, owner: Member, role: str, is_of_team: bool) -> None:
        other = factories.member(owner.organization, role=role, team=factories.team(owner.organization) if is_of_team else None)
        assert 'id="first-run"' not in page(other)
        assert made.signed_in(other).post(made.path(other, "overview/begun")).status_code == 403
        assert not AuditEvent.objects.filter(organization=owner.organization, action=first_run.PUT_AWAY).exists()


EMPTY = {
    "key": ("You have no key yet", "Issue one here"),
    "overview": ("Get started", "Add the first account"),
    "members": ("Add a limit",),
    "pool": ("The pool is empty", "Add account"),
    "requests": ("No requests",),
    "usage": ("Nothing was used",),
    "invoices": ("No invoice yet",),
    "alerts": ("Nothing needs anybody", "No endpoint yet"),
    "jobs": ("No file is waiting for you.", "None yet"),
    "settings/tokens": ("None yet", "Issue token"),
    "settings/models": ("No model is kept from everybody", "No model has a stand-in"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_page_without_anything_says_why_and_what_is_next(owner: Member, name: str) -> None:
    said = text(page(owner, name))
    for sentence in EMPTY[name]:
        assert sentence in said, said[-1500:]


def test_my_key_says_that_no_account_carries_anything_yet(owner: Member) -> None:
    developer = factories.member(owner.organization)
    assert "No account is in the pool yet. Until one joins every request is refused. An owner," in text(page(developer, "key"))
    assert f'href="{made.path(owner, "pool")}?add=key"' in page(owner, "key")
    factories.openai_account(owner.organization)
    assert "No account is in the pool yet." not in page(developer, "key")


class TestGlance:
    """The pool for developers, where their organization shows it."""

    def test_it_is_shown_where_the_owner_turned_it_on_and_names_nobody(self, owner: Member) -> None:
        developer = factories.member(owner.organization)
        lead = factories.member(owner.organization, role="lead", team=factories.team(owner.organization))
        account, _ = factories.openai_account(owner.organization, label="Dario’s key")
        client = made.signed_in(developer)
        assert client.get(made.path(developer, "pool")).status_code == 403
        assert ">Pool</a>" not in page(developer, "key")
        made.signed_in(owner).post(made.path(owner, "settings/pool"), {"shown": "1"})
        for member in (developer, lead):
            shown = page(member, "pool")
            assert "Account 1 API key" in text(shown)
            assert "Serving" in shown
            for mark in ("Dario", str(account.uuid), account.identity, "strategy", "Add account"):
                assert mark not in shown, mark
            assert f'<a href="{made.path(member, "pool")}" aria-current="page">' in shown
        assert made.signed_in(developer).post(made.path(developer, f"pool/accounts/{account.uuid}/pause")).status_code == 403
        finance = factories.member(owner.organization, role="finance")
        assert made.signed_in(finance).get(made.path(finance, "pool")).status_code == 403
        made.signed_in(owner).post(made.path(owner, "settings/pool"), {"shown": "0"})
        assert client.get(made.path(developer, "pool")).status_code == 403

    def test_an_account_of_another_teams_pool_is_not_in_it(self, owner: Member) -> None:
        mine, other = factories.team(owner.organization), factories.team(owner.organization)
        factories.openai_account(owner.organization)
        Pool.objects.get(organization=owner.organization).teams.set([other])
        made.signed_in(owner).post(made.path(owner, "settings/pool"), {"shown": "1"})
        developer = factories.member(owner.organization, team=mine)
        assert "The pool is empty" in page(developer, "pool")
        assert "Account 1" in page(factories.member(owner.organization, team=other), "pool")

    def test_owners_and_leads_of_everything_keep_the_whole_page(self, owner: Member) -> None:
        made.signed_in(owner).post(made.path(owner, "settings/pool"), {"shown": "1"})
        factories.openai_account(owner.organization, label="Dario’s key")
        assert "Dario" in page(owner, "pool")
        assert "Dario" in page(factories.member(owner.organization, role="lead"), "pool")
