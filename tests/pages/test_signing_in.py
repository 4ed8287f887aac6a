"""The way in: sign-in and its refusals, the one-time link, the first page of each role, and the pages that say no."""

import re
from typing import Any

import pytest
from django.core import mail
from django.test import Client

from accounts import adapter, invitations
from accounts.models import Member, Organization, User
from billing.models import Subscription
from config.clock import utc_now
from tests import factories, secrets
from tests.pages import made

pytestmark = pytest.mark.django_db


@pytest.fixture
def member() -> tuple[Member, str]:
    password = factories.password()
    return factories.member(factories.organization(), password=password), password


def sign_in(member: Member, password: str, client: Client | None = None, **fields: str) -> Any:
    assert member.user is not None
    data = {"login": member.user.email, "password": password, **fields}
    return (client or Client()).post("/accounts/login/", data)


@pytest.mark.parametrize(
    ("role", "page"), [("developer", "key"), ("lead", "overview"), ("finance", "usage"), ("owner", "overview")]
)
def test_signing_in_leads_to_the_first_question_of_the_role(role: str, page: str) -> None:
    password = factories.password()
    member = factories.member(factories.organization(), role=role, password=password)
    client = Client()
    assert sign_in(member, password, client)["location"] == "/"
    assert client.get("/")["location"] == made.path(member, page)
    shown = client.get(made.path(member, page))
    assert shown.status_code == 200
    assert "signed in as" not in shown.content.decode()


def test_the_last_used_organization_comes_first(member: tuple[Member, str]) -> None:
    one, _ = member
    from accounts import members

    assert one.user is not None
    other = members.add(factories.organization(), one.user.email, role="owner", by=None)
    client = made.signed_in(one)
    client.get(made.path(other, "overview"))
    assert client.get("/")["location"] == made.path(other, "overview")
    client.get(made.path(one))
    assert client.get("/")["location"] == made.path(one)
    switcher = client.get(made.path(one)).content.decode().split('class="menu"')[1].split("</details>")[0]
    listed = sorted((one, other), key=lambda each: each.organization.name)
    assert re.findall(r'href="(/o/[^"]+)"', switcher) == [f"/o/{each.organization.slug}/" for each in listed]


def test_who_belongs_to_no_organization_is_told_so() -> None:
    user = User.objects.create_user("alone@example.com", "some long password 1")
    client = Client()
    client.force_login(user)
    answered = client.get("/")
    assert answered.status_code == 200
    assert "You belong to no organization" in answered.content.decode()


def test_a_wrong_password_and_an_unknown_address_get_the_same_answer(member: tuple[Member, str]) -> None:
    one, _ = member
    wrong = sign_in(one, "not the password")
    unknown = Client().post("/accounts/login/", {"login": "nobody@example.com", "password": "not the password"})
    for answered in (wrong, unknown):
        assert answered.status_code == 200
        assert "E-mail or password do not match." in answered.content.decode()
        assert 'aria-invalid="true"' in answered.content.decode()


def test_six_wrong_tries_bring_a_pause_that_is_announced(member: tuple[Member, str]) -> None:
    one, password = member
    client = Client(REMOTE_ADDR=f"10.9.{one.pk % 250}.{one.pk // 250 % 250}")
    for _ in range(5):
        assert "do not match" in sign_in(one, "wrong password", client).content.decode()
    # The right password does not help during the pause.
    paused = sign_in(one, password, client)
    assert paused.status_code == 200
    assert "Too many wrong tries. Wait five minutes, then try again." in paused.content.decode()


def test_a_next_address_elsewhere_is_not_followed(member: tuple[Member, str]) -> None:
    one, password = member
    assert sign_in(one, password, next="https://evil.example/")["location"] == "/"
    assert sign_in(one, password, next=made.path(one, "overview"))["location"] == made.path(one, "overview")


def test_signing_out_is_a_post(member: tuple[Member, str]) -> None:
    client = made.signed_in(member[0])
    assert client.get("/accounts/logout/").status_code == 200
    assert client.get("/")["location"] == made.path(member[0])
    assert client.post("/accounts/logout/")["location"] == "/accounts/login/"
    assert client.get("/")["location"] == "/accounts/login/?next=/"


def test_a_password_is_reset_by_a_link_in_an_e_mail(member: tuple[Member, str]) -> None:
    one, _ = member
    assert one.user is not None
    client = Client()
    asked = client.post("/accounts/password/reset/", {"email": one.user.email}, follow=True)
    assert "The link is on its way" in asked.content.decode()
    # Sent beside the answer.
    adapter.mailing.submit(lambda: None).result(20)
    assert mail.outbox[0].to == [one.user.email]
    link = re.search(r"https?://[^/\s]+(/accounts/password/reset/key/\S+)", str(mail.outbox[0].body))
    assert link is not None
    form = client.get(link[1], follow=True)
    assert "Set a new password" in form.content.decode()
    new = factories.password()
    done = client.post(form.redirect_chain[-1][0], {"password1": new, "password2": new}, follow=True)
    assert "The password is set" in done.content.decode()
    assert sign_in(one, new)["location"] == "/"
    # The link works once.
    assert "This link has been used or has expired." in Client().get(link[1], follow=True).content.decode()


def test_an_unknown_address_is_not_told_apart_when_a_reset_is_asked_for() -> None:
    asked = Client().post("/accounts/password/reset/", {"email": "nobody@example.com"}, follow=True)
    assert "If the address is known here" in asked.content.decode()


PAGES = [
    "/accounts/login/",
    "/accounts/signup/",
    "/accounts/inactive/",
    "/accounts/password/reset/",
    "/accounts/password/reset/done/",
    "/accounts/password/reset/key/done/",
    "/accounts/password/reset/key/1-none/",
    "/accounts/confirm-email/",
    "/join/nothing",
    "/nothing-here",
]


@pytest.mark.parametrize("path", PAGES)
def test_every_page_of_the_way_in_is_ours_and_strict(path: str) -> None:
    answered = Client().get(path, follow=True)
    page = answered.content.decode()
    assert '<div class="signin">' in page
    policy = answered["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert answered["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/accounts/logout/", "/accounts/password/change/", "/accounts/email/", "/accounts/reauthenticate/"]
)
def test_every_page_of_ones_own_account_is_ours(member: tuple[Member, str], path: str) -> None:
    answered = made.signed_in(member[0]).get(path, follow=True)
    assert answered.status_code == 200
    assert '<div class="signin">' in answered.content.decode() or '<div class="shell">' in answered.content.decode()


def test_errors_speak_our_words(member: tuple[Member, str]) -> None:
    client = made.signed_in(member[0])
    missing = client.get("/o/no-such-organization/key")
    assert missing.status_code == 404
    assert "There is nothing at this address, or it is not yours to see." in missing.content.decode()
    finance = factories.member(member[0].organization, role="finance")
    forbidden = made.signed_in(finance).get(made.path(finance))
    assert forbidden.status_code == 403
    assert "Your role does not include this." in forbidden.content.decode()
    strict = made.signed_in(member[0], enforce_csrf_checks=True).post(made.path(member[0], "key/issue"), {"name": "x"})
    assert "The form was not accepted" in strict.content.decode()


def test_a_failure_is_a_page_without_details(member: tuple[Member, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from billing import overview

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the secret inside")

    monkeypatch.setattr(overview, "days_by_model", broken)
    assert member[0].user is not None
    client = Client(raise_request_exception=False)
    client.force_login(member[0].user)
    failed = client.get(made.path(member[0]))
    assert failed.status_code == 500
    assert "only this page failed" in failed.content.decode()
    assert "the secret inside" not in failed.content.decode()


# ------------------------------------------------------------------------------------------------------------- joining


def token(link: invitations.Link) -> str:
    return secrets.register(link.url.rsplit("/", 1)[1], "one-time link")


def test_a_link_lets_an_owner_set_a_password_once() -> None:
    organization = factories.organization()
    link = invitations.create_owner_link(organization, "otto@halden.example", now=utc_now())
    path = f"/join/{token(link)}"
    shown = Client().get(path)
    assert shown.status_code == 200
    assert f"Join {organization.name}" in shown.content.decode()
    assert "Choose a password" in shown.content.decode()
    assert "no-store" in shown["cache-control"]

    password = factories.password()
    client = Client()
    joined = client.post(path, {"name": "Otto Brandt", "password": password})
    assert joined["location"] == f"/o/{organization.slug}/"
    assert client.get(joined["location"])["location"] == f"/o/{organization.slug}/overview"
    assert str(Member.objects.get(organization=organization)) == "Otto Brandt"

    again = Client().post(path, {"name": "Eve", "password": factories.password()})
    assert again.status_code == 404
    assert "This link does not work" in again.content.decode()
    assert User.objects.get(email="otto@halden.example").check_password(password)


def test_a_weak_password_leaves_the_link_as_it_was() -> None:
    link = invitations.create_owner_link(factories.organization(), "otto@halden.example", now=utc_now())
    path = f"/join/{token(link)}"
    refused = Client().post(path, {"name": "Otto", "password": "short"})
    assert 400 <= refused.status_code < 500
    assert 'role="alert"' in refused.content.decode()
    assert "short" not in refused.content.decode().replace("too short", "")
    assert Client().get(path).status_code == 200
    assert not User.objects.get(email="otto@halden.example").has_usable_password()


def test_who_has_a_password_gives_that_one() -> None:
    password = factories.password()
    member = factories.member(factories.organization(), password=password)
    assert member.user is not None
    link = invitations.create_owner_link(factories.organization(), member.user.email, now=utc_now())
    path = f"/join/{token(link)}"
    page = Client().get(path).content.decode()
    assert "give the password you sign in with" in page
    wrong = factories.password()
    refused = Client().post(path, {"password": wrong})
    assert 400 <= refused.status_code < 500
    assert member.user.check_password(password)
    assert Client().post(path, {"password": password}).status_code == 302


def test_wrong_passwords_bring_the_pause_of_sign_in_to_a_link_too() -> None:
    """Who makes a link for somebody's address may open it, and must not find the password out by it."""
    password = factories.password()
    member = factories.member(factories.organization(), password=password)
    assert member.user is not None
    link = invitations.create_owner_link(factories.organization(), member.user.email, now=utc_now())
    path, client = f"/join/{token(link)}", Client(REMOTE_ADDR="192.0.2.77")
    for _ in range(5):
        assert "That is not the password" in client.post(path, {"password": "wrong password"}).content.decode()
    paused = client.post(path, {"password": password})
    assert paused.status_code == 429
    assert "Too many wrong tries. Wait five minutes, then try again." in paused.content.decode()
    link.invitation.refresh_from_db()
    assert link.invitation.accepted_at is None


def test_the_first_link_creates_the_organization_on_a_plan_in_its_zone() -> None:
    # The database of a test run holds organizations; the first link is for one that holds none.
    if Organization.objects.exists():
        link = invitations._create(None, "", Member.Role.OWNER, now=utc_now(), base_url=None)
        path = f"/join/{token(link)}"
        page = Client().get(path).content.decode()
        assert "Create your organization" in page
        assert '<option value="Europe/Berlin">' in page
        refused = Client().post(
            path,
            {"organization": "Late", "email": "late@x.example", "name": "L", "password": factories.password(), "timezone": "UTC"},
        )
        assert 400 <= refused.status_code < 500
        assert not Organization.objects.filter(name="Late").exists()
        return
    url = invitations.first_owner_link(now=utc_now())
    assert url is not None
    path = f"/join/{secrets.register(url.rsplit('/', 1)[1], 'one-time link')}"
    assert "Create your organization" in Client().get(path).content.decode()
    done = Client().post(
        path,
        {
            "organization": "Halden Robotics",
            "timezone": "Europe/Berlin",
            "email": "Otto@Halden.example",
            "name": "Otto Brandt",
            "password": factories.password(),
        },
    )
    organization = Organization.objects.get()
    assert done["location"] == f"/o/{organization.slug}/"
    assert (organization.name, organization.timezone) == ("Halden Robotics", "Europe/Berlin")
    assert Member.objects.get().role == Member.Role.OWNER
    assert Subscription.objects.get(organization=organization).plan.slug == "plus"
