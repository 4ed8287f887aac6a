"""Who asks for what is not there for them stands in the audit trail, once, and nothing of what was asked for does."""

import json
import re
import threading
from uuid import uuid4

import pytest
import redis
from django.db import connection, connections
from django.test import Client

from accounts import audit, missing
from accounts.models import AuditEvent, Member, Organization
from config import redis as weir_redis
from tests import factories
from tests.flows.untouched import rows_of
from tests.pages import made

pytestmark = pytest.mark.django_db


def told(organization: Organization | None, member: Member | None = None) -> list[AuditEvent]:
    rows = AuditEvent.objects.filter(organization=organization, action=missing.ACTION)
    return list((rows.filter(actor=member.user) if member is not None else rows).order_by("pk"))


class World:
    """Somebody with an organization of their own, and a key of another one."""

    def __init__(self) -> None:
        self.owner = factories.member(factories.organization(plan=None), role="owner")
        self.organization = self.owner.organization
        self.foreign = factories.api_key(factories.member(factories.organization(plan=None))).row
        self.client: Client = made.signed_in(self.owner, raise_request_exception=False)

    def revoke(self, uuid: object) -> tuple[int, bytes]:
        url = made.path(self.owner, f"key/{uuid}/revoke")
        answered = self.client.post(url, {"confirm": "laptop"})
        return answered.status_code, answered.content.replace(str(uuid).encode(), b"")


@pytest.fixture
def world() -> World:
    return World()


def test_a_foreign_key_is_answered_as_a_missing_one_and_told_once_in_the_own_trail(world: World) -> None:
    """J5: nothing of the other organization moves, and its trail has nothing either."""
    before = rows_of(world.foreign.organization)
    assert world.revoke(world.foreign.uuid) == world.revoke(uuid4())
    assert world.revoke(world.foreign.uuid)[0] == 404
    assert rows_of(world.foreign.organization) == before
    [event] = told(world.organization)
    route = "o/<slug:slug>/key/<uuid:uuid>/revoke"
    assert (event.actor, event.object_type, event.object_id) == (world.owner.user, "route", route)
    assert event.data == {"method": "POST", "route": route}
    written = json.dumps([event.actor_label, event.object_id, event.data])
    foreign = world.foreign
    for name in (foreign.uuid, foreign.public_id, foreign.organization.slug, foreign.organization.uuid, foreign.member.uuid):
        assert str(name) not in written


def test_an_organization_one_is_no_member_of_is_told_in_the_chain_of_the_install(world: World) -> None:
    """J5: a foreign one as a missing one; neither's name stands anywhere."""
    foreign = world.foreign.organization
    before = rows_of(foreign), rows_of(world.organization)
    answers = [world.client.get(f"/o/{slug}/members/{uuid4()}") for slug in (foreign.slug, "no-such-organization")]
    assert [answered.status_code for answered in answers] == [404, 404]
    assert (rows_of(foreign), rows_of(world.organization)) == before
    [event] = told(None, world.owner)
    assert event.data == {"method": "GET", "route": "o/<slug:slug>/members/<uuid:uuid>"}
    assert foreign.slug not in json.dumps([event.object_id, event.data])


def test_an_organization_itself_is_asked_for_by_its_name_alone(world: World) -> None:
    """J5: the slug is the id where there is no membership."""
    assert world.client.get(f"/o/{world.foreign.organization.slug}/overview").status_code == 404
    [event] = told(None, world.owner)
    assert event.data == {"method": "GET", "route": "o/<slug:slug>/overview"}


def test_each_method_and_each_person_is_told_and_no_invented_method_makes_more(world: World) -> None:
    path = made.path(world.owner, f"members/{world.foreign.member.uuid}")
    assert [world.client.generic(method, path).status_code for method in ("GET", "HEAD", "GET")] == [404, 404, 404]
    colleague = factories.member(world.organization, role="owner")
    assert made.signed_in(colleague, raise_request_exception=False).get(path).status_code == 404
    assert [event.actor for event in told(world.organization)] == [world.owner.user, colleague.user]
    url = f"/o/{world.foreign.organization.slug}/key/{uuid4()}/revoke"
    for method in ("BREW", "WHEN", "PROPFIND"):
        world.client.generic(method, url)
    assert len(told(None, world.owner)) <= 1


def test_it_is_told_again_after_an_hour(world: World) -> None:
    world.revoke(world.foreign.uuid)
    client = weir_redis.sync_client()
    [key] = client.keys(f"missing:{world.organization.pk}:*")
    assert 3590 <= client.ttl(key) <= 3600
    client.delete(key)
    world.revoke(world.foreign.uuid)
    assert len(told(world.organization)) == 2


def test_a_line_that_polls_and_a_plain_look_are_not_told(world: World) -> None:
    path = made.path(world.owner, f"jobs/{uuid4()}")
    assert world.client.get(path, headers={"HX-Request": "true"}).status_code == 404
    assert told(world.organization) == []
    assert world.client.get(path).status_code == 404
    assert len(told(world.organization)) == 1


def test_an_id_in_a_form_is_told_too(world: World) -> None:
    """J5: not in the path but in what is sent."""
    fields = {"level": f"member:{world.foreign.member.uuid}", "metric": "credits", "window": "7d", "amount": "1"}
    assert world.client.post(made.path(world.owner, "members/limits"), fields).status_code == 404
    [event] = told(world.organization)
    assert event.data == {"method": "POST", "route": "o/<slug:slug>/members/limits"}


def test_what_is_ones_own_and_what_one_may_not_is_not_told(world: World) -> None:
    developer = factories.member(world.organization)
    client = made.signed_in(developer, raise_request_exception=False)
    assert client.get(made.path(developer, "key")).status_code == 200
    assert client.get(made.path(developer, "members")).status_code == 403
    assert client.get(made.path(developer, "no-such-page")).status_code == 404
    assert told(world.organization) == []


def test_the_audit_page_says_it_in_a_sentence(world: World) -> None:
    world.revoke(world.foreign.uuid)
    # Its number comes with the commit; what is read here are numbered events.
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    page = world.client.get(made.path(world.owner, "settings/audit"), {"kind": "missing"}).content.decode()
    text = re.sub(r"\s+", " ", page)
    assert "asked for something that is not there: o/&lt;slug:slug&gt;/key/&lt;uuid:uuid&gt;/revoke" in text


def test_without_redis_the_trail_itself_says_whether_it_was_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = redis.Redis(host="127.0.0.1", port=1, socket_connect_timeout=0.2)
    monkeypatch.setattr(weir_redis, "sync_client", lambda: nowhere)
    answers = []
    for _ in range(3):
        answers.append(world.revoke(world.foreign.uuid))
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert {status for status, _ in answers} == {404}
    assert len(set(answers)) == 1
    assert len(told(world.organization)) == 1


def test_the_answer_is_the_same_when_the_trail_cannot_be_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = world.revoke(uuid4())
    [key] = weir_redis.sync_client().keys(f"missing:{world.organization.pk}:*")
    weir_redis.sync_client().delete(key)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE accounts_auditevent RENAME COLUMN data TO gone")
    assert world.revoke(world.foreign.uuid) == usual
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE accounts_auditevent RENAME COLUMN gone TO data")
    assert len(told(world.organization)) == 1
    assert world.revoke(world.foreign.uuid) == usual
    assert len(told(world.organization)) == 2


@pytest.mark.django_db(transaction=True)
def test_two_at_once_are_told_once() -> None:
    """J5: a race of the same attempt; the chain stays whole."""
    world = World()
    clients = [made.signed_in(world.owner, raise_request_exception=False) for _ in range(2)]
    url = made.path(world.owner, f"key/{world.foreign.uuid}/revoke")
    barrier, statuses = threading.Barrier(2), []

    def ask(client: Client) -> None:
        try:
            barrier.wait(10)
            statuses.append(client.post(url, {"confirm": "laptop"}).status_code)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert statuses == [404, 404]
    assert len(told(world.organization)) == 1
    assert audit.verify(world.organization).is_whole
