"""The policy of an organization: of whom a second factor is required, and that there is no way around it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from channels.auth import AuthMiddlewareStack
from channels.layers import channel_layers
from channels.routing import URLRouter
from channels.testing import WebsocketCommunicator
from django.core.cache import cache
from django.http import Http404
from django.test import Client

from accounts import api_tokens, members, policies, tenancy
from accounts.errors import PolicyUnknown, SecondFactorMissing
from accounts.models import AuditEvent, Member, Organization, User
from config import redis as weir_redis
from config.clock import utc_now
from quotas import consumers, live
from tests import factories, secrets
from tests.accounts import signing_in
from tests.accounts.signing_in import SECURITY
from tests.flows import test_routes as routes
from tests.flows.tenants import in_thread
from tests.flows.untouched import rows_of
from tests.pages import made

pytestmark = pytest.mark.django_db(transaction=True)
EVERYONE, LEADS, OPTIONAL = Organization.SecondFactor.EVERYONE, Organization.SecondFactor.LEADS, Organization.SecondFactor.OPTIONAL


@pytest.fixture(autouse=True)
def no_attempts_counted() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


def user_of(member: Member) -> User:
    assert member.user is not None
    return member.user


def member_under(policy: str, role: str) -> Member:
    organization = factories.organization()
    Organization.objects.filter(pk=organization.pk).update(second_factor=policy)
    organization.refresh_from_db()
    return factories.member(organization, role=role)


@pytest.mark.parametrize("role", Member.Role.values)
@pytest.mark.parametrize("policy", Organization.SecondFactor.values)
def test_who_must_and_has_none_is_led_to_set_one_up(policy: str, role: str) -> None:
    member = member_under(policy, role)
    client = made.signed_in(member)
    must = policy == EVERYONE or (policy == LEADS and role != "developer")
    first = client.get("/")["location"]
    answer = client.get(first)
    if not must:
        assert answer.status_code == 200
        return
    assert (answer.status_code, answer["location"]) == (302, SECURITY)
    page = client.get(SECURITY).content.decode()
    assert f"A second factor is required by {member.organization.name}, and you have none." in page
    assert ">Go on</a>" not in page
    signing_in.given_app(member)
    assert f'href="{first}">Go on</a>' in client.get(SECURITY).content.decode()
    assert client.get(first).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true", "HX-Target": "keys"}], ids=["plain", "htmx"])
def test_no_route_of_the_organization_is_a_way_around(headers: dict[str, str]) -> None:
    """Every route below /o/<slug>/, by GET and by POST: the answer is the way to Security, and nothing is done or told."""
    owner = member_under(EVERYONE, "owner")
    key = factories.api_key(owner)
    client = made.signed_in(owner)
    before = rows_of(owner.organization)
    paths = [route for route in routes.routes() if route.startswith("o/")]
    assert len(paths) > 40
    for route in paths:
        path = "/" + route.replace("<slug:slug>", owner.organization.slug).replace("<uuid:uuid>", str(key.row.uuid))
        path = path.replace("<str:name>", "req_0")
        assert "<" not in path, path
        for method in ("get", "post", "put", "delete", "head"):
            answer = getattr(client, method)(path, headers=headers)
            if answer.status_code == 405:
                continue
            if headers:
                assert (answer.status_code, answer["HX-Redirect"]) == (200, SECURITY), f"{method} {path}"
            else:
                assert (answer.status_code, answer["location"]) == (302, SECURITY), f"{method} {path}"
            assert answer.content == b""
    assert rows_of(owner.organization) == before


def test_each_route_is_shut_by_at_least_one_method() -> None:
    owner = member_under(EVERYONE, "owner")
    client = made.signed_in(owner)
    for route in {route for route in routes.routes() if route.startswith("o/")}:
        path = "/" + route.replace("<slug:slug>", owner.organization.slug).replace("<str:name>", "req_0")
        path = path.replace("<uuid:uuid>", "00000000-0000-4000-8000-000000000000")
        shut = [method for method in ("get", "post") if getattr(client, method)(path).get("location") == SECURITY]
        assert shut, path


def test_a_door_that_knows_nothing_of_factors_finds_no_organization() -> None:
    member = member_under(EVERYONE, "developer")
    with pytest.raises(Http404):
        tenancy.membership(user_of(member), member.organization.slug)


def test_a_factor_of_one_organization_says_nothing_of_another() -> None:
    """One person, two organizations: the open one stays open, its frame is the one of Security."""
    member = member_under(EVERYONE, "owner")
    other = members.add(factories.organization(), user_of(member).email, role="owner", by=None)
    client = made.signed_in(member)
    assert client.get(made.path(other, "overview")).status_code == 200
    assert client.get(made.path(member, "overview"))["location"] == SECURITY
    assert policies.demanding(user_of(member)) == [member.organization.name]
    stranger = member_under(OPTIONAL, "owner")
    foreign = made.signed_in(stranger).get(made.path(member, "overview"))
    missing = made.signed_in(stranger).get("/o/no-such-organization/overview")
    assert (foreign.status_code, missing.status_code) == (404, 404)
    assert "second factor" not in foreign.content.decode()


def test_keys_and_tokens_work_on() -> None:
    owner = member_under(EVERYONE, "owner")
    issued = api_tokens.issue(owner, name="t", scopes=["usage:read"], by=None, now=utc_now())
    secrets.register(issued.secret, "API token")
    answer = Client().get("/api/v1/usage", headers={"authorization": f"Bearer {issued.secret}"})
    assert answer.status_code == 200


def test_the_last_factor_stays_while_it_is_required() -> None:
    member, password = signing_in.person("lead")
    client = signing_in.entered(member, password)
    signing_in.with_app(client, password)
    Organization.objects.filter(pk=member.organization_id).update(second_factor=LEADS)
    path = "/accounts/2fa/totp/deactivate/"
    for answer in (client.get(path), client.post(path)):
        assert "This is your only second factor, and one is required of you." in answer.content.decode()
    assert Authenticator.objects.filter(user=member.user).count() == 2
    Organization.objects.filter(pk=member.organization_id).update(second_factor=OPTIONAL)
    assert client.post(path).status_code == 302
    assert not Authenticator.objects.filter(user=member.user).exists()


def test_an_owner_without_a_factor_is_told_so_before_requiring_one() -> None:
    owner = member_under(OPTIONAL, "owner")
    for policy in (LEADS, EVERYONE):
        with pytest.raises(SecondFactorMissing, match="Set one up under Security first"):
            policies.set_second_factor(owner.organization, policy, by=owner.user)
    assert Organization.objects.get(pk=owner.organization_id).second_factor == OPTIONAL
    assert not AuditEvent.objects.filter(organization=owner.organization, action="organization.second_factor_changed").exists()
    signing_in.given_app(owner)
    developer = factories.member(owner.organization)
    assert policies.lacking(owner.organization, LEADS) == []
    assert policies.lacking(owner.organization, EVERYONE) == [developer]
    changed = policies.set_second_factor(owner.organization, EVERYONE, by=owner.user)
    assert changed.second_factor == EVERYONE
    policies.set_second_factor(owner.organization, EVERYONE, by=owner.user)
    (event,) = AuditEvent.objects.filter(organization=owner.organization, action="organization.second_factor_changed")
    assert (event.actor, event.data) == (owner.user, {"before": "optional", "after": "everyone"})
    with pytest.raises(PolicyUnknown, match="'sometimes' is not a sign-in policy"):
        policies.set_second_factor(owner.organization, "sometimes", by=owner.user)


@pytest.mark.parametrize("path", ["/admin/", "/ratecards/", "/admin/accounts/user/"])
def test_operators_need_a_factor_where_the_install_says_so(path: str, settings: Any) -> None:
    operator = User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())
    client = Client()
    client.force_login(operator)
    assert client.get(path).status_code == 200
    settings.ADMIN_SECOND_FACTOR = True
    assert client.get(path)["location"] == SECURITY
    assert client.post(path)["location"] == SECURITY
    assert "required by the operators" in client.get(SECURITY).content.decode()
    from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret

    TOTP.activate(operator, generate_totp_secret())
    assert client.get(path).status_code == 200


def test_the_admin_is_shut_to_staff_of_whom_a_factor_is_required() -> None:
    owner = member_under(EVERYONE, "owner")
    assert made.signed_in(owner).get("/admin/")["location"] == SECURITY


# ------------------------------------------------------------------------------------------------------------ live pages


@pytest.fixture
async def closed() -> AsyncIterator[None]:
    yield
    await weir_redis.client().close()
    channel_layers.backends.clear()


async def test_a_live_socket_ends_when_a_factor_is_required_and_missing(closed: None) -> None:
    member = await in_thread(member_under, OPTIONAL, "developer")
    session = await in_thread(lambda: made.signed_in(member).cookies["sessionid"].value)

    def socket() -> WebsocketCommunicator:
        headers = [(b"cookie", f"sessionid={session}".encode()), (b"host", b"testserver")]
        front = AuthMiddlewareStack(URLRouter(consumers.websocket_urlpatterns))
        path = str(consumers.websocket_urlpatterns[0].pattern).replace("<slug:slug>", member.organization.slug)
        return WebsocketCommunicator(front, f"{path}?page=key", headers=headers)

    open_one = socket()
    assert (await open_one.connect(timeout=5))[0]
    assert json.loads(await open_one.receive_from(timeout=5))["left"] == "1,000,000"
    await in_thread(policies.set_second_factor, member.organization, EVERYONE, by=None)
    await in_thread(live.announce, member.organization_id)
    ended = await open_one.receive_output(timeout=5)
    while ended["type"] == "websocket.send":
        ended = await open_one.receive_output(timeout=15)
    assert (ended["type"], ended["code"]) == ("websocket.close", 4404)

    late = socket()
    assert (await late.connect(timeout=5))[0]
    refused = await late.receive_output(timeout=5)
    assert (refused["type"], refused["code"]) == ("websocket.close", 4404)
    # It is the member's own organization: nobody asked for another one.
    assert not await in_thread(AuditEvent.objects.filter(actor=member.user, action="missing.asked").exists)
