"""Tokens of the API: their form, their digest, how they begin and end, and who may see what by them."""

import io
import json
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import api_tokens, members, organizations
from accounts.errors import ExpiryPassed, MemberRemoved, NameInvalid, NotFound, TokenScopeUnknown
from accounts.models import ApiToken, AuditEvent, Member
from config import scope
from config.clock import utc_now
from tests import factories, secrets

pytestmark = pytest.mark.django_db


def issued(member: Member, **fields: Any) -> api_tokens.IssuedToken:
    made = api_tokens.issue(member, name=fields.pop("name", "export"), by=None, now=utc_now(), **fields)
    secrets.register(made.secret, "API token")
    return made


@pytest.fixture
def member() -> Member:
    return factories.member(factories.organization(plan=None))


def test_the_token_is_shown_once_and_only_its_digest_is_kept(member: Member) -> None:
    """F5: the secret is in no row, no representation and no audit event."""
    made = issued(member, name="  my   export ")
    secret = made.secret.split("_")[2]
    row = ApiToken.objects.get(pk=made.token.pk)
    assert made.secret.startswith(f"wt_{row.public_id}_")
    assert len(secret) == 43
    assert (row.name, row.organization_id, row.member_id, row.scopes) == (
        "my export", member.organization_id, member.pk, sorted(api_tokens.scopes_of(member)),
    )  # fmt: skip
    event = AuditEvent.objects.get(action="api_token.issued", object_id=str(row.uuid))
    kept = [str(value) for value in ApiToken.objects.filter(pk=row.pk).values_list()[0]]
    for text in (*kept, str(event.data), str(row), repr(row), repr(made)):
        assert secret not in text


def test_a_token_holds_whatever_scope_the_caller_is_in(member: Member) -> None:
    made = issued(member)
    with scope.nothing(), CaptureQueriesContext(connection) as queries:
        found = api_tokens.verified(made.secret, now=utc_now())
        assert found is not None
        assert (found.pk, found.member.organization.slug, found.member.user) == (
            made.token.pk,
            member.organization.slug,
            member.user,
        )
    assert len([one for one in queries if "accounts_apitoken" in one["sql"]]) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("a" if text[-1] != "a" else "b"),
        lambda text: text + "a",
        lambda text: " " + text,
        lambda text: text + "\n",
        lambda text: text.replace("wt_", "wr_"),
        lambda text: text.replace("wt_", "WT_"),
        lambda text: "wt_0000000000_" + text.split("_")[2],
        lambda text: text[:13],
        lambda text: "",
        lambda text: text[:-1] + "٣",
    ],
)
def test_any_other_text_is_no_token(member: Member, change: Any) -> None:
    made = issued(member)
    assert api_tokens.verified(change(made.secret), now=utc_now()) is None


def test_a_revoked_token_ends_at_once_and_for_good(member: Member) -> None:
    """F1: nothing is remembered between calls."""
    made, now = issued(member), utc_now()
    first = api_tokens.revoke(made.token, by=None, now=now)
    assert api_tokens.verified(made.secret, now=now) is None
    assert api_tokens.revoke(made.token, by=None, now=now + timedelta(hours=1)).revoked_at == first.revoked_at == now
    assert AuditEvent.objects.filter(action="api_token.revoked", object_id=str(made.token.uuid)).count() == 1


def test_a_token_holds_until_its_expiry_and_not_at_it(member: Member) -> None:
    """E12: [issued, expiry)."""
    ends = utc_now() + timedelta(days=1)
    made = issued(member, expires_at=ends)
    assert api_tokens.verified(made.secret, now=ends - timedelta(microseconds=1)) is not None
    assert api_tokens.verified(made.secret, now=ends) is None


def test_who_leaves_or_is_suspended_has_no_token(member: Member) -> None:
    """F5: the cascade; a resumed organization's tokens work again, a former member's never."""
    made = issued(member)
    organizations.suspend(member.organization, by=None)
    assert api_tokens.verified(made.secret, now=utc_now()) is None
    organizations.resume(member.organization, by=None)
    assert api_tokens.verified(made.secret, now=utc_now()) is not None
    members.remove(member, by=None, now=utc_now())
    assert api_tokens.verified(made.secret, now=utc_now()) is None
    with pytest.raises(MemberRemoved):
        issued(member)


def test_who_is_switched_off_has_no_token(member: Member) -> None:
    """An operator shuts a person out: not of the pages alone."""
    made, person = issued(member), member.user
    assert person is not None
    for is_active in (False, True):
        person.is_active = is_active
        person.save(update_fields=["is_active"])
        assert (api_tokens.verified(made.secret, now=utc_now()) is not None) is is_active


def test_a_pepper_that_is_gone_proves_nothing(member: Member, settings: Any) -> None:
    made = issued(member)
    settings.KEY_PEPPERS = {"other": "o" * 40}
    assert api_tokens.verified(made.secret, now=utc_now()) is None
    ApiToken.objects.filter(pk=made.token.pk).update(pepper_id="")
    assert api_tokens.verified(made.secret, now=utc_now()) is None


def test_a_foreign_public_id_is_as_unknown_as_one_that_never_was(member: Member) -> None:
    """J5."""
    made = issued(member)
    stranger = factories.organization(plan=None)
    said = []
    for text in (made.token.public_id, f"wt_{made.token.public_id}", "0000000000", "nonsense"):
        with pytest.raises(NotFound) as refused:
            api_tokens.by_public_id(stranger, text)
        said.append(refused.value.message)
    assert len(set(said)) == 1
    assert api_tokens.by_public_id(member.organization, f"wt_{made.token.public_id}") == made.token


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"scopes": []}, TokenScopeUnknown),
        ({"scopes": ["usage:write"]}, TokenScopeUnknown),
        ({"expires_at": datetime.fromisoformat("2020-01-01T00:00:00Z")}, ExpiryPassed),
        ({"name": ""}, NameInvalid),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(member: Member, fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        issued(member, **fields)
    assert not ApiToken.objects.filter(member=member).exists()


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def test_the_commands_make_and_end_a_token(member: Member) -> None:
    assert member.user is not None
    slug = member.organization.slug
    made = run("create_api_token", slug, member.user.email, "--name", "ci", "--scope", "usage:read", "--days", "30")
    secrets.register(made["token"], "API token")
    token = api_tokens.verified(made["token"], now=utc_now())
    assert token is not None
    assert (str(token.uuid), token.scopes, made["scopes"]) == (made["id"], ["usage:read"], ["usage:read"])
    ended = run("revoke_api_token", slug, f"wt_{token.public_id}")
    assert ended == run("revoke_api_token", slug, token.public_id)
    assert api_tokens.verified(made["token"], now=utc_now()) is None


def test_a_wrong_argument_makes_nothing(member: Member) -> None:
    assert member.user is not None
    slug, email = member.organization.slug, member.user.email
    foreign = issued(factories.member(factories.organization(plan=None)))
    for arguments, said in (
        (["create_api_token", slug, "nobody@x.example", "--name", "x"], "no member"),
        (["create_api_token", "nowhere", email, "--name", "x"], "no organization"),
        (["create_api_token", slug, email, "--name", " "], "must not be empty"),
        (["create_api_token", slug, email, "--name", "x", "--days", "0"], "from 1 to 3650"),
        (["revoke_api_token", slug, foreign.token.public_id], "no such token"),
    ):
        with pytest.raises(CommandError, match=said):
            call_command(*arguments)
    assert not ApiToken.objects.filter(member=member).exists()
    assert api_tokens.verified(foreign.secret, now=utc_now()) is not None


class TestLastUse:
    def note(self, member: Member, secret: str, now: datetime) -> int:
        """As the API's authentication does; how many statements noting it took."""
        with scope.nothing():
            found = api_tokens.verified(secret, now=now)
            assert found is not None
            with CaptureQueriesContext(connection) as queries:
                api_tokens.note_use(found, now=now)
        return len([one for one in queries if "accounts_apitoken" in one["sql"]])

    def test_it_is_kept_to_the_minute_with_one_update_and_no_read(self, member: Member) -> None:
        made = issued(member)
        assert made.token.last_used_at is None
        noon = utc_now().replace(microsecond=0)
        moments = [0, 30, 59, 60, 61, 119, 120, 400]
        written = [self.note(member, made.secret, noon + timedelta(seconds=seconds)) for seconds in moments]
        assert written == [1, 0, 0, 1, 0, 0, 1, 1]
        assert ApiToken.objects.get(pk=made.token.pk).last_used_at == noon + timedelta(seconds=400)

    def test_a_clock_that_goes_back_takes_nothing_back(self, member: Member) -> None:
        made, now = issued(member), utc_now()
        self.note(member, made.secret, now)
        assert self.note(member, made.secret, now - timedelta(hours=1)) == 0
        assert ApiToken.objects.get(pk=made.token.pk).last_used_at == now

    def test_of_two_that_read_the_same_the_first_writes(self, member: Member) -> None:
        made, now = issued(member), utc_now()
        first, second = (api_tokens.verified(made.secret, now=now) for _ in range(2))
        assert first is not None
        assert second is not None
        api_tokens.note_use(first, now=now + timedelta(seconds=5))
        api_tokens.note_use(second, now=now + timedelta(seconds=2))
        assert ApiToken.objects.get(pk=made.token.pk).last_used_at == now + timedelta(seconds=5)

    def test_nothing_else_of_the_organization_and_nobody_elses_token_moves(self, member: Member) -> None:
        made, other = issued(member), issued(member)
        foreign = issued(factories.member(factories.organization(plan=None)))
        audited = AuditEvent.objects.count()
        self.note(member, made.secret, utc_now())
        for untouched in (other, foreign):
            assert ApiToken.objects.get(pk=untouched.token.pk).last_used_at is None
        assert AuditEvent.objects.count() == audited

    def test_a_token_that_does_not_hold_is_not_used(self, member: Member) -> None:
        made = issued(member)
        api_tokens.revoke(made.token, by=None, now=utc_now())
        assert Client().get("/api/v1/me", headers={"authorization": f"Bearer {made.secret}"}).status_code == 401
        assert ApiToken.objects.get(pk=made.token.pk).last_used_at is None
