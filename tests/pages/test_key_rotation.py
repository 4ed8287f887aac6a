"""Rotating a key on My key: the secret in one answer, the old one for its grace, nobody else's."""

import re
from typing import Any

import pytest

from accounts import keys, snapshots
from accounts.models import ApiKey, AuditEvent, Member
from config.clock import utc_now
from tests import factories, secrets
from tests.pages import made
from tests.pages.test_key_page import everything_stored

pytestmark = pytest.mark.django_db


@pytest.fixture
def developer() -> Member:
    organization = factories.organization(timezone="Europe/Berlin")
    return factories.member(organization, team=factories.team(organization, "Quality"))


def secret_in(text: str) -> str:
    found = re.search(r'<code id="secret">(wr_[0-9A-Za-z]{10}_[0-9A-Za-z]{43})</code>', text)
    assert found is not None
    secrets.register(found[1].split("_")[2], "gateway key's secret")
    return secrets.register(found[1], "gateway key")


def works(key: ApiKey, secret: str) -> bool:
    held = snapshots.load(key.organization_id).keys.get(key.public_id)
    return held is not None and keys.verify(secret, held, now=utc_now())


def test_a_new_secret_is_in_the_answer_of_its_post_and_nowhere_else(developer: Member, caplog: pytest.LogCaptureFixture) -> None:
    """F5: no cookie, log, audit row or second look has it."""
    old = factories.api_key(developer)
    client = made.signed_in(developer)
    with caplog.at_level("DEBUG"):
        answered = client.post(made.path(developer, f"key/{old.row.uuid}/rotate"), {"grace": ""})
    assert answered.status_code == 200
    text = answered.content.decode()
    new = secret_in(text)
    part = new.split("_")[2]
    assert text.count(part) == 1
    assert "the old secret works until" in text
    assert "no-store" in answered["cache-control"]
    assert part not in repr(client.cookies) + repr(answered.headers.items()) + caplog.text + everything_stored()
    assert part not in repr([record.__dict__ for record in caplog.records])
    assert part not in client.get(made.path(developer)).content.decode()
    assert works(old.row, new)
    assert works(old.row, old.secret)
    assert AuditEvent.objects.get(organization=developer.organization_id, action="key.rotated").actor == developer.user
    assert developer.api_keys.count() == 1


def test_the_old_secret_may_end_at_once(developer: Member) -> None:
    old = factories.api_key(developer)
    answered = made.signed_in(developer).post(made.path(developer, f"key/{old.row.uuid}/rotate"), {"grace": "0"})
    assert "the old secret has ended" in answered.content.decode()
    assert works(old.row, secret_in(answered.content.decode()))
    assert not works(old.row, old.secret)


def test_a_form_that_is_sent_twice_rotates_once(developer: Member) -> None:
    """F3: by a second click or a reload the secret that everybody still uses would lose its grace, and the one just copied too."""
    old = factories.api_key(developer)
    client = made.signed_in(developer)
    for grace in ("", "0"):
        found = re.search(r'name="seen" value="([^"]*)"', client.get(made.path(developer)).content.decode())
        assert found is not None
        sent = {"grace": grace, "seen": found[1]}
        new = secret_in(client.post(made.path(developer, f"key/{old.row.uuid}/rotate"), sent).content.decode())
        again = client.post(made.path(developer, f"key/{old.row.uuid}/rotate"), sent, follow=True).content.decode()
        assert "was not rotated: It was rotated meanwhile." in again
        assert "wr_" + new.split("_")[1] + "_" + new.split("_")[2][:4] not in again
        assert works(old.row, new)
        assert works(old.row, old.secret) is (grace == "")
    assert AuditEvent.objects.filter(action="key.rotated", organization=developer.organization).count() == 2


def test_the_page_says_how_long_the_old_secret_works(developer: Member) -> None:
    old = factories.api_key(developer)
    page = made.signed_in(developer).get(made.path(developer)).content.decode()
    assert f'action="{made.path(developer, f"key/{old.row.uuid}/rotate")}"' in page
    assert "The old secret works for 1 d more" in page
    assert "<dt>Old secret</dt>" not in page
    made.signed_in(developer).post(made.path(developer, f"key/{old.row.uuid}/rotate"))
    assert "<dt>Old secret</dt>" in made.signed_in(developer).get(made.path(developer)).content.decode()


@pytest.mark.parametrize(("role", "team"), [
    ("lead", "Quality"), ("lead", None), ("owner", None), ("lead", "Platform"), ("developer", "Quality"), ("finance", None),
])  # fmt: skip
def test_nobody_else_rotates_a_key_because_its_secret_would_be_seen(developer: Member, role: str, team: str | None) -> None:
    old = factories.api_key(developer)
    organization = developer.organization
    other = factories.member(organization, role=role, team=factories.team(organization, team) if team else None)
    answered = made.signed_in(other).post(made.path(developer, f"key/{old.row.uuid}/rotate"))
    assert answered.status_code == 403
    row = ApiKey.objects.get(pk=old.row.pk)
    assert (bytes(row.digest), row.previous_digest) == (bytes(old.row.digest), None)
    assert not AuditEvent.objects.filter(action="key.rotated").exists()


def test_a_foreign_key_is_as_missing(developer: Member) -> None:
    """J5"""
    old = factories.api_key(developer)
    stranger = factories.member(factories.organization(), role="owner")
    client = made.signed_in(stranger)
    foreign = client.post(made.path(stranger, f"key/{old.row.uuid}/rotate"))
    missing = client.post(made.path(stranger, f"key/{developer.uuid}/rotate"))
    assert (foreign.status_code, foreign.content) == (missing.status_code, missing.content)
    assert foreign.status_code == 404
    assert ApiKey.objects.get(pk=old.row.pk).previous_digest is None


def test_a_revoked_key_is_not_rotated_and_the_page_says_so(developer: Member) -> None:
    old = factories.api_key(developer, name="ci")
    keys.revoke(old.row, by=None, now=utc_now())
    client = made.signed_in(developer)
    answered: Any = client.post(made.path(developer, f"key/{old.row.uuid}/rotate"), follow=True)
    assert answered.redirect_chain == [(made.path(developer), 302)]
    assert "ci was not rotated: The key is revoked: issue a new one." in answered.content.decode()
    assert ApiKey.objects.get(pk=old.row.pk).previous_digest is None
