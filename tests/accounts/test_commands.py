"""The operator commands: what they print, and what they refuse."""

import io
import json
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command

from accounts import invitations, keys, members, snapshots
from accounts.models import ApiKey, Member, Organization, Team, User
from billing.models import Subscription
from config.clock import utc_now
from tests import factories, secrets

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    printed: dict[str, Any] = json.loads(out.getvalue())
    return printed


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


class TestCreateOrganization:
    def test_it_prints_id_slug_and_the_owner_s_link(self, settings: Any) -> None:
        settings.PUBLIC_URL = "https://weir.example"
        made = run(
            "create_organization", "Commands Test Ltd", "--owner", "Ada@Example.org", "--plan", "pro", "--timezone", "Asia/Tokyo"
        )
        assert list(made) == ["id", "slug", "owner_link"]
        organization = Organization.objects.get(uuid=UUID(made["id"]))
        assert (organization.slug, organization.name, organization.timezone) == (made["slug"], "Commands Test Ltd", "Asia/Tokyo")
        assert made["slug"] == "commands-test-ltd"
        assert made["owner_link"].startswith("https://weir.example/join/")
        token = secrets.register(made["owner_link"].rpartition("/")[2], "invitation token")
        assert invitations.look_up(token, now=utc_now()).email == "ada@example.org"
        assert members.find(organization, "ada@example.org").role == "owner"
        subscription = Subscription.objects.get(organization=organization)
        assert (subscription.plan.slug, subscription.member, subscription.ended_at) == ("pro", None, None)

    def test_without_more_it_is_on_plus_in_utc(self) -> None:
        made = run("create_organization", "Commands Test Ltd", "--owner", "ada@example.org")
        secrets.register(made["owner_link"].rpartition("/")[2], "invitation token")
        organization = Organization.objects.get(slug=made["slug"])
        assert (organization.timezone, Subscription.objects.get(organization=organization).plan.slug) == ("UTC", "plus")

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["X", "--owner", "nobody"], "'nobody' is not an e-mail address"),
            (["X", "--owner", "a@example.org", "--plan", "gold"], "no plan 'gold'. Plans: .*plus"),
            (["X", "--owner", "a@example.org", "--plan", "enterprise"], "Enterprise has no quota yet"),
            (["X", "--owner", "a@example.org", "--timezone", "Mars/Olympus"], "'Mars/Olympus' is not a time zone"),
            (["  ", "--owner", "a@example.org"], "name must not be empty"),
            (["X"], "--owner"),
            ([], "NAME"),
        ],
    )
    def test_what_is_wrong_is_said_and_nothing_is_made(self, arguments: list[str], said: str) -> None:
        before = (Organization.objects.count(), User.objects.count(), Subscription.objects.count())
        with pytest.raises(CommandError, match=said):
            run("create_organization", *arguments)
        assert (Organization.objects.count(), User.objects.count(), Subscription.objects.count()) == before


class TestAddMember:
    def test_it_makes_the_team_and_reads_the_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        organization = factories.organization(plan=None)
        password = factories.password()
        type_in(monkeypatch, password + "\n")
        arguments = ["ada@example.org", "--role", "lead", "--team", "Platform", "--password-stdin"]
        made = run("add_member", organization.slug, *arguments)
        member = members.find(organization, "ada@example.org")
        assert made == {"id": str(member.uuid), "email": "ada@example.org"}
        assert (member.role, str(member.team)) == ("lead", "Platform")
        assert member.user is not None
        assert member.user.check_password(password)

    def test_the_same_person_joins_a_second_organization_with_the_same_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        password = factories.password()
        for organization in (factories.organization(plan=None), factories.organization(plan=None)):
            type_in(monkeypatch, password)
            run("add_member", organization.slug, "ada@example.org", "--role", "developer", "--password-stdin")
        assert Member.objects.filter(user__email="ada@example.org").count() == 2

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["ada@example.org", "--role", "boss"], "'boss' is not a role. Roles: developer, lead, finance, owner"),
            (["ada", "--role", "lead"], "'ada' is not an e-mail address"),
            (["ada@example.org", "--role", "owner", "--team", "New"], "not to a team"),
            (["ada@example.org", "--role", "lead", "--team", "New", "--password-stdin"], "standard input holds no password"),
            (["ada@example.org"], "--role"),
        ],
    )
    def test_a_refused_member_leaves_no_team_behind(self, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
        organization = factories.organization(plan=None)
        type_in(monkeypatch, "")
        with pytest.raises(CommandError, match=said):
            run("add_member", organization.slug, *arguments)
        assert not Member.objects.filter(organization=organization).exists()
        assert not Team.objects.filter(organization=organization).exists()

    def test_an_unknown_organization_and_a_member_who_is_one_already_are_named(self) -> None:
        organization = factories.organization(plan=None)
        with pytest.raises(CommandError, match="no organization with the slug 'nowhere'"):
            run("add_member", "nowhere", "ada@example.org", "--role", "lead")
        run("add_member", organization.slug, "ada@example.org", "--role", "lead")
        with pytest.raises(CommandError, match=r"ada@example.org is a member already"):
            run("add_member", organization.slug, "ADA@example.org", "--role", "lead")


class TestKeys:
    def test_a_key_is_printed_once_and_ends_by_its_public_id(self) -> None:
        organization = factories.organization(plan=None)
        member = factories.member(organization)
        assert member.user is not None
        made = run("create_key", organization.slug, member.user.email.upper(), "--name", "ci")
        parsed = keys.parse(secrets.register(made["key"], "gateway key"))
        assert parsed is not None
        secrets.register(parsed.secret, "gateway key's secret")
        assert list(made) == ["id", "public_id", "key"]
        assert made["public_id"] == parsed.public_id
        row = ApiKey.objects.get(public_id=parsed.public_id)
        assert (str(row.uuid), row.name, row.member) == (made["id"], "ci", member)
        assert keys.verify(made["key"], snapshots.load(organization.pk).keys[parsed.public_id], now=utc_now())
        ended = run("revoke_key", organization.slug, parsed.public_id)
        row.refresh_from_db()
        assert ended == {"id": made["id"], "revoked_at": row.revoked_at.isoformat() if row.revoked_at else None}
        assert datetime.fromisoformat(ended["revoked_at"]).tzinfo is not None
        assert run("revoke_key", organization.slug, f"wr_{parsed.public_id}") == ended

    def test_who_and_which_is_unknown_is_said(self) -> None:
        organization, other = factories.organization(plan=None), factories.organization(plan=None)
        foreign = factories.api_key(factories.member(other))
        finance = factories.member(organization, role="finance")
        assert finance.user is not None
        for arguments, said in (
            (["create_key", organization.slug, "ada@example.org", "--name", "x"], "'ada@example.org' is no member of"),
            (["create_key", "nowhere", "ada@example.org", "--name", "x"], "no organization"),
            (["create_key", organization.slug, finance.user.email, "--name", "x"], "finance hold no keys"),
            (["create_key", organization.slug, finance.user.email], "--name"),
            (["revoke_key", organization.slug, foreign.row.public_id], "no such key"),
            (["revoke_key", organization.slug, "nonsense"], "no such key"),
        ):
            with pytest.raises(CommandError, match=said):
                run(*arguments)
        assert not ApiKey.objects.filter(organization=organization).exists()
        assert ApiKey.objects.get(pk=foreign.row.pk).revoked_at is None


def test_suspend_and_resume_print_the_state() -> None:
    organization = factories.organization(plan=None)
    for command, is_active in (("suspend", False), ("suspend", False), ("resume", True)):
        assert run(command, organization.slug) == {"slug": organization.slug, "is_active": is_active}
        assert Organization.objects.get(pk=organization.pk).is_active is is_active
    with pytest.raises(CommandError, match="no organization with the slug 'nowhere'"):
        run("suspend", "nowhere")


def test_without_json_a_command_prints_lines_for_people() -> None:
    organization = factories.organization(plan=None)
    out = io.StringIO()
    call_command("suspend", organization.slug, stdout=out)
    assert out.getvalue() == f"slug: {organization.slug}\nis_active: no\n"


@pytest.mark.parametrize("command", [
    "create_organization", "add_member", "create_key", "revoke_key", "create_api_token", "revoke_api_token", "export_usage",
    "suspend", "resume",
])  # fmt: skip
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        call_command(command, "--help")
    assert left.value.code == 0
    assert "--json" in capsys.readouterr().out
