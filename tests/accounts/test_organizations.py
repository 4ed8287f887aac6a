"""How organizations begin, pause and go on."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from accounts import organizations, snapshots
from accounts.errors import NameInvalid, NotFound, ZoneUnknown
from accounts.models import AuditEvent, Organization
from config.errors import DomainError
from tests import factories


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Northwind Labs", "northwind-labs"),
        ("  Åland & Søn, GmbH  ", "aland-sn-gmbh"),
        ("李 🦊", "organization"),
        ("Admin", "organization-admin"),
        ("x" * 100, "x" * 63),
        ("--a--", "a"),
    ],
)
def test_a_slug_is_made_of_the_name(name: str, slug: str) -> None:
    assert organizations.slug_of(name) == slug


@given(st.text(max_size=130))
def test_every_name_gives_a_slug_that_a_path_can_hold(name: str) -> None:
    slug = organizations.slug_of(name)
    assert 1 <= len(slug) <= organizations.SLUG_LENGTH + len("organization-")
    assert set(slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not slug.startswith("-")
    assert not slug.endswith("-")


@pytest.mark.django_db
class TestBeginning:
    def test_the_second_of_a_name_gets_a_number(self) -> None:
        made = [organizations.create("Acme Accounts Test", by=None) for _ in range(3)]
        assert [one.slug for one in made] == ["acme-accounts-test", "acme-accounts-test-2", "acme-accounts-test-3"]
        assert {one.name for one in made} == {"Acme Accounts Test"}

    def test_a_long_name_still_finds_a_free_slug(self) -> None:
        first, second = (organizations.create("y" * 120, by=None) for _ in range(2))
        assert (first.slug, second.slug) == ("y" * 63, "y" * 61 + "-2")

    @pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", "europe/berlin", "UTC+1"])
    def test_an_unknown_zone_is_refused_and_nothing_is_made(self, zone: str) -> None:
        before = Organization.objects.count()
        with pytest.raises(ZoneUnknown):
            organizations.create("Acme", by=None, timezone=zone)
        assert Organization.objects.count() == before

    @pytest.mark.parametrize("name", ["", " \t ", "z" * 121, "a\x07b"])
    def test_a_name_that_cannot_be_shown_is_refused(self, name: str) -> None:
        with pytest.raises(NameInvalid):
            organizations.create(name, by=None)


@pytest.mark.django_db
def test_suspending_moves_the_version_once_and_resuming_once_more() -> None:
    """F5: each change of state is published; repeating it is not a change."""
    organization = factories.organization(plan=None)
    start = organization.config_version
    for call, is_active, version in (
        (organizations.suspend, False, start + 1),
        (organizations.suspend, False, start + 1),
        (organizations.resume, True, start + 2),
        (organizations.resume, True, start + 2),
    ):
        changed = call(organization, by=None)
        assert (changed.is_active, Organization.objects.get(pk=organization.pk).config_version) == (is_active, version)
        assert snapshots.load(organization.pk).is_active is is_active
    told = AuditEvent.objects.filter(organization=organization, action__startswith="organization.").order_by("pk")
    assert [event.action for event in told] == ["organization.created", "organization.suspended", "organization.resumed"]


@pytest.mark.django_db
def test_an_unknown_slug_is_named() -> None:
    with pytest.raises(NotFound, match="'nowhere'"):
        organizations.find("nowhere")


@pytest.mark.django_db(transaction=True)
def test_five_of_one_name_at_once_get_five_slugs() -> None:
    name = factories.unique("Race")
    slugs: list[str] = []
    start = threading.Barrier(5)

    def create() -> None:
        start.wait()
        slugs.append(organizations.create(name, by=None).slug)
        connection.close()

    threads = [threading.Thread(target=create) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    base = name.lower()
    assert sorted(slugs) == sorted([base, *(f"{base}-{number}" for number in range(2, 6))])


@pytest.mark.django_db
class TestSettings:
    @pytest.mark.parametrize(
        ("act", "value", "field", "action", "is_path"),
        [
            (organizations.rename, "  Halden   Robotics ", "name", "organization.renamed", True),
            (organizations.set_zone, "Europe/Berlin", "timezone", "organization.zone_changed", True),
            (organizations.set_unpriced_models, "fallback", "unpriced_models", "organization.unpriced_models", True),
            (organizations.show_pool_to_developers, True, "developers_see_pool", "organization.developers_see_pool", False),
        ],
    )
    def test_each_is_told_once_and_published_where_the_path_goes_by_it(
        self, act: Callable[..., Organization], value: Any, field: str, action: str, is_path: bool
    ) -> None:
        owner = factories.member(organization := factories.organization(plan=None), role="owner").user
        organization.refresh_from_db()
        before, version = getattr(organization, field), organization.config_version
        for _ in range(2):
            changed = act(organization, value, by=owner)
        wanted = "Halden Robotics" if field == "name" else value
        organization.refresh_from_db()
        assert getattr(changed, field) == getattr(organization, field) == wanted
        assert organization.config_version == version + (1 if is_path else 0)
        assert organization.slug == changed.slug
        [event] = AuditEvent.objects.filter(organization=organization, action=action)
        assert (event.actor, event.data) == (owner, {"before": before, "after": wanted})

    @pytest.mark.parametrize(
        ("act", "value", "code"),
        [
            (organizations.rename, "", "name_invalid"),
            (organizations.rename, "a\u202eb", "name_invalid"),
            (organizations.set_zone, "Mars/Olympus", "timezone_unknown"),
            (organizations.set_unpriced_models, "free", "organization_invalid"),
        ],
    )
    def test_what_cannot_be_is_refused_and_nothing_changes(self, act: Callable[..., Organization], value: str, code: str) -> None:
        organization = factories.organization(plan=None)
        row = Organization.objects.filter(pk=organization.pk).values().get()
        told = AuditEvent.objects.filter(organization=organization).count()
        with pytest.raises(DomainError) as refused:
            act(organization, value, by=None)
        assert refused.value.code == code
        assert Organization.objects.filter(pk=organization.pk).values().get() == row
        assert AuditEvent.objects.filter(organization=organization).count() == told
