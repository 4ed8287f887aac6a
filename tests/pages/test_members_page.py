"""Members & limits: who sees whom, what is set where, what each bad input is told, that nothing foreign is touched."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from accounts import keys, members
from accounts.models import AuditEvent, Invitation, Member, Organization
from billing import credits
from config.clock import utc_now
from quotas import limits, remaining
from quotas.models import Limit, LimitBoost
from tests import factories, secrets
from tests.pages import made
from tests.pages.test_requests import days_on

pytestmark = pytest.mark.django_db


class World:
    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.quality = factories.team(self.organization, "Quality")
        self.platform = factories.team(self.organization, "Platform")
        self.owner = factories.member(self.organization, role="owner")
        self.lead = factories.member(self.organization, role="lead", team=self.quality)
        self.developer = factories.member(self.organization, team=self.quality)
        self.elsewhere = factories.member(self.organization, team=self.platform)
        self.finance = factories.member(self.organization, role="finance")

    def set(self, amount: str, *, of: Member | str | None = None, metric: str = "credits", window: str = "day") -> Limit:
        """A limit of a member, a team's name or (None) the organization."""
        scope = "organization" if of is None else "team" if isinstance(of, str) else "member"
        name = of.user.email if isinstance(of, Member) and of.user else of
        made = limits.set_limit(
            self.organization,
            scope=scope,
            of=name,
            metric=metric,
            window=window,
            amount=amount,
            by=None,  # type: ignore[arg-type]
        )
        return Limit.objects.get(uuid=made)

    def amounts(self) -> dict[str, str]:
        return {str(limit): credits.text(limit.amount) for limit in Limit.objects.filter(organization=self.organization)}


@pytest.fixture
def world() -> World:
    return World()


def post(member: Member, path: str, **data: str) -> Any:
    return made.signed_in(member).post(made.path(member, path), data)


def get(member: Member, path: str = "members") -> str:
    answered = made.signed_in(member).get(made.path(member, path))
    assert answered.status_code == 200
    return answered.content.decode()


def names(page: str) -> list[str]:
    return re.findall(r'<tr data-member="([^"]+)">', page)


@pytest.mark.parametrize(("who", "status"), [("owner", 200), ("lead", 200), ("developer", 403), ("finance", 403)])
def test_who_may_see_the_page(world: World, who: str, status: int) -> None:
    member = getattr(world, who)
    assert made.signed_in(member).get(made.path(member, "members")).status_code == status
    assert made.signed_in(member).get(made.path(member, f"members/{world.developer.uuid}")).status_code == status


def test_a_lead_sees_their_team_and_an_owner_everybody(world: World) -> None:
    gone = factories.member(world.organization, team=world.quality)
    members.remove(gone, by=None, now=utc_now())
    assert set(names(get(world.lead))) == {str(one.uuid) for one in (world.lead, world.developer)}
    everybody = (world.owner, world.lead, world.developer, world.elsewhere, world.finance)
    assert set(names(get(world.owner))) == {str(one.uuid) for one in everybody}
    assert str(world.elsewhere) not in get(world.lead)
    assert "Platform" not in get(world.lead)


def test_each_member_stands_with_role_team_keys_use_and_tightest_limit(world: World) -> None:
    key = factories.api_key(world.developer)
    factories.api_key(world.developer)
    keys.revoke(factories.api_key(world.developer).row, by=None, now=utc_now())
    made.used(key.row, 90_500_000)
    world.set("100", of=world.developer)
    world.set("1000", of=world.developer, window="30d")
    world.set("1", of=world.developer, metric="requests_per_minute", window="")
    page = get(world.owner)
    [row] = re.findall(rf'<tr data-member="{world.developer.uuid}">.*?</tr>', page, re.S)
    said = " ".join(re.sub(r"<[^>]+>", " ", row).split())
    assert said.endswith("9 % 9.50 credits 100 Credits, today · 2 more 90.50 90.50 Developer Quality 2")
    assert names(page)[0] == str(world.developer.uuid)
    assert f"<strong>1 of 5 is below 20 % left</strong>: {world.developer}." in page
    assert '90.50</td><td class="hide-phone"></td><td class="hide-phone"></td></tr></tfoot>' in page


def test_a_members_page_names_the_limit_that_stops_them_first_not_the_one_with_the_least_share_left(world: World) -> None:
    made.used(factories.api_key(world.developer).row, 60_000_000)
    world.set("100", of=world.developer)
    world.set("200", window="month")
    made.used(factories.api_key(world.elsewhere).row, 80_000_000)
    page = get(world.owner, f"members/{world.developer.uuid}")
    assert "<strong>40.00 credits left</strong> of" in page
    assert "own, of the keys, and of the levels above</p>" in page
    world.set("1000", window="month")
    made.used(factories.api_key(world.elsewhere).row, 800_000_000)
    assert "<strong>40.00 credits left</strong> of" in get(world.owner, f"members/{world.developer.uuid}")
    world.set("60", of=world.developer)
    assert "<strong>0 credits left</strong> of" in get(world.owner, f"members/{world.developer.uuid}")


def test_without_numbers_the_page_says_so_and_limits_can_still_be_seen(world: World) -> None:
    organization = factories.organization(plan=None)
    owner = factories.member(organization, role="owner")
    limits.set_limit(organization, scope="organization", of=None, metric="credits", window="day", amount="5", by=None)
    page = get(owner)
    assert "What is left cannot be told now: Your organization has no active plan. Ask its owner to choose one." in page
    assert ">5.00</a>" in page


class TestSetting:
    @pytest.mark.parametrize(("metric", "window", "amount", "kept"), [
        ("credits", "5h", "12.5", 12_500_000), ("credits", "1d", "1,000", 10**9), ("tokens", "7d", "5", 5),
        ("requests", "30d", "0", 0), ("credits", "day", "1", 10**6), ("tokens", "week", "9", 9), ("requests", "month", "8", 8),
        ("credits", "period", "7", 7 * 10**6),
        ("requests_per_second", "", "3", 3), ("requests_per_minute", "day", "2", 2), ("concurrent", "", "4", 4),
    ])  # fmt: skip
    @pytest.mark.parametrize("level", ["organization", "team", "member", "key"])
    def test_every_metric_and_window_at_every_level(
        self, world: World, level: str, metric: str, window: str, amount: str, kept: int
    ) -> None:
        key = factories.api_key(world.developer)
        uuids = {"organization": "", "team": world.quality.uuid, "member": world.developer.uuid, "key": key.row.uuid}
        value = level if level == "organization" else f"{level}:{uuids[level]}"
        answered = post(world.owner, "members/limits", level=value, metric=metric, window=window, amount=amount)
        back = f"members/{world.developer.uuid}" if level in ("member", "key") else "members"
        assert (answered.status_code, answered["location"]) == (302, made.path(world.owner, back))
        [limit] = Limit.objects.filter(organization=world.organization)
        expected = "" if metric in ("requests_per_second", "requests_per_minute", "concurrent") else window
        assert (limit.scope, limit.metric, limit.window, limit.amount) == (level, metric, expected, kept)
        assert AuditEvent.objects.get(action="limit.set", object_id=str(limit.uuid)).actor == world.owner.user

    def test_of_some_models_only_and_exactly(self, world: World) -> None:
        value = f"member:{world.developer.uuid}"
        fields = {"metric": "credits", "window": "5h", "amount": "10", "models": "gpt-5.5, gpt-5.4", "is_exact": "on"}
        assert post(world.lead, "members/limits", level=value, **fields).status_code == 302
        limit = Limit.objects.select_related("model_filter").get(organization=world.organization)
        assert limit.model_filter is not None
        assert sorted(limit.model_filter.model_names) == ["gpt-5.4", "gpt-5.5"]
        assert limit.strategy == Limit.Strategy.SLIDING_LOG
        page = get(world.lead, f"members/{world.developer.uuid}")
        assert "gpt-5.4" in page
        assert "exact" in page

    @pytest.mark.parametrize(("fields", "said"), [
        ({"amount": ""}, "This field is required."),
        ({"amount": "lots"}, "&#x27;lots&#x27; is not a decimal number of credits, such as 12 or 0.25."),
        ({"amount": "-1"}, "&#x27;-1&#x27; is not between 0 and the largest amount that can be counted."),
        ({"metric": "tokens", "amount": "1.5"}, "&#x27;1.5&#x27; is not a whole number."),
        ({"window": ""}, "In which time? A limit of credits needs one."),
        ({"window": "decade"}, "Select a valid choice."),
    ])  # fmt: skip
    def test_what_cannot_be_set_is_said_beside_its_field(self, world: World, fields: dict[str, str], said: str) -> None:
        data = {"level": "organization", "metric": "credits", "window": "day", "amount": "5", **fields}
        answered = post(world.owner, "members/limits", **data)
        assert 400 <= answered.status_code < 500
        page = answered.content.decode()
        assert re.search(rf'aria-invalid="true".*?<span class="error" id="[^"]+">{re.escape(said)}', page, re.S)
        assert not Limit.objects.filter(organization=world.organization).exists()

    def test_an_amount_is_changed_and_a_limit_removed_in_place(self, world: World) -> None:
        limit = world.set("100", of=world.developer)
        page = get(world.lead, f"members?edit={limit.uuid}")
        assert f'action="{made.path(world.lead, f"members/limits/{limit.uuid}")}"' in page
        assert 'value="100"' in page
        changed = post(world.lead, f"members/limits/{limit.uuid}", amount="250", page="members")
        assert (changed.status_code, changed["location"]) == (302, made.path(world.lead, "members"))
        assert world.amounts() == {"member credits day 250000000": "250"}
        wrong = post(world.lead, f"members/limits/{limit.uuid}", amount="none", page="members")
        assert wrong.status_code == 422
        assert "To lift the limit, remove it. 0 blocks." in wrong.content.decode()
        assert world.amounts() == {"member credits day 250000000": "250"}
        removed = post(world.lead, f"members/limits/{limit.uuid}/remove")
        assert removed["location"] == made.path(world.lead, f"members/{world.developer.uuid}")
        assert world.amounts() == {}

    def test_a_change_holds_for_the_counters_at_once(self, world: World) -> None:
        limit = world.set("100", of=world.developer)
        post(world.lead, f"members/limits/{limit.uuid}", amount="40")
        assert remaining.standing(world.developer, now=utc_now()).spendable.left == 40_000_000
        post(world.lead, f"members/limits/{limit.uuid}/boost", extra="2.5", until=days_on(1))
        assert remaining.standing(world.developer, now=utc_now()).spendable.left == 42_500_000

    def test_more_for_a_time_is_given_shown_and_ended(self, world: World) -> None:
        limit = world.set("100", of=world.developer)
        given = post(world.lead, f"members/limits/{limit.uuid}/boost", extra="50", until=days_on(0), note="release")
        assert given.status_code == 302
        boost = LimitBoost.objects.get(limit=limit)
        assert (boost.extra, boost.reason, boost.granted_by) == (50_000_000, "release", world.lead.user)
        assert timedelta(0) < boost.ends_at - utc_now() <= timedelta(days=1)
        page = get(world.lead, f"members/{world.developer.uuid}?more={limit.uuid}")
        assert "50.00 more until" in page
        assert "release" in page
        ended = post(world.lead, f"members/boosts/{boost.uuid}/end")
        assert ended.status_code == 302
        boost.refresh_from_db()
        assert boost.revoked_at is not None
        assert "50.00 more until" not in get(world.lead, f"members/{world.developer.uuid}?more={limit.uuid}")
        wrong = post(world.lead, f"members/limits/{limit.uuid}/boost", extra="0", until=days_on(0))
        assert "How much more? The amount must be above 0." in wrong.content.decode()
        assert LimitBoost.objects.filter(limit=limit).count() == 1


class TestRights:
    def routes(self, world: World, limit: Limit, boost: LimitBoost) -> list[tuple[str, dict[str, str]]]:
        return [
            ("members/limits", {"level": f"member:{limit.member.uuid}", "metric": "tokens", "window": "day", "amount": "1"}),  # type: ignore[union-attr]
            (f"members/limits/{limit.uuid}", {"amount": "1"}),
            (f"members/limits/{limit.uuid}/remove", {}),
            (f"members/limits/{limit.uuid}/boost", {"extra": "1", "until": days_on(1)}),
            (f"members/boosts/{boost.uuid}/end", {}),
        ]

    def boost(self, limit: Limit) -> LimitBoost:
        return limits.boost(limit, extra=5, until=utc_now() + timedelta(days=1), reason="", by=None)

    @pytest.mark.parametrize("who", ["developer", "finance", "lead"])
    def test_out_of_ones_scope_nothing_is_set(self, world: World, who: str) -> None:
        limit = world.set("100", of=world.elsewhere)
        boost, before = self.boost(limit), Organization.objects.get(pk=world.organization.pk).config_version
        for path, data in self.routes(world, limit, boost):
            assert post(getattr(world, who), path, **data).status_code == 403, path
        assert world.amounts() == {"member credits day 100000000": "100"}
        assert LimitBoost.objects.get(limit=limit).revoked_at is None
        assert Organization.objects.get(pk=world.organization.pk).config_version == before

    def test_what_is_foreign_is_as_missing(self, world: World) -> None:
        """J5 in part: 404 for a foreign one exactly as for one that is not there."""
        limit = world.set("100", of=world.developer)
        boost, missing = self.boost(limit), world.organization.uuid
        stranger = factories.member(factories.organization(), role="owner")
        for path, data in self.routes(world, limit, boost):
            foreign = post(stranger, path, **data)
            uuids = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
            other = {name: uuids.sub(str(missing), value) for name, value in data.items()}
            absent = post(stranger, uuids.sub(str(missing), path), **other)
            assert (foreign.status_code, foreign.content) == (404, absent.content) == (absent.status_code, foreign.content), path
        for path in (f"members/{world.developer.uuid}", f"members/{missing}"):
            assert made.signed_in(stranger).get(made.path(stranger, path)).status_code == 404
        assert world.amounts() == {"member credits day 100000000": "100"}

    @pytest.mark.parametrize("level", ["", "x", "organization:x", "team:", "member:not-a-uuid", "planet:1"])
    def test_a_level_that_is_none_is_not_found(self, world: World, level: str) -> None:
        answered = post(world.owner, "members/limits", level=level, metric="credits", window="day", amount="1")
        assert answered.status_code == 404
        assert world.amounts() == {}

    def test_a_lead_sets_no_limit_of_the_organization_and_none_above_the_teams(self, world: World) -> None:
        world.set("120", of="Quality")
        fields = {"metric": "credits", "window": "day"}
        assert post(world.lead, "members/limits", level="organization", amount="1", **fields).status_code == 403
        level = f"member:{world.developer.uuid}"
        above = post(world.lead, "members/limits", level=level, amount="120.000001", **fields)
        assert above.status_code == 403
        said = "Leads do not go above the limit of their own scope: the Quality team may use 120. Ask an owner."
        assert said in above.content.decode()
        assert world.amounts() == {"team credits day 120000000": "120"}
        assert post(world.lead, "members/limits", level=level, amount="120", **fields).status_code == 302
        # Their own scope's limit may be lowered, and neither raised nor removed.
        own = Limit.objects.get(organization=world.organization, scope="team")
        assert post(world.lead, f"members/limits/{own.uuid}", amount="121").status_code == 403
        kept = made.signed_in(world.lead).post(made.path(world.lead, f"members/limits/{own.uuid}/remove"), follow=True)
        assert "Nothing was changed: Leads do not remove the limit of their own scope" in kept.content.decode()
        assert world.amounts() == {"team credits day 120000000": "120", "member credits day 120000000": "120"}

    def test_a_lead_is_offered_what_they_may_do(self, world: World) -> None:
        limit = world.set("1000")
        page = get(world.lead, "members?new=")
        levels = re.findall(r'<option value="([^"]+)"', page.split('id="level"')[1].split("</select>")[0])
        assert levels == [f"team:{world.quality.uuid}", f"member:{world.lead.uuid}", f"member:{world.developer.uuid}"]
        assert f"?edit={limit.uuid}" not in page
        assert f"?edit={limit.uuid}" in get(world.owner)


class TestPeople:
    def test_an_invited_person_comes_in_by_the_link_that_is_shown_once(self, world: World) -> None:
        email = f"{factories.unique('new')}@example.org"
        answered = post(world.lead, "members/invite", email=email, name="New Person", role="developer", team="Quality")
        assert answered.status_code == 200
        found = re.search(r'<code id="link">([^<]+/join/([^<]+))</code>', answered.content.decode())
        assert found is not None
        secrets.register(found[2], "invitation")
        assert "no-store" in answered["cache-control"]
        member = Member.objects.get(organization=world.organization, user__email=email)
        assert (member.role, member.team, str(member)) == ("developer", world.quality, "New Person")
        assert found[2] not in get(world.lead)
        assert "link not opened yet" in get(world.lead)
        assert made.signed_in(world.lead).get(f"/join/{found[2]}").status_code == 200
        assert Client().post(f"/join/{found[2]}", {"name": "New", "password": factories.password()}).status_code == 302
        assert "link not opened yet" not in get(world.lead)

    @pytest.mark.parametrize(("data", "status", "said"), [
        ({"role": "owner"}, 403, "Leads invite developers; other roles are an owner’s to give."),
        ({"email": "nobody"}, 422, "Enter a valid email address."),
        ({"email": "{developer}"}, 409, " is a member already."),
    ])  # fmt: skip
    def test_who_cannot_be_invited_is_not(self, world: World, data: dict[str, str], status: int, said: str) -> None:
        assert world.developer.user is not None
        wanted = {"email": f"{factories.unique('new')}@example.org", "role": "developer", "team": "Quality", **data}
        wanted["email"] = wanted["email"].format(developer=world.developer.user.email)
        before = Member.objects.filter(organization=world.organization).count(), Invitation.objects.count()
        answered = post(world.lead, "members/invite", **wanted)
        assert answered.status_code == status
        assert said in answered.content.decode()
        assert (Member.objects.filter(organization=world.organization).count(), Invitation.objects.count()) == before

    def test_a_refused_invitation_or_change_leaves_no_team_behind(self, world: World) -> None:
        whole = factories.member(world.organization, role="lead")
        before = set(world.organization.teams.values_list("name", flat=True))
        email = f"{factories.unique('new')}@example.org"
        assert post(whole, "members/invite", email=email, role="owner", team="Brand new").status_code == 403
        assert post(whole, f"members/{world.developer.uuid}/change", role="owner", team="Brand new").status_code == 403
        assert post(world.owner, "members/invite", email=email, role="owner", team="Brand new").status_code == 400
        assert post(world.owner, f"members/{world.developer.uuid}/change", role="owner", team="Brand new").status_code == 400
        assert set(world.organization.teams.values_list("name", flat=True)) == before

    def test_a_lead_invites_into_no_other_team(self, world: World) -> None:
        answered = post(
            world.lead, "members/invite", email=f"{factories.unique('x')}@example.org", role="developer", team="Platform"
        )
        assert answered.status_code == 403
        assert world.organization.members.count() == 5

    def test_an_owner_changes_role_and_team(self, world: World) -> None:
        answered = post(world.owner, f"members/{world.developer.uuid}/change", role="lead", team="Platform")
        assert answered.status_code == 302
        world.developer.refresh_from_db()
        assert (world.developer.role, world.developer.team) == ("lead", world.platform)
        last = post(world.owner, f"members/{world.owner.uuid}/change", role="developer", team="")
        assert last.status_code == 409
        assert "owner" in re.findall(r'<span class="error" id="role-error">([^<]+)', last.content.decode())[0]
        world.owner.refresh_from_db()
        assert world.owner.role == "owner"

    @pytest.mark.parametrize(("role", "team", "status"), [("lead", "Quality", 403), ("developer", "Platform", 403)])
    def test_a_lead_gives_no_role_and_no_other_team(self, world: World, role: str, team: str, status: int) -> None:
        assert post(world.lead, f"members/{world.developer.uuid}/change", role=role, team=team).status_code == status
        world.developer.refresh_from_db()
        assert (world.developer.role, world.developer.team) == ("developer", world.quality)

    def test_a_member_is_removed_by_typing_the_name(self, world: World) -> None:
        key = factories.api_key(world.developer)
        path = f"members/{world.developer.uuid}/remove"
        assert post(world.lead, path, confirm="somebody").status_code == 302
        world.developer.refresh_from_db()
        assert world.developer.removed_at is None
        answered = post(world.lead, path, confirm=str(world.developer))
        assert answered["location"] == made.path(world.lead, "members")
        world.developer.refresh_from_db()
        key.row.refresh_from_db()
        assert world.developer.removed_at is not None
        assert key.row.revoked_at is not None

    def test_a_lead_removes_no_other_lead_and_nobody_of_another_team(self, world: World) -> None:
        chief = factories.member(world.organization, role="lead", team=world.quality)
        assert post(world.lead, f"members/{chief.uuid}/remove", confirm=str(chief)).status_code == 302
        assert post(world.lead, f"members/{world.elsewhere.uuid}/remove", confirm=str(world.elsewhere)).status_code == 403
        for one in (chief, world.elsewhere):
            one.refresh_from_db()
            assert one.removed_at is None


def test_the_number_of_queries_does_not_grow_with_members_and_limits(world: World) -> None:
    world.set("100", of=world.developer)
    world.set("100", of="Quality")
    factories.api_key(world.developer)
    client = made.signed_in(world.owner)
    client.get(made.path(world.owner, "members"))
    with CaptureQueriesContext(connection) as few:
        client.get(made.path(world.owner, "members"))
    for number in range(8):
        member = factories.member(world.organization, team=factories.team(world.organization, f"Team {number}"))
        factories.api_key(member)
        world.set("50", of=member)
        world.set("70", of=f"Team {number}")
        limits.boost(world.set("5", of=member, window="week"), extra=1, until=utc_now() + timedelta(days=1), reason="", by=None)
    with CaptureQueriesContext(connection) as many:
        page = client.get(made.path(world.owner, "members")).content.decode()
    assert len(names(page)) == 13
    assert len(many) == len(few)


class TestMany:
    """One change for many: the door; what it does is `tests/quotas/test_bulk.py`."""

    def send(self, world: World, by: Member, of: list[Any], **data: str) -> Any:
        fields = {"member": [str(getattr(one, "uuid", one)) for one in of], **data}
        return made.signed_in(by).post(f"/o/{world.organization.slug}/members/bulk", fields)

    def test_a_limit_is_asked_for_previewed_and_set(self, world: World) -> None:
        people = [world.developer, world.owner]
        asked = self.send(world, world.owner, people, do="limit").content.decode()
        assert "2 members, in one step: all or nothing" in asked
        fields = {"do": "limit", "metric": "credits", "window": "7d", "amount": "1,250"}
        previewed = self.send(world, world.owner, people, step="preview", **fields).content.decode()
        assert previewed.count("<strong>1,250</strong>") == 2
        assert not Limit.objects.filter(organization=world.organization, window="7d").exists()
        done = self.send(world, world.owner, people, step="apply", **fields)
        assert done.status_code == 302
        assert set(Limit.objects.filter(organization=world.organization, window="7d").values_list("amount", flat=True)) == {
            1250 * made.CREDIT
        }

    def test_who_cannot_be_is_left_out_on_wish(self, world: World) -> None:
        team = factories.team(world.organization, "Night")
        fields = {"do": "move", "team": str(team.uuid)}
        page = self.send(world, world.owner, [world.developer, world.owner], step="apply", **fields)
        assert page.status_code == 409
        assert "Nothing was changed: 1 of 2 cannot be." in page.content.decode()
        page = self.send(world, world.owner, [world.developer, world.owner], step="trim", **fields).content.decode()
        assert "Change 1 member<" in page
        assert str(world.owner.uuid) not in page.split('id="many-form"')[1].split("</form>")[0]

    def test_a_removal_needs_its_number_typed(self, world: World) -> None:
        refused = self.send(world, world.owner, [world.developer], do="remove", step="apply", confirm="2")
        assert (refused.status_code, "Nobody was removed: the number typed was another one." in refused.content.decode()) == (
            422,
            True,
        )
        world.developer.refresh_from_db()
        assert world.developer.removed_at is None
        assert self.send(world, world.owner, [world.developer], do="remove", step="apply", confirm="1").status_code == 302
        world.developer.refresh_from_db()
        assert world.developer.removed_at is not None

    def test_a_foreign_member_a_missing_one_and_nonsense_are_one_answer(self, world: World) -> None:
        foreign = factories.member(factories.organization())
        for one in (foreign, "0b2f0a5e-5f3a-4f8c-9a9d-3f0d3c1f0f10", "nonsense"):
            assert self.send(world, world.owner, [world.developer, one], do="limit").status_code == 404
        assert self.send(world, world.owner, [world.developer], do="no-such").status_code == 404
        assert self.send(world, world.owner, [], do="limit").status_code == 422

    def test_nothing_is_undone_twice_or_by_another_id(self, world: World) -> None:
        client = made.signed_in(world.owner)
        url = f"/o/{world.organization.slug}/members"
        fields = {
            "member": [str(world.developer.uuid)],
            "do": "limit",
            "metric": "credits",
            "window": "7d",
            "amount": "5",
            "step": "apply",
        }
        client.post(f"{url}/bulk", fields)
        [offer] = re.findall(r'name="undo" value="([^"]+)"', client.get(url).content.decode())
        said = client.post(f"{url}/undo", {"undo": "another"}, follow=True).content.decode()
        assert "There is nothing to undo any more." in said
        assert "Undone: it is as it was before." in client.post(f"{url}/undo", {"undo": offer}, follow=True).content.decode()
        assert not Limit.objects.filter(organization=world.organization, window="7d").exists()
        assert "There is nothing to undo any more." in client.post(f"{url}/undo", {"undo": offer}, follow=True).content.decode()

    def test_the_list_is_narrowed_by_name_team_and_closeness(self, world: World) -> None:
        world.set("100", of=world.developer)
        assert world.developer.user is not None
        for query, expected in ((f"?q={world.developer.user.email[:12].upper()}", 1), ("?low=1", 0), ("?q=nobody-like-this", 0)):
            page = made.signed_in(world.owner).get(f"/o/{world.organization.slug}/members{query}").content.decode()
            assert len(names(page)) == expected, query
