"""One change for many members: previewed as it would be, all or nothing, every refusal named, taken back where that is possible."""

from datetime import timedelta
from typing import Any

import pytest

from accounts.models import AuditEvent, Member
from config.clock import utc_now
from quotas import bulk, limits
from quotas.bulk import Kind, Wish
from quotas.errors import BulkRefused
from quotas.models import Limit, LimitBoost
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

CREDIT = 1_000_000


class World:
    def __init__(self) -> None:
        self.organization = factories.organization(plan="plus")
        self.owner = factories.member(self.organization, role="owner")
        self.team = factories.team(self.organization, "Quality")
        self.other = factories.team(self.organization, "Platform")
        self.lead = factories.member(self.organization, role="lead", team=self.team)
        self.ada = factories.member(self.organization, team=self.team)
        self.ben = factories.member(self.organization, team=self.team)
        self.eve = factories.member(self.organization, team=self.other)

    def limit(self, of: Member, amount: str, window: str = "7d") -> None:
        assert of.user is not None
        limits.set_limit(self.organization, scope="member", of=of.user.email, metric="credits", window=window, amount=amount)

    def amounts(self) -> dict[str, int]:
        rows = Limit.objects.filter(organization=self.organization, scope="member", window="7d")
        return {str(row.member): row.amount // CREDIT for row in rows.select_related("member__user")}

    def state(self) -> tuple[Any, ...]:
        """Everything that a bulk change can touch."""
        members = Member.objects.for_organization(self.organization).order_by("pk")
        return (
            self.amounts(),
            list(members.values_list("role", "team_id", "removed_at")),
            LimitBoost.objects.filter(organization=self.organization, revoked_at=None).count(),
            AuditEvent.objects.filter(organization=self.organization).count(),
        )


@pytest.fixture
def world() -> World:
    return World()


def set_to(amount: str) -> Wish:
    return Wish(Kind.LIMIT, metric="credits", window="7d", amount=amount)


def test_one_limit_for_all_and_back(world: World) -> None:
    world.limit(world.ada, "5")
    world.limit(world.ben, "20")
    before, now = world.state(), utc_now()
    lines = bulk.preview(world.owner, [world.ada, world.ben, world.eve], set_to("20"), now=now)
    assert [(line.before, line.after, line.is_same) for line in lines] == [
        ("5.00", "20.00", False),
        ("20.00", "20.00", True),
        ("no limit", "20.00", False),
    ]
    assert world.state() == before

    done = bulk.apply(world.owner, [world.ada, world.ben, world.eve], set_to("20"), now=now)
    assert done.changed == 2
    assert world.amounts() == {str(world.ada): 20, str(world.ben): 20, str(world.eve): 20}
    assert bulk.undo(world.owner, done.undo, now=now) == 2
    assert world.amounts() == {str(world.ada): 5, str(world.ben): 20}


def test_limits_that_were_lifted_come_back(world: World) -> None:
    world.limit(world.ada, "5")
    done = bulk.apply(world.owner, [world.ada, world.ben], set_to("none"), now=utc_now())
    assert world.amounts() == {}
    bulk.undo(world.owner, done.undo, now=utc_now())
    assert world.amounts() == {str(world.ada): 5}


def test_what_was_changed_again_since_is_not_undone(world: World) -> None:
    done = bulk.apply(world.owner, [world.ada, world.ben], set_to("20"), now=utc_now())
    world.limit(world.ben, "7")
    with pytest.raises(BulkRefused, match="changed again since then"):
        bulk.undo(world.owner, done.undo, now=utc_now())
    assert world.amounts() == {str(world.ada): 20, str(world.ben): 7}


def test_of_two_one_that_cannot_be_keeps_the_other_as_it_was(world: World) -> None:
    """All or nothing, and each refusal named: a lead's own scope binds, another team is not the lead's."""
    limits.set_limit(world.organization, scope="team", of="Quality", metric="credits", window="7d", amount="10")
    before = world.state()
    with pytest.raises(BulkRefused) as refused:
        bulk.apply(world.lead, [world.ada, world.eve], set_to("8"), now=utc_now())
    assert [line.refusal for line in refused.value.lines] == ["", "This is not yours to change."]
    assert refused.value.message == f"Nothing was changed: 1 of 2 cannot be. {world.eve}: This is not yours to change."
    with pytest.raises(BulkRefused) as above:
        bulk.apply(world.lead, [world.ada, world.ben], set_to("11"), now=utc_now())
    assert all("Leads do not go above the limit of their own scope" in line.refusal for line in above.value.lines)
    assert world.state() == before


def test_an_amount_that_is_none_is_refused_for_each(world: World) -> None:
    before = world.state()
    lines = bulk.preview(world.owner, [world.ada, world.ben], set_to("a few"), now=utc_now())
    assert ["'a few' is not a decimal number of credits" in line.refusal for line in lines] == [True, True]
    assert world.state() == before


def test_more_for_a_time_needs_the_limit_and_can_be_taken_back(world: World) -> None:
    world.limit(world.ada, "5")
    now = utc_now()
    wish = Wish(Kind.BOOST, metric="credits", window="7d", extra="2.5", until=now + timedelta(days=2), note="release")
    lines = bulk.preview(world.owner, [world.ada, world.ben], wish, now=now)
    assert (lines[0].after, lines[0].refusal) == ("5.00 + 2.50", "")
    assert lines[1].refusal == f"There is no such limit of {world.ben} to give more of."
    done = bulk.apply(world.owner, [world.ada], wish, now=now)
    [boost] = LimitBoost.objects.filter(organization=world.organization, revoked_at=None)
    assert (boost.extra, boost.reason) == (2_500_000, "release")
    bulk.undo(world.owner, done.undo, now=now)
    assert not LimitBoost.objects.filter(organization=world.organization, revoked_at=None).exists()


def test_members_move_together_and_back(world: World) -> None:
    now = utc_now()
    wish = Wish(Kind.MOVE, team=world.other)
    lines = bulk.preview(world.owner, [world.ada, world.eve, world.owner], wish, now=now)
    assert [(line.before, line.after, line.is_same) for line in lines[:2]] == [
        ("Quality", "Platform", False),
        ("Platform", "Platform", True),
    ]
    assert "An owner belongs to the whole organization" in lines[2].refusal
    done = bulk.apply(world.owner, [world.ada, world.eve], wish, now=now)
    world.ada.refresh_from_db()
    assert world.ada.team_id == world.other.pk
    bulk.undo(world.owner, done.undo, now=now)
    world.ada.refresh_from_db()
    assert world.ada.team_id == world.team.pk


def test_members_are_removed_together(world: World) -> None:
    key = factories.api_key(world.ada).row
    before, now = world.state(), utc_now()
    lines = bulk.preview(world.lead, [world.ada, world.lead], Wish(Kind.REMOVE), now=now)
    assert lines[0].after == "removed, one key ends"
    assert lines[1].refusal == "You are among them. Take yourself out of the choice."
    with pytest.raises(BulkRefused):
        bulk.apply(world.lead, [world.ada, world.lead], Wish(Kind.REMOVE), now=now)
    key.refresh_from_db()
    assert key.revoked_at is None
    assert world.state() == before
    done = bulk.apply(world.lead, [world.ada, world.ben], Wish(Kind.REMOVE), now=now)
    assert done.undo.steps == ()
    assert Member.objects.for_organization(world.organization).exclude(removed_at=None).count() == 2
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_nobody_and_too_many_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BulkRefused, match="Nobody is chosen"):
        bulk.preview(world.owner, [], set_to("5"), now=utc_now())
    monkeypatch.setattr(bulk, "MOST", 1)
    with pytest.raises(BulkRefused, match="At most 1 members are changed at once; 2 are chosen"):
        bulk.preview(world.owner, [world.ada, world.ben], set_to("5"), now=utc_now())
