"""The form of keys, their digest, how they begin and end."""

import json
import secrets as random_secrets
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings as configured
from django.core.management import call_command
from hypothesis import given
from hypothesis import strategies as st

from accounts import audit, keys, members, snapshots
from accounts.errors import ExpiryPassed, GraceInvalid, KeyRevoked, MemberRemoved, NameInvalid, NotFound, RoleHoldsNoKeys
from accounts.models import ApiKey, AuditEvent, Organization
from accounts.snapshots import KeySnapshot
from config import scope
from config.clock import utc_now
from tests import factories, secrets

BASE62 = st.text(alphabet=keys.ALPHABET, min_size=1, max_size=60)
PEPPER = "p" * 40


def snapshot_of(row: ApiKey) -> KeySnapshot:
    return snapshots.load(row.organization_id).keys[row.public_id]


@given(st.text(alphabet=keys.ALPHABET, min_size=10, max_size=10), st.text(alphabet=keys.ALPHABET, min_size=43, max_size=43))
def test_every_text_of_the_form_is_parsed_into_its_parts(public_id: str, secret: str) -> None:
    parsed = keys.parse(f"wr_{public_id}_{secret}")
    assert parsed is not None
    assert (parsed.public_id, parsed.secret) == (public_id, secret)
    assert secret not in repr(parsed)


@given(st.one_of(st.text(max_size=80), st.builds("wr_{}_{}".format, BASE62, BASE62)))
def test_a_text_of_another_form_is_no_key(text: str) -> None:
    head, _, rest = text.partition("_")
    public_id, _, secret = rest.partition("_")
    is_form = head == "wr" and len(public_id) == 10 and len(secret) == 43 and set(public_id + secret) <= set(keys.ALPHABET)
    assert (keys.parse(text) is not None) == is_form


@pytest.mark.parametrize("change", [lambda text: text + "\n", lambda text: " " + text, lambda text: text.replace("wr_", "WR_"),
                                    lambda text: text[:-1], lambda text: text + "0", lambda text: text[:-1] + "٣"])  # fmt: skip
def test_a_key_with_anything_around_it_or_other_digits_is_no_key(change: Any) -> None:
    text = "wr_0123456789_" + "a" * 43
    assert keys.parse(text) is not None
    assert keys.parse(change(text)) is None


@pytest.mark.parametrize("text", ["0123456789", "wr_0123456789"])
def test_a_public_id_is_read_with_and_without_its_prefix(text: str) -> None:
    assert keys.parse_public_id(text) == "0123456789"


@pytest.mark.parametrize("text", ["", "wr_", "012345678", "01234567890", "wr_0123456789_", "wr-0123456789", "0123456789\n"])
def test_another_text_is_no_public_id(text: str) -> None:
    assert keys.parse_public_id(text) is None


@pytest.mark.django_db
class TestIssuing:
    def test_the_key_is_shown_once_and_only_its_digest_is_kept(self) -> None:
        """F5: the secret is in no row, no representation and no audit event."""
        member = factories.member(factories.organization(plan=None))
        key = factories.api_key(member, name="  my   laptop ")
        secret = key.secret.split("_")[2]
        row = ApiKey.objects.get(pk=key.row.pk)
        assert keys.parse(key.secret) == keys.ParsedKey(row.public_id, secret)
        assert (row.name, row.organization_id, row.member_id) == ("my laptop", member.organization_id, member.pk)
        assert row.pepper_id == next(iter(configured.KEY_PEPPERS))
        assert len(bytes(row.digest)) == 32
        kept = [str(value) for value in ApiKey.objects.filter(pk=row.pk).values_list()[0]]
        event = AuditEvent.objects.get(action="key.issued", object_id=str(row.uuid))
        issued = keys.issue(member, name="other", by=None, now=utc_now())
        for text in (*kept, str(event.data), str(row), repr(row), repr(issued)):
            assert secret not in text
            assert issued.secret not in text

    def test_it_is_known_to_the_path_after_the_version_has_moved_by_one(self) -> None:
        member = factories.member(factories.organization(plan=None))
        before = Organization.objects.get(pk=member.organization_id).config_version
        key = factories.api_key(member)
        assert Organization.objects.get(pk=member.organization_id).config_version == before + 1
        assert keys.verify(key.secret, snapshot_of(key.row), now=utc_now())
        assert snapshots.organization_of_key(key.row.public_id) == member.organization_id
        assert snapshots.organization_of_key("0000000000") is None

    def test_one_changed_character_is_another_key(self) -> None:
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        held = snapshot_of(key.row)
        for at in (3, 12, 14, len(key.secret) - 1):
            other = key.secret[:at] + ("a" if key.secret[at] != "a" else "b") + key.secret[at + 1 :]
            assert not keys.verify(other, held, now=utc_now())
        assert not keys.verify("", held, now=utc_now())
        assert not keys.verify("\udcff", held, now=utc_now())

    def test_the_first_pepper_digests_and_older_ones_still_verify(self, settings: Any) -> None:
        member = factories.member(factories.organization(plan=None))
        old = factories.api_key(member)
        settings.KEY_PEPPERS = {"newer": PEPPER, **settings.KEY_PEPPERS}
        new = factories.api_key(member)
        assert new.row.pepper_id == "newer" != old.row.pepper_id
        assert keys.verify(old.secret, snapshot_of(old.row), now=utc_now())
        assert keys.verify(new.secret, snapshot_of(new.row), now=utc_now())
        settings.KEY_PEPPERS = {"newer": PEPPER}
        assert not keys.verify(old.secret, snapshot_of(old.row), now=utc_now())
        assert keys.verify(new.secret, snapshot_of(new.row), now=utc_now())

    def test_restrictions_reach_the_snapshot(self) -> None:
        team = factories.team(organization := factories.organization(plan=None), "Platform")
        member = factories.member(organization, team=team)
        now = utc_now()
        key = factories.api_key(member, allowed_models=["gpt-5.5", "gpt-5.4", "gpt-5.5"], expires_at=now + timedelta(hours=1))
        held = snapshot_of(key.row)
        assert held.allowed_models == frozenset({"gpt-5.5", "gpt-5.4"})
        assert (held.member_id, held.member_uuid, held.team_id, held.team_name) == (member.pk, member.uuid, team.pk, "Platform")
        assert held.allowed_efforts is None
        assert held.fast_allowed
        assert not held.is_expired(now + timedelta(minutes=59))
        assert held.is_expired(now + timedelta(hours=1))
        assert "digest" not in repr(held)

    @pytest.mark.parametrize("name", ["", "   ", "x" * 81, "a\x00b", "a\u202eb"])
    def test_a_name_that_cannot_be_shown_is_refused(self, name: str) -> None:
        member = factories.member(factories.organization(plan=None))
        with pytest.raises(NameInvalid):
            keys.issue(member, name=name, by=None, now=utc_now())
        assert not ApiKey.objects.filter(member=member).exists()

    def test_an_expiry_that_has_passed_and_an_empty_list_of_models_are_refused(self) -> None:
        member = factories.member(factories.organization(plan=None))
        now = utc_now()
        with pytest.raises(ExpiryPassed):
            keys.issue(member, name="x", by=None, now=now, expires_at=now)
        with pytest.raises(NameInvalid):
            keys.issue(member, name="x", by=None, now=now, allowed_models=[])
        assert not ApiKey.objects.filter(member=member).exists()

    def test_finance_and_former_members_get_none(self) -> None:
        """J6: the domain refuses, whatever the page shows."""
        organization = factories.organization(plan=None)
        finance, gone = factories.member(organization, role="finance"), factories.member(organization)
        members.remove(gone, by=None, now=utc_now())
        before = Organization.objects.get(pk=organization.pk).config_version
        with pytest.raises(RoleHoldsNoKeys):
            keys.issue(finance, name="x", by=None, now=utc_now())
        with pytest.raises(MemberRemoved):
            keys.issue(gone, name="x", by=None, now=utc_now())
        assert not ApiKey.objects.filter(organization=organization).exists()
        assert Organization.objects.get(pk=organization.pk).config_version == before


@pytest.mark.django_db
class TestRevoking:
    def test_a_revoked_key_leaves_the_snapshot(self) -> None:
        """F1: the row, the version and the audit trail change together; the next snapshot does not know the key."""
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        before = Organization.objects.get(pk=key.row.organization_id).config_version
        now = utc_now()
        row = keys.revoke(key.row, by=None, now=now)
        assert row.revoked_at == now
        assert snapshots.load(row.organization_id).keys == {}
        assert Organization.objects.get(pk=row.organization_id).config_version == before + 1
        event = AuditEvent.objects.get(action="key.revoked", object_id=str(row.uuid))
        assert (event.actor_label, event.data) == (audit.OPERATOR_LABEL, {"public_id": row.public_id})

    def test_a_second_time_changes_nothing(self) -> None:
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        first = keys.revoke(key.row, by=None, now=utc_now())
        version = Organization.objects.get(pk=key.row.organization_id).config_version
        again = keys.revoke(key.row, by=None, now=utc_now() + timedelta(hours=1))
        assert again.revoked_at == first.revoked_at
        assert Organization.objects.get(pk=key.row.organization_id).config_version == version
        assert AuditEvent.objects.filter(action="key.revoked", object_id=str(key.row.uuid)).count() == 1

    def test_a_foreign_public_id_is_as_unknown_as_one_that_never_was(self) -> None:
        """J5, in the domain: same error, same sentence, nothing changed."""
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        stranger = factories.organization(plan=None)
        with pytest.raises(NotFound) as foreign:
            keys.by_public_id(stranger, key.row.public_id)
        with pytest.raises(NotFound) as missing:
            keys.by_public_id(stranger, "0000000000")
        assert (foreign.value.message, foreign.value.facts) == (missing.value.message, missing.value.facts)
        assert keys.by_public_id(key.row.organization, f"wr_{key.row.public_id}") == key.row
        assert ApiKey.objects.get(pk=key.row.pk).revoked_at is None


@pytest.mark.django_db
def test_the_keys_of_a_suspended_organization_stay_and_the_snapshot_says_so() -> None:
    """F5: is_active is what the path refuses by, for every key at once."""
    key = factories.api_key(factories.member(factories.organization(plan=None)))
    slug = key.row.organization.slug
    call_command("suspend", slug)
    held = snapshots.load(key.row.organization_id)
    assert not held.is_active
    assert list(held.keys) == [key.row.public_id]
    call_command("resume", slug)
    assert snapshots.load(key.row.organization_id).is_active


@pytest.mark.django_db
class TestRotating:
    NOW = datetime(2026, 11, 18, 14, 20, tzinfo=UTC)

    def test_the_old_secret_works_within_its_grace_and_not_after(self) -> None:
        """F3: rotated with 60 s grace; the old one at 30 s yes, at 61 s no; the new one all the time."""
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        new = rotated(old.row, grace_seconds=60, now=self.NOW)
        held = snapshot_of(old.row)
        assert [keys.verify(old.secret, held, now=self.NOW + timedelta(seconds=at)) for at in (0, 30, 59.999, 60, 61, 9e6)] == [
            *(True, True, True),
            *(False, False, False),
        ]
        assert all(keys.verify(new.secret, held, now=self.NOW + timedelta(seconds=at)) for at in (0, 30, 61, 9e6))

    def test_only_the_secret_changes(self) -> None:
        member = factories.member(factories.organization(plan=None))
        expires = utc_now() + timedelta(days=9)
        old = factories.api_key(member, name="ci", allowed_models=["gpt-5.5"], expires_at=expires)
        before = ApiKey.objects.filter(pk=old.row.pk).values().get()
        new = rotated(old.row, grace_seconds=60, now=self.NOW)
        after = ApiKey.objects.filter(pk=old.row.pk).values().get()
        assert {name for name in after if bytes_or(after[name]) != bytes_or(before[name])} == {
            *("digest", "previous_digest", "previous_pepper_id", "previous_until"),
        }
        assert (bytes(after["previous_digest"]), after["previous_until"]) == (
            bytes(before["digest"]),
            self.NOW + timedelta(seconds=60),
        )
        assert new.secret != old.secret
        assert new.secret[:14] == old.secret[:14] == f"wr_{old.row.public_id}_"
        assert keys.parse(new.secret) is not None
        assert member.api_keys.count() == 1

    def test_rotating_again_within_the_grace_drops_the_older_secret(self) -> None:
        first = factories.api_key(factories.member(factories.organization(plan=None)))
        second = rotated(first.row, grace_seconds=600, now=self.NOW)
        third = rotated(first.row, grace_seconds=600, now=self.NOW + timedelta(seconds=10))
        held, now = snapshot_of(first.row), self.NOW + timedelta(seconds=20)
        assert [keys.verify(one, held, now=now) for one in (first.secret, second.secret, third.secret)] == [False, True, True]

    def test_without_grace_the_old_secret_ends_at_once(self) -> None:
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        new = rotated(old.row, grace_seconds=0, now=self.NOW)
        held = snapshot_of(old.row)
        assert not keys.verify(old.secret, held, now=self.NOW)
        assert keys.is_given_up(old.secret, held, now=self.NOW)
        assert keys.verify(new.secret, held, now=self.NOW)
        assert not keys.is_given_up(new.secret, held, now=self.NOW)

    def test_the_grace_is_the_setting_unless_it_is_given(self, settings: Any) -> None:
        settings.KEY_ROTATION_GRACE_SECONDS = 120.0
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        assert rotated(old.row, now=self.NOW).key.previous_until == self.NOW + timedelta(seconds=120)

    def test_a_new_pepper_takes_over_and_the_old_secret_keeps_its_own(self, settings: Any) -> None:
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        settings.KEY_PEPPERS = {"newer": PEPPER, **settings.KEY_PEPPERS}
        new = rotated(old.row, grace_seconds=60, now=self.NOW)
        held = snapshot_of(old.row)
        assert (held.pepper_id, held.previous_pepper_id) == ("newer", old.row.pepper_id)
        assert keys.verify(old.secret, held, now=self.NOW)
        settings.KEY_PEPPERS = {"newer": PEPPER}
        assert not keys.verify(old.secret, held, now=self.NOW)
        assert keys.verify(new.secret, held, now=self.NOW)

    def test_the_secret_is_in_no_row_representation_or_audit_event(self) -> None:
        """F5"""
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        new = rotated(old.row, now=self.NOW)
        part = new.secret.split("_")[2]
        event = AuditEvent.objects.get(action="key.rotated", object_id=str(old.row.uuid))
        assert event.data == {"public_id": old.row.public_id, "old_secret_until": (self.NOW + timedelta(days=1)).isoformat()}
        kept = [str(value) for value in ApiKey.objects.filter(pk=old.row.pk).values_list()[0]]
        for text in (*kept, str(event.data), repr(new), repr(snapshot_of(old.row))):
            assert part not in text
        assert repr(bytes(new.key.digest)) not in repr(snapshot_of(old.row))
        assert repr(bytes(new.key.previous_digest or b"")) not in repr(snapshot_of(old.row))

    def test_it_counts_as_a_change_of_the_configuration(self) -> None:
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        before = Organization.objects.get(pk=key.row.organization_id).config_version
        rotated(key.row, now=self.NOW)
        assert Organization.objects.get(pk=key.row.organization_id).config_version == before + 1

    def test_an_ended_key_gets_no_new_secret(self) -> None:
        member = factories.member(factories.organization(plan=None))
        revoked, expired = factories.api_key(member), factories.api_key(member, expires_at=utc_now() + timedelta(minutes=1))
        keys.revoke(revoked.row, by=None, now=utc_now())
        with pytest.raises(KeyRevoked):
            keys.rotate(revoked.row, by=None, now=utc_now())
        with pytest.raises(ExpiryPassed):
            keys.rotate(expired.row, by=None, now=utc_now() + timedelta(minutes=1))
        assert not ApiKey.objects.filter(member=member).exclude(previous_digest=None).exists()
        assert not AuditEvent.objects.filter(action="key.rotated", organization=member.organization).exists()

    def test_a_revoked_key_ends_with_both_its_secrets(self) -> None:
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        rotated(old.row, grace_seconds=600, now=utc_now())
        keys.revoke(old.row, by=None, now=utc_now())
        assert old.row.public_id not in snapshots.load(old.row.organization_id).keys

    @pytest.mark.parametrize("grace", [-1, keys.MOST_GRACE_SECONDS + 1, float("nan")])
    def test_a_grace_that_cannot_be_is_refused(self, grace: float) -> None:
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        with pytest.raises(GraceInvalid):
            keys.rotate(key.row, grace_seconds=grace, by=None, now=self.NOW)
        assert keys.verify(key.secret, snapshot_of(key.row), now=self.NOW)

    def test_the_command_prints_the_new_secret_and_when_the_old_one_ends(self, capsys: Any) -> None:
        old = factories.api_key(factories.member(factories.organization(plan=None)))
        call_command("rotate_key", old.row.organization.slug, f"wr_{old.row.public_id}", "--grace", "60", "--json")
        printed = json.loads(capsys.readouterr().out)
        secret = secrets.register(printed["key"], "gateway key")
        held = snapshot_of(old.row)
        assert printed["id"] == str(old.row.uuid)
        until = datetime.fromisoformat(printed["old_secret_until"])
        assert keys.verify(secret, held, now=until)
        assert keys.verify(old.secret, held, now=until - timedelta(seconds=1))
        assert not keys.verify(old.secret, held, now=until)


def rotated(row: ApiKey, **options: Any) -> keys.IssuedKey:
    issued = keys.rotate(row, by=None, **options)
    secrets.register(issued.secret, "gateway key")
    return issued


def bytes_or(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.django_db
def test_a_public_id_that_another_organizations_key_holds_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the caller's scope does not show that key."""
    held = factories.api_key(factories.member(factories.organization()))
    member = factories.member(factories.organization())
    drawn = iter(held.row.public_id)
    choose = random_secrets.choice
    monkeypatch.setattr(random_secrets, "choice", lambda letters: next(drawn, None) or choose(letters))
    with scope.organization(member.organization_id):
        issued = keys.issue(member, name="laptop", by=None, now=utc_now())
    assert issued.key.public_id != held.row.public_id
    assert next(drawn, None) is None
