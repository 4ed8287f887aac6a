"""The person of a pooled sign-in is told by e-mail, and takes it out by the link in it, or an operator does for them."""

import logging
import re
import threading
from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.test import Client

from accounts.models import AuditEvent, Organization
from config import snapshot
from config.clock import utc_now
from config.redis import sync_client
from routing import accounts, credentials, snapshots, tokens, withdrawal
from routing.errors import LinkInvalid, SignInNeeded
from routing.models import PoolAccount
from tests import factories, secrets
from tests.routing import made
from tests.routing.test_accounts import api_key, auth_json, ids, join
from tests.upstream import ScriptedUpstream

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization() -> Organization:
    return made.organization()


def link(message: Any) -> str:
    """The token of the one link in a message."""
    (found,) = re.findall(r"/withdraw/(\S+)", str(message.body))
    return secrets.register(found, "withdrawal link")


def test_the_person_is_told_once_with_a_link_of_their_own(organization: Organization, settings: Any) -> None:
    settings.PUBLIC_URL = "https://weir.example"
    owner = factories.member(organization, role="owner").user
    assert owner is not None
    account_id, user_id = ids()
    account = join(organization, auth_json(account_id, user_id, email="ada@example.test"), label="Ada's <Plus>", by=owner)
    (message,) = mail.outbox
    assert message.to == ["ada@example.test"]
    body = str(message.body)
    for told in (owner.email, organization.name, "Ada's <Plus>", "https://weir.example/withdraw/"):
        assert told in body
    assert link(message) not in account.withdrawal_digest
    # A renewal is no news, and the link stays good.
    join(organization, auth_json(account_id, user_id, email="ada@example.test"))
    assert len(mail.outbox) == 1
    assert withdrawal.look_up(link(message)).email == "ada@example.test"


def test_api_keys_need_none_of_this(organization: Organization) -> None:
    accounts.add_key(organization, api_key(), label="Key", by=None, now=utc_now())
    assert mail.outbox == []
    organization.refresh_from_db()
    assert organization.sign_in_terms_accepted_at is None


def test_an_account_whose_joining_fails_tells_nobody(organization: Organization) -> None:
    with pytest.raises(accounts.AccountError):
        join(organization, auth_json(*ids()), label="x" * 81)
    assert mail.outbox == []


def test_a_mail_that_cannot_be_sent_keeps_nothing_from_working(
    organization: Organization, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 9
    with caplog.at_level(logging.WARNING, logger="routing"):
        account = join(organization, auth_json(*ids()))
        nameless = join(organization, auth_json(*ids(), email=""))
    assert [record.getMessage() for record in caplog.records] == ["person not told", "nobody to tell of a pooled sign-in"]
    assert (account.status, nameless.status) == ("active", "active")
    assert "/withdraw/" not in caplog.text


def test_the_link_takes_the_account_out_and_erases_its_tokens(organization: Organization) -> None:
    account = join(organization, auth_json(*ids()))
    version = Organization.objects.get(pk=organization.pk).config_version
    token = link(mail.outbox[0])
    withdrawal.withdraw_by_link(token)
    account.refresh_from_db()
    assert (account.status, account.access_token, account.refresh_token) == ("withdrawn", "", "")
    assert (account.access_expires_at, account.withdrawal_digest, account.credential_version) == (None, "", 2)
    assert Organization.objects.get(pk=organization.pk).config_version == version + 1
    assert snapshots.load(organization.pk).pools[0].accounts[0].status == "withdrawn"
    key = f"routing:{{s{organization.pk % 32:02d}}}:p{account.pool_id}:live"
    assert sync_client().hget(key, f"{account.pk}:v") == b"2"
    event = AuditEvent.objects.get(organization=organization, action="account.withdrawn")
    assert (event.actor, event.actor_label) == (None, "the account's person")
    with pytest.raises(SignInNeeded):
        credentials.load(account.pk)
    for _ in range(2):
        with pytest.raises(LinkInvalid):
            withdrawal.withdraw_by_link(token)
    assert AuditEvent.objects.filter(organization=organization, action="account.withdrawn").count() == 1


async def test_a_process_that_holds_the_token_in_memory_drops_it(organization: Organization) -> None:
    account = await snapshot.in_thread(lambda: join(organization, auth_json(*ids())))
    seen = (await snapshot.in_thread(lambda: snapshots.load(organization.pk))).pools[0].accounts[0]
    await credentials.bearer(seen, version=1)
    await snapshot.in_thread(lambda: withdrawal.withdraw(organization, str(account.uuid), by=None))
    with pytest.raises(SignInNeeded):
        await credentials.bearer(seen, version=2)


def test_a_refresh_under_way_brings_nothing_back(organization: Organization, remote: ScriptedUpstream) -> None:
    account = join(organization, remote.mint())
    remote.script({"hold": {"name": "withdrawn", "after": "request"}}, path="/oauth/token")
    ended: list[Exception] = []

    def renew() -> None:
        try:
            credentials.refresh(account.pk, "proactive_expiry")
        except SignInNeeded as error:
            ended.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=renew)
    thread.start()
    while not PoolAccount.objects.filter(pk=account.pk, refresh_claim__isnull=False).exists():
        pass
    withdrawal.withdraw(organization, str(account.uuid), by=None)
    remote.release("withdrawn")
    thread.join(20)
    assert len(ended) == 1
    account.refresh_from_db()
    assert (account.status, account.access_token, account.refresh_token) == ("withdrawn", "", "")
    assert account.pk not in credentials.due(utc_now())
    assert not accounts.need_sign_in(account.pk, "late refusal")


def test_coming_back_by_ones_own_sign_in_is_told_again_with_a_new_link(organization: Organization) -> None:
    account_id, user_id = ids()
    account = join(organization, auth_json(account_id, user_id))
    old = link(mail.outbox[0])
    withdrawal.withdraw(organization, str(account.uuid), by=None)
    own = tokens.read_auth_json(auth_json(account_id, user_id))
    back = accounts.add_sign_in(organization, own, is_persons_own=True, by=None, now=utc_now())
    assert (back.pk, back.status) == (account.pk, "active")
    assert len(mail.outbox) == 2
    assert link(mail.outbox[1]) != old
    with pytest.raises(LinkInvalid):
        withdrawal.look_up(old)


# -------------------------------------------------------------------------------------------------------------- page


def test_the_page_asks_first_and_a_post_does_it(organization: Organization) -> None:
    account = join(organization, auth_json(*ids(), email="ada@example.test"), label="Ada & Bob")
    url = f"/withdraw/{link(mail.outbox[0])}"
    client = Client()
    shown = client.get(url)
    assert shown.status_code == 200
    assert "Ada &amp; Bob" in shown.text
    assert "no-store" in shown["cache-control"]
    account.refresh_from_db()
    assert account.status == "active"
    assert Client(enforce_csrf_checks=True).post(url).status_code == 403
    done = client.post(url)
    assert (done.status_code, "Your account is out" in done.text) == (200, True)
    account.refresh_from_db()
    assert account.status == "withdrawn"
    for method in (client.get, client.post):
        answer = method(url)
        assert (answer.status_code, "ada@example.test" in answer.text) == (404, False)


def test_an_unknown_link_is_the_same_as_a_used_one() -> None:
    answer = Client().get("/withdraw/nothing")
    assert answer.status_code == 404
    assert "This link does not work" in answer.text
