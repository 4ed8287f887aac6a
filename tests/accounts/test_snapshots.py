"""What the request path is handed."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts import keys, members, snapshots
from accounts.models import Organization, User
from config import snapshot
from config.clock import utc_now
from tests import factories


@pytest.mark.django_db
class TestLoading:
    def test_revoked_keys_and_those_of_former_members_are_absent(self) -> None:
        organization = factories.organization(plan=None)
        kept, revoked = factories.api_key(factories.member(organization)), factories.api_key(factories.member(organization))
        gone = factories.member(organization)
        factories.api_key(gone)
        factories.api_key(factories.member(factories.organization(plan=None)))
        keys.revoke(revoked.row, by=None, now=utc_now())
        members.remove(gone, by=None, now=utc_now())
        loaded = snapshots.load(organization.pk)
        assert list(loaded.keys) == [kept.row.public_id]
        assert (loaded.organization_id, loaded.uuid, loaded.slug) == (organization.pk, organization.uuid, organization.slug)

    def test_keys_of_who_is_switched_off_are_absent(self) -> None:
        organization = factories.organization(plan=None)
        member = factories.member(organization)
        key = factories.api_key(member)
        assert list(snapshots.load(organization.pk).keys) == [key.row.public_id]
        User.objects.filter(pk=member.user_id).update(is_active=False)
        assert list(snapshots.load(organization.pk).keys) == []

    def test_it_takes_two_queries_whatever_the_number_of_keys(self) -> None:
        organization = factories.organization(plan=None)
        for _ in range(3):
            factories.api_key(factories.member(organization, team=factories.team(organization)))
        with CaptureQueriesContext(connection) as queries:
            assert len(snapshots.load(organization.pk).keys) == 3
        assert len(queries) == 2

    def test_nothing_in_it_can_be_changed(self) -> None:
        key = factories.api_key(factories.member(factories.organization(plan=None)))
        loaded: Any = snapshots.load(key.row.organization_id)
        with pytest.raises(FrozenInstanceError):
            loaded.is_active = False
        with pytest.raises(TypeError):
            loaded.keys["x"] = None
        with pytest.raises(FrozenInstanceError):
            loaded.keys[key.row.public_id].fast_allowed = False

    def test_an_unknown_organization_is_not_made_up(self) -> None:
        with pytest.raises(Organization.DoesNotExist):
            snapshots.load(-1)


@pytest.mark.django_db
def test_the_loader_and_the_key_lookup_are_registered() -> None:
    key = factories.api_key(factories.member(factories.organization(plan=None)))
    part = snapshot.load(key.row.organization_id).accounts
    assert isinstance(part, snapshots.AccountsSnapshot)
    assert part == snapshots.load(key.row.organization_id)
    assert snapshot._key_lookups == [snapshots.organization_of_key]
