"""Which organization a page is about, and that nothing of another one is reached."""

from uuid import uuid4

import pytest
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.test import RequestFactory

from accounts import members, tenancy
from accounts.models import ApiKey, Member, User
from accounts.permissions import Action
from config.clock import utc_now
from tests import factories

pytestmark = pytest.mark.django_db


def user_of(member: Member) -> User:
    assert member.user is not None
    return member.user


def request_of(user: User | AnonymousUser) -> HttpRequest:
    request = RequestFactory().get("/o/x/")
    request.user = user
    return request


@tenancy.page(Action.SET_LIMITS)
def limits_page(request: HttpRequest, member: Member) -> HttpResponse:
    return HttpResponse(str(member.uuid))


def test_a_foreign_organization_is_as_missing_as_one_that_never_was() -> None:
    mine = factories.member(factories.organization(plan=None), role="owner")
    foreign = factories.organization(plan=None)
    assert tenancy.membership(user_of(mine), mine.organization.slug) == mine
    for slug in (foreign.slug, "nowhere"):
        with pytest.raises(Http404) as missing:
            tenancy.membership(user_of(mine), slug)
        assert missing.value.args == ()
    with pytest.raises(Http404):
        tenancy.membership(AnonymousUser(), mine.organization.slug)


def test_a_former_member_finds_nothing() -> None:
    member = factories.member(factories.organization(plan=None))
    user = user_of(member)
    members.remove(member, by=None, now=utc_now())
    with pytest.raises(Http404):
        tenancy.membership(user, member.organization.slug)


def test_a_foreign_object_is_404_and_the_own_one_without_the_right_403() -> None:
    """J5: looked up by organization and id together; which of the two is wrong cannot be told."""
    organization = factories.organization(plan=None)
    developer, colleague = factories.member(organization), factories.member(organization)
    key = factories.api_key(colleague)
    stranger = factories.member(factories.organization(plan=None), role="owner")
    for uuid in (key.row.uuid, uuid4()):
        with pytest.raises(Http404) as missing:
            tenancy.owned(ApiKey.objects.all(), stranger.organization, uuid)
        assert missing.value.args == ()
    found = tenancy.owned(ApiKey.objects.all(), organization, key.row.uuid)
    with pytest.raises(PermissionDenied):
        tenancy.demand(developer, Action.USE_KEYS, of=found.member)
    tenancy.demand(colleague, Action.USE_KEYS, of=found.member)
    assert ApiKey.objects.get(pk=key.row.pk).revoked_at is None


def test_a_page_asks_who_then_where_then_whether() -> None:
    organization = factories.organization(plan=None)
    lead, developer = factories.member(organization, role="lead"), factories.member(organization)
    stranger = factories.member(factories.organization(plan=None), role="owner")
    answer = limits_page(request_of(AnonymousUser()), slug=organization.slug)
    assert (answer.status_code, answer["Location"]) == (302, "/accounts/login/?next=/o/x/")
    with pytest.raises(Http404):
        limits_page(request_of(user_of(stranger)), slug=organization.slug)
    with pytest.raises(PermissionDenied):
        limits_page(request_of(user_of(developer)), slug=organization.slug)
    shown = limits_page(request_of(user_of(lead)), slug=organization.slug)
    assert isinstance(shown, HttpResponse)
    assert shown.content.decode() == str(lead.uuid)


def test_the_organization_last_used_is_remembered_over_sign_ins() -> None:
    first, second = factories.organization(plan=None, name="Aaa"), factories.organization(plan=None, name="Zzz")
    email = f"{factories.unique('ada')}@example.org"
    one = members.add(first, email, role="lead", by=None)
    two = members.add(second, email, role="lead", by=None)
    assert tenancy.last_used(request_of(user_of(one))) == one
    limits_page(request_of(user_of(one)), slug=second.slug)
    assert tenancy.last_used(request_of(User.objects.get(email=email))) == two
    members.add(second, f"other-{email}", role="owner", by=None)
    members.remove(two, by=None, now=utc_now())
    assert tenancy.last_used(request_of(User.objects.get(email=email))) == one
    assert tenancy.last_used(request_of(AnonymousUser())) is None
