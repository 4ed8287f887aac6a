"""An account that a lead paused stays paused, whatever its sign-in goes through meanwhile."""

from typing import Any

import pytest

from accounts.models import Organization
from config.clock import utc_now
from routing import accounts, credentials, tokens, withdrawal
from routing.errors import SignInNeeded
from routing.models import PoolAccount
from tests.routing import made
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("remote")]


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def join(organization: Organization, upstream: ScriptedUpstream, **options: Any) -> PoolAccount:
    return accounts.add_chatgpt(organization, upstream.mint(**options), label="Ada", accept_terms=True, by=None, now=utc_now())


def paused(organization: Organization, upstream: ScriptedUpstream) -> PoolAccount:
    account = join(organization, upstream)
    PoolAccount.objects.filter(pk=account.pk).update(status="paused")
    return account


def test_a_paused_account_that_is_refused_for_good_needs_sign_in_and_comes_back_paused(
    organization: Organization, upstream: ScriptedUpstream
) -> None:
    """N41 N42."""
    account = paused(organization, upstream)
    upstream.revoke(account_id=account.chatgpt_account_id)
    with pytest.raises(SignInNeeded):
        credentials.refresh(account.pk, "proactive_expiry")
    account.refresh_from_db()
    assert (account.status, account.was_paused, account.status_reason) == (
        "needs_sign_in",
        True,
        "refresh_token_invalidated",
    )
    again = join(organization, upstream, account_id=account.chatgpt_account_id)
    assert (again.pk, again.status, again.was_paused, again.status_reason) == (account.pk, "paused", False, "")


def test_an_account_that_served_comes_back_serving(organization: Organization, upstream: ScriptedUpstream) -> None:
    """N41: also one that was paused once, and was not any more."""
    account = paused(organization, upstream)
    accounts.need_sign_in(account.pk, "refused")
    join(organization, upstream, account_id=account.chatgpt_account_id)
    PoolAccount.objects.filter(pk=account.pk).update(status="active")
    accounts.need_sign_in(account.pk, "refused")
    again = join(organization, upstream, account_id=account.chatgpt_account_id)
    assert (again.status, again.was_paused) == ("active", False)


@pytest.mark.parametrize("needs_sign_in_first", [False, True])
def test_a_paused_account_that_was_withdrawn_comes_back_paused(
    organization: Organization, upstream: ScriptedUpstream, needs_sign_in_first: bool
) -> None:
    account = paused(organization, upstream)
    if needs_sign_in_first:
        accounts.need_sign_in(account.pk, "refused")
    withdrawal.withdraw(organization, str(account.uuid), by=None)
    sign_in = upstream.mint(account_id=account.chatgpt_account_id)
    again = accounts.add_sign_in(organization, read(sign_in), is_persons_own=True, by=None, now=utc_now())
    assert (again.pk, again.status, again.was_paused) == (account.pk, "paused", False)


def read(auth_json: dict[str, Any]) -> Any:
    return tokens.read_auth_json(auth_json)


def test_a_paused_key_that_is_refused_needs_sign_in_and_comes_back_paused(organization: Organization) -> None:
    key = f"sk-test-{made.number():040d}"
    account = accounts.add_key(organization, key, label="Key", by=None, now=utc_now())
    PoolAccount.objects.filter(pk=account.pk).update(status="paused")
    accounts.need_sign_in(account.pk, "invalid_api_key")
    again = accounts.add_key(organization, key, label="Key", by=None, now=utc_now())
    assert (again.pk, again.status) == (account.pk, "paused")
