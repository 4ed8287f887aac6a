"""What a lead changes of an account: the rules behind the page."""

from typing import Any

import pytest

from accounts.models import AuditEvent, Organization
from config.clock import utc_now
from routing import accounts, upkeep
from routing.errors import AccountError, AccountWithdrawn
from routing.models import PoolAccount
from tests.routing import made
from tests.routing.test_accounts import api_key
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def organization() -> Organization:
    return made.organization()


@pytest.fixture
def account(organization: Organization) -> PoolAccount:
    return accounts.add_key(organization, api_key(), label="Key", by=None, now=utc_now())


def version(organization: Organization) -> int:
    organization.refresh_from_db()
    return organization.config_version


@pytest.mark.parametrize("fields", [
    {"status": "active"}, {"floor_percent": 101}, {"concurrency_cap": 0}, {"priority": -101}, {"weight_thousandths": 0},
    {"label": " "}, {"models_served": []}, {"models_served": [""]}, {"efforts_served": []}, {"tiers_served": ["a\nb"]},
    {"efforts_served": ["x" * 21]},
])  # fmt: skip
def test_what_cannot_be_changes_nothing(organization: Organization, account: PoolAccount, fields: dict[str, Any]) -> None:
    before = version(organization)
    with pytest.raises(AccountError):
        upkeep.change(account, {"floor_percent": 5, **fields}, by=None)
    account.refresh_from_db()
    assert (account.floor_percent, version(organization)) == (0, before)


def test_every_change_is_one_version_and_one_event(organization: Organization, account: PoolAccount) -> None:
    before = version(organization)
    upkeep.change(account, {"floor_percent": 5, "priority": 3}, by=None)
    upkeep.change(account, {"floor_percent": 5, "priority": 3}, by=None)
    upkeep.pause(account, by=None)
    upkeep.pause(account, by=None)
    upkeep.resume(account, by=None)
    upkeep.remove(account, by=None)
    upkeep.remove(account, by=None)
    assert version(organization) == before + 4
    events = AuditEvent.objects.filter(object_id=str(account.uuid)).order_by("pk").values_list("action", flat=True)
    assert list(events) == ["account.added", "account.changed", "account.paused", "account.resumed", "account.removed"]


def test_what_is_out_does_not_come_back_by_being_resumed(account: PoolAccount) -> None:
    upkeep.remove(account, by=None)
    for turn in (upkeep.pause, upkeep.resume):
        with pytest.raises(AccountError):
            turn(account, by=None)
    with pytest.raises(AccountError):
        upkeep.new_withdrawal_link(account, by=None)


def test_a_sign_in_that_was_taken_out_is_not_brought_back_by_its_file(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """Its row stays, so that a withdrawal cannot be undone by taking the account out and giving the file again."""
    auth = upstream.mint()
    account = accounts.add_chatgpt(organization, auth, label="Ada", accept_terms=True, by=None, now=utc_now())
    upkeep.remove(account, by=None)
    with pytest.raises(AccountWithdrawn):
        accounts.add_chatgpt(organization, auth, label="Ada", accept_terms=True, by=None, now=utc_now())
    account.refresh_from_db()
    assert (account.status, account.access_token) == ("withdrawn", "")
