"""Model fallbacks: what an operator sets is what the next request finds, of this organization alone."""

import io
import json
import threading
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.db.utils import IntegrityError
from django.test import Client

from accounts.models import AuditEvent, Organization, User
from config import scope, snapshot
from routing import fallbacks, snapshots
from routing.errors import FallbackRefused
from routing.models import ModelFallback
from tests import factories

pytestmark = pytest.mark.django_db

MODEL = "gpt-5.5"


@pytest.fixture
def organization() -> Organization:
    return factories.organization()


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def on_path(organization: Organization) -> dict[str, tuple[str, ...]]:
    """What the request path's snapshot holds."""
    with scope.organization(organization.pk):
        return dict(snapshots.load(organization.pk).fallbacks)


def audited(organization: Organization) -> list[tuple[str, str, dict[str, Any]]]:
    events = AuditEvent.objects.filter(organization=organization, object_type="model_fallback").order_by("pk")
    return [(event.action, event.data["model"], {name: event.data[name] for name in ("before", "after")}) for event in events]


def test_a_chain_is_what_the_path_sees_in_its_order(organization: Organization) -> None:
    assert on_path(organization) == {}
    before = Organization.objects.get(pk=organization.pk).config_version
    assert fallbacks.set_fallbacks(organization, MODEL, ["zeta", " alpha "], by=None) == ["zeta", "alpha"]
    assert on_path(organization) == {MODEL: ("zeta", "alpha")}
    assert Organization.objects.get(pk=organization.pk).config_version == before + 1
    fallbacks.set_fallbacks(organization, MODEL, ["alpha", "beta", "zeta"], by=None)
    fallbacks.set_fallbacks(organization, "alpha", ["beta"], by=None)
    # Not the fallbacks of fallbacks: exactly what was listed.
    assert on_path(organization) == {"alpha": ("beta",), MODEL: ("alpha", "beta", "zeta")}
    fallbacks.set_fallbacks(organization, MODEL, [], by=None)
    assert on_path(organization) == {"alpha": ("beta",)}


def test_who_set_it_is_in_the_audit_trail_and_setting_it_again_is_not(organization: Organization) -> None:
    user = factories.member(organization, role="owner").user
    fallbacks.set_fallbacks(organization, MODEL, ["a"], by=user)
    fallbacks.set_fallbacks(organization, MODEL, ["a"], by=user)
    fallbacks.set_fallbacks(organization, MODEL, [], by=None)
    fallbacks.set_fallbacks(organization, MODEL, [], by=None)
    assert audited(organization) == [
        ("fallback.set", MODEL, {"before": [], "after": ["a"]}),
        ("fallback.removed", MODEL, {"before": ["a"], "after": []}),
    ]
    assert AuditEvent.objects.get(organization=organization, action="fallback.set").actor == user


@pytest.mark.parametrize(
    ("model", "chain"),
    [
        (MODEL, [MODEL]),
        (MODEL, ["a", "b", "a"]),
        (MODEL, ["a", " a"]),
        (MODEL, [""]),
        ("  ", ["a"]),
        (MODEL, ["a\nb"]),
        (MODEL, ["x" * 121]),
        ("x" * 121, ["a"]),
        (MODEL, list("abcdef")),
    ],
)
def test_what_cannot_be_a_chain_is_refused_and_changes_nothing(organization: Organization, model: str, chain: list[str]) -> None:
    fallbacks.set_fallbacks(organization, MODEL, ["kept"], by=None)
    version = Organization.objects.get(pk=organization.pk).config_version
    with pytest.raises(FallbackRefused):
        fallbacks.set_fallbacks(organization, model, chain, by=None)
    assert on_path(organization) == {MODEL: ("kept",)}
    assert Organization.objects.get(pk=organization.pk).config_version == version
    assert len(audited(organization)) == 1


def test_an_organization_has_so_many_models_with_fallbacks_and_no_more(organization: Organization) -> None:
    ModelFallback.objects.bulk_create(
        ModelFallback(organization=organization, model=f"m{number}", fallback="f", position=1) for number in range(200)
    )
    with pytest.raises(FallbackRefused):
        fallbacks.set_fallbacks(organization, MODEL, ["a"], by=None)
    # One that has its rule already may get another one.
    fallbacks.set_fallbacks(organization, "m7", ["g"], by=None)
    assert len(on_path(organization)) == 200


@pytest.mark.parametrize(
    "rows",
    [
        [(MODEL, "a", 1), (MODEL, "a", 2)],
        [(MODEL, "a", 1), (MODEL, "b", 1)],
        [(MODEL, MODEL, 1)],
    ],
    ids=["a fallback twice", "a place twice", "itself"],
)
def test_the_table_itself_holds_the_rule(organization: Organization, rows: list[tuple[str, str, int]]) -> None:
    made = [ModelFallback(organization=organization, model=model, fallback=name, position=place) for model, name, place in rows]
    with pytest.raises(IntegrityError):
        ModelFallback.objects.bulk_create(made)


def test_another_organization_neither_sees_nor_makes_nor_has_them(organization: Organization) -> None:
    other = factories.organization()
    fallbacks.set_fallbacks(organization, MODEL, ["a"], by=None)
    assert on_path(other) == {}
    with scope.organization(other.pk):
        assert fallbacks.of(organization) == {}
        assert ModelFallback.objects.filter(organization=organization).delete()[0] == 0
        with pytest.raises(Exception, match="row-level security"):
            ModelFallback.objects.create(organization=organization, model="x", fallback="y", position=1)


def test_two_who_set_it_at_once_leave_one_whole_chain(transactional_db: None) -> None:
    organization = factories.organization()
    chains = [[f"{letter}{number}" for number in range(4)] for letter in "abcd"]

    def change(chain: list[str]) -> None:
        try:
            with scope.organization(organization.pk):
                fallbacks.set_fallbacks(organization, MODEL, chain, by=None)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=change, args=[chain]) for chain in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fallbacks.of(organization)[MODEL] in chains
    assert len(audited(organization)) == 4


def test_the_snapshot_of_the_path_has_them(transactional_db: None) -> None:
    organization = factories.organization()
    fallbacks.set_fallbacks(organization, MODEL, ["a", "b"], by=None)
    assert snapshot.load(organization.pk).routing.fallbacks == {MODEL: ("a", "b")}


# ------------------------------------------------------------------------------------------------------------ operators


def test_an_operator_sets_shows_and_takes_away(organization: Organization) -> None:
    slug = organization.slug
    assert run("set_fallback", slug) == {"organization": slug, "fallbacks": {}}
    assert run("set_fallback", slug, MODEL, "a", "b")["fallbacks"] == {MODEL: ["a", "b"]}
    assert run("set_fallback", slug, "other", "c")["fallbacks"] == {"other": ["c"]}
    assert run("set_fallback", slug)["fallbacks"] == {MODEL: ["a", "b"], "other": ["c"]}
    assert run("set_fallback", slug, MODEL)["fallbacks"] == {MODEL: ["a", "b"]}
    assert run("set_fallback", slug, MODEL, "--clear")["fallbacks"] == {MODEL: []}
    assert on_path(organization) == {"other": ("c",)}


@pytest.mark.parametrize(
    "arguments", [("nobody", MODEL, "a"), ("ORG", "--clear"), ("ORG", MODEL, "a", "--clear"), ("ORG", MODEL, MODEL)]
)
def test_an_operators_mistake_is_told_and_changes_nothing(organization: Organization, arguments: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        run("set_fallback", *(organization.slug if one == "ORG" else one for one in arguments))
    assert on_path(organization) == {}


def test_the_admin_finds_them_and_changes_none(organization: Organization) -> None:
    fallbacks.set_fallbacks(organization, MODEL, ["admin-fallback"], by=None)
    operator = User.objects.create_superuser(email=f"{factories.unique('op')}@example.test", password=factories.password())
    client = Client()
    client.force_login(operator)
    row = ModelFallback.objects.get(organization=organization)
    link = f"/admin/routing/modelfallback/{row.pk}/change/"
    for query in (f"?q={organization.slug}", f"?organization__id__exact={organization.pk}", f"?model={MODEL}"):
        page = client.get(f"/admin/routing/modelfallback/{query}")
        assert page.status_code == 200
        assert link in page.content.decode()
    assert link not in client.get("/admin/routing/modelfallback/?q=nothing-of-the-kind").content.decode()
    client.post(link, {"fallback": "other"})
    assert client.post(f"/admin/routing/modelfallback/{row.pk}/delete/", {"post": "yes"}).status_code == 403
    assert fallbacks.of(organization) == {MODEL: ["admin-fallback"]}
