"""A member asks for more; a lead approves, which makes a boost, or denies; once, and never above the lead's own scope."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.core.management import CommandError, call_command
from django.db import connections

from accounts.models import AuditEvent, Member, Organization
from config.clock import utc_now
from quotas import limits, requests
from quotas.errors import AboveScope, AlreadyAsked, LimitsError, RequestDecided, RequestError
from quotas.models import Limit, LimitBoost, LimitRequest
from tests import factories

pytestmark = pytest.mark.django_db

CREDIT = 1_000_000


class World:
    """An organization with an owner, a lead of everybody, a Quality team with its lead and developer, and a developer elsewhere."""

    def __init__(self) -> None:
        self.organization = factories.organization(plan=None)
        self.owner = factories.member(self.organization, role="owner")
        self.chief = factories.member(self.organization, role="lead")
        self.team = factories.team(self.organization, "Quality")
        self.lead = factories.member(self.organization, role="lead", team=self.team)
        self.developer = factories.member(self.organization, team=self.team)
        self.elsewhere = factories.member(self.organization, team=factories.team(self.organization, "Platform"))

    def limit(self, scope: str, amount: str, *, of: Member | None = None, metric: str = "credits", window: str = "day") -> Limit:
        names = {"organization": None, "team": "Quality", "member": (of or self.developer).user.email}  # type: ignore[union-attr]
        made = limits.set_limit(
            self.organization, scope=scope, of=names[scope], metric=metric, window=window, amount=amount, by=None
        )
        return Limit.objects.get(uuid=made)

    def ask(self, limit: Limit, extra: str = "50", *, by: Member | None = None, days: float = 3, note: str = "") -> LimitRequest:
        member, now = by or self.developer, utc_now()
        return requests.ask(member, limit, extra=extra, until=now + timedelta(days=days), note=note, by=member.user, now=now)

    def version(self) -> int:
        return Organization.objects.get(pk=self.organization.pk).config_version

    def untouched(self, request: LimitRequest) -> bool:
        request.refresh_from_db()
        return request.status == "pending" and not LimitBoost.objects.filter(organization=self.organization).exists()


@pytest.fixture
def world() -> World:
    return World()


def test_approving_makes_one_boost_that_ends_by_itself(world: World) -> None:
    limit = world.limit("member", "100")
    request = world.ask(limit, "50.5", note="  the\nhandbook ")
    assert (request.status, request.asked_amount, request.note) == ("pending", 50_500_000, "the handbook")
    before, now = world.version(), utc_now()
    boost = requests.approve(request, decider=world.lead, note="go on", now=now)
    assert (boost.limit_id, boost.extra, boost.starts_at, boost.ends_at) == (limit.pk, 50_500_000, now, request.until)
    assert (boost.request_id, boost.granted_by) == (request.pk, world.lead.user)
    assert world.version() == before + 1
    request.refresh_from_db()
    assert (request.status, request.decided_by, request.decided_at) == ("approved", world.lead.user, now)
    assert request.decision_note == "go on"
    actions = AuditEvent.objects.filter(organization=world.organization, object_type__in=["limit_request", "limit"])
    assert list(actions.order_by("id").values_list("action", flat=True)) == [
        *("limit.set", "limit_request.made", "limit.boosted", "limit_request.approved"),
    ]
    limit.refresh_from_db()
    assert limit.amount == 100 * CREDIT


def test_denying_needs_a_word_that_the_member_reads(world: World) -> None:
    request = world.ask(world.limit("member", "100"))
    before = world.version()
    with pytest.raises(RequestError, match="Say why"):
        requests.deny(request, decider=world.lead, note="  ", now=utc_now())
    assert world.untouched(request)
    requests.deny(request, decider=world.lead, note="use the smaller model", now=utc_now())
    [shown] = requests.of_member(world.developer)
    assert (shown.status, shown.decision_note, shown.decided_by) == ("denied", "use the smaller model", world.lead.user)
    assert not LimitBoost.objects.filter(organization=world.organization).exists()
    assert world.version() == before


def test_one_request_waits_per_limit_and_a_withdrawn_one_makes_room(world: World) -> None:
    daily, weekly = world.limit("member", "100"), world.limit("member", "500", window="week")
    first = world.ask(daily)
    with pytest.raises(AlreadyAsked):
        world.ask(daily, "60")
    world.ask(weekly)
    assert LimitRequest.objects.filter(member=world.developer).count() == 2
    requests.withdraw(first, by=world.developer.user, now=utc_now())
    world.ask(daily, "60")
    assert [row.status for row in requests.of_member(world.developer)] == ["pending", "pending", "withdrawn"]


@pytest.mark.parametrize("decide", ["approve", "deny", "withdraw"])
@pytest.mark.parametrize("first", ["approve", "deny", "withdraw"])
def test_what_is_decided_stays_decided(world: World, first: str, decide: str) -> None:
    request = world.ask(world.limit("member", "100"))

    def do(what: str) -> Any:
        if what == "withdraw":
            return requests.withdraw(request, by=world.developer.user, now=utc_now())
        return getattr(requests, what)(request, decider=world.lead, note="x", now=utc_now())

    do(first)
    boosts = LimitBoost.objects.filter(organization=world.organization).count()
    with pytest.raises(RequestDecided):
        do(decide)
    request.refresh_from_db()
    assert request.status == {"approve": "approved", "deny": "denied", "withdraw": "withdrawn"}[first]
    assert LimitBoost.objects.filter(organization=world.organization).count() == boosts == (first == "approve")


@pytest.mark.parametrize("who", ["developer", "elsewhere", "finance"])
def test_who_sets_no_limits_decides_nothing(world: World, who: str) -> None:
    """A developer cannot approve their own request, nor anybody else's."""
    request = world.ask(world.limit("member", "100"))
    decider = factories.member(world.organization, role="finance") if who == "finance" else getattr(world, who)
    for decide in (requests.approve, requests.deny):
        with pytest.raises(PermissionDenied):
            decide(request, decider=decider, note="x", now=utc_now())
    assert world.untouched(request)


def test_a_lead_decides_for_their_own_team_and_not_for_themselves(world: World) -> None:
    other = world.ask(world.limit("member", "100", of=world.elsewhere), by=world.elsewhere)
    own = world.ask(world.limit("member", "100", of=world.lead), by=world.lead)
    for request in (other, own):
        with pytest.raises(PermissionDenied):
            requests.approve(request, decider=world.lead, now=utc_now())
        assert world.untouched(request)
    requests.approve(other, decider=world.chief, now=utc_now())
    requests.approve(own, decider=world.owner, now=utc_now())
    assert LimitBoost.objects.filter(organization=world.organization).count() == 2


def test_the_organizations_limit_is_not_a_team_leads_to_raise(world: World) -> None:
    request = world.ask(world.limit("organization", "1000"))
    with pytest.raises(PermissionDenied):
        requests.approve(request, decider=world.lead, now=utc_now())
    assert world.untouched(request)


@pytest.mark.parametrize(
    ("bound", "extra", "is_refused"), [("150", "50", False), ("149.999999", "50", True), ("150", "50.000001", True)]
)
def test_never_above_the_approvers_own_scope(world: World, bound: str, extra: str, is_refused: bool) -> None:
    """A limit of 100 and more of it, against what the approver's team may use in the same time."""
    limit = world.limit("member", "100")
    world.limit("team", bound)
    # Of another metric or window: not compared.
    world.limit("team", "1", window="week")
    world.limit("team", "1", metric="tokens")
    request = world.ask(limit, extra)
    if not is_refused:
        assert requests.approve(request, decider=world.lead, now=utc_now()).extra == 50 * CREDIT
        return
    before = world.version()
    with pytest.raises(AboveScope, match="the Quality team may use") as refused:
        requests.approve(request, decider=world.lead, now=utc_now())
    assert refused.value.status == 403
    assert world.untouched(request)
    assert world.version() == before
    requests.approve(request, decider=world.owner, now=utc_now())


def test_boosts_that_hold_already_count_towards_the_scope(world: World) -> None:
    limit = world.limit("member", "100")
    world.limit("team", "180")
    requests.approve(world.ask(limit, "50"), decider=world.lead, now=utc_now())
    request = world.ask(limit, "50")
    with pytest.raises(AboveScope):
        requests.approve(request, decider=world.lead, now=utc_now())
    limits.end_boost(LimitBoost.objects.get(limit=limit), by=world.owner.user, now=utc_now())
    requests.approve(request, decider=world.lead, now=utc_now())


@pytest.mark.parametrize("own", ["team", "organization"])
def test_a_lead_may_tighten_the_limit_of_their_own_scope_and_not_loosen_it(world: World, own: str) -> None:
    setter = world.lead if own == "team" else world.chief
    limit = world.limit(own, "100")
    for amount in ("100.000001", "none"):
        with pytest.raises(AboveScope):
            limits.change(limit, amount, by=setter.user, setter=setter)
    until = utc_now() + timedelta(days=1)
    with pytest.raises(AboveScope):
        limits.boost(limit, extra=1, until=until, reason="", by=setter.user, setter=setter)
    limit.refresh_from_db()
    assert limit.amount == 100 * CREDIT
    limits.change(limit, "99", by=setter.user, setter=setter)
    limit.refresh_from_db()
    assert limit.amount == 99 * CREDIT
    limits.change(limit, "none", by=world.owner.user, setter=world.owner)
    assert not Limit.objects.filter(pk=limit.pk).exists()


def test_a_lead_may_lift_a_members_limit_because_the_scopes_still_holds(world: World) -> None:
    limit = world.limit("member", "100")
    world.limit("team", "100")
    assert limits.change(limit, "none", by=world.lead.user, setter=world.lead) == limit.uuid
    assert Limit.objects.filter(organization=world.organization).count() == 1


@pytest.mark.parametrize(
    ("metric", "window", "extra"),
    [("credits", "day", text) for text in ("", "0", "-5", "1e3", "0.0000001", "many", "99999999999999999999")]
    + [("tokens", "day", text) for text in ("", "0", "-1", "1.5", "9007199254740993")]
    + [("concurrent", "", "half")],
)
def test_an_amount_that_cannot_be_is_refused_beside_its_field(world: World, metric: str, window: str, extra: str) -> None:
    limit = world.limit("member", "100", metric=metric, window=window)
    with pytest.raises(RequestError) as refused:
        world.ask(limit, extra)
    assert refused.value.facts["field"] == "extra"
    assert not LimitRequest.objects.filter(organization=world.organization).exists()


@pytest.mark.parametrize("days", [-1, 0, requests.MOST_DAYS + 0.01])
def test_a_time_that_cannot_be_is_refused_beside_its_field(world: World, days: float) -> None:
    limit, now = world.limit("member", "100"), utc_now()
    with pytest.raises(RequestError) as refused:
        requests.ask(world.developer, limit, extra="5", until=now + timedelta(days=days), by=None, now=now)
    assert refused.value.facts["field"] == "until"
    with pytest.raises(RequestError, match="401 characters"):
        world.ask(limit, note="x" * 401)
    assert not LimitRequest.objects.filter(organization=world.organization).exists()


def test_only_limits_that_hold_the_member_can_be_asked_for(world: World) -> None:
    other_team = limits.set_limit(
        world.organization, scope="team", of="Platform", metric="credits", window="day", amount="9", by=None
    )
    foreign = World().limit("organization", "7")
    mine = [world.limit("organization", "7"), world.limit("team", "8"), world.limit("member", "9")]
    for limit in (Limit.objects.get(uuid=other_team), world.limit("member", "9", of=world.elsewhere), foreign):
        with pytest.raises(RequestError, match="does not hold you"):
            world.ask(limit)
    assert list(requests.askable(world.developer).order_by("pk")) == mine


def test_what_can_no_longer_be_given_is_said(world: World) -> None:
    gone, late = world.limit("member", "100"), world.limit("member", "500", window="week")
    first, second = world.ask(gone), world.ask(late, days=1)
    limits.change(gone, "none", by=None)
    with pytest.raises(RequestError, match="not there any more"):
        requests.approve(LimitRequest.objects.get(pk=first.pk), decider=world.lead, now=utc_now())
    with pytest.raises(RequestError, match="has passed"):
        requests.approve(second, decider=world.lead, now=utc_now() + timedelta(days=1))
    assert world.untouched(first)
    assert world.untouched(second)


def test_who_waits_for_whom(world: World) -> None:
    mine = world.ask(world.limit("member", "100"))
    theirs = world.ask(world.limit("member", "100", of=world.elsewhere), by=world.elsewhere)
    assert list(requests.waiting_for(world.lead)) == [mine]
    assert list(requests.waiting_for(world.chief)) == list(requests.waiting_for(world.owner)) == [mine, theirs]
    assert list(requests.waiting_for(world.developer)) == []
    requests.deny(mine, decider=world.chief, note="no", now=utc_now())
    assert list(requests.waiting_for(world.lead)) == []


class TestBoosting:
    def test_boosts_add_up_to_what_can_be_counted_and_no_further(self, world: World) -> None:
        limit, until = world.limit("member", "100"), utc_now() + timedelta(days=1)
        limits.boost(limit, extra=5, until=until, reason="", by=None)
        before = world.version()
        for extra in (0, -1, limits.MOST):
            with pytest.raises(LimitsError):
                limits.boost(limit, extra=extra, until=until, reason="", by=None)
        with pytest.raises(LimitsError):
            limits.boost(limit, extra=5, until=utc_now(), reason="", by=None)
        assert LimitBoost.objects.filter(limit=limit).count() == 1
        assert world.version() == before

    def test_the_command_gives_more_for_a_time(self, world: World, capsys: Any) -> None:
        limit = world.limit("member", "100")
        call_command("boost_limit", str(limit.uuid), "--extra", "12.5", "--days", "2", "--reason", "release", "--json")
        boost = LimitBoost.objects.get(limit=limit)
        assert str(boost.uuid) in capsys.readouterr().out
        assert (boost.extra, boost.reason, boost.granted_by) == (12_500_000, "release", None)
        assert timedelta(days=2) - timedelta(minutes=1) < boost.ends_at - utc_now() <= timedelta(days=2)

    @pytest.mark.parametrize(
        "arguments", [["--extra", "x", "--days", "1"], ["--extra", "1", "--until", "soon"], ["--extra", "1", "--days", "0"]]
    )
    def test_the_command_says_what_is_wrong(self, world: World, arguments: list[str]) -> None:
        limit = world.limit("member", "100")
        with pytest.raises(CommandError):
            call_command("boost_limit", str(limit.uuid), *arguments)
        with pytest.raises(CommandError, match="There is no limit"):
            call_command("boost_limit", str(world.organization.uuid), "--extra", "1", "--days", "1")
        assert not LimitBoost.objects.filter(organization=world.organization).exists()


@pytest.mark.django_db(transaction=True)
def test_two_who_approve_at_once_make_one_boost() -> None:
    world = World()
    request = world.ask(world.limit("member", "100"))
    start = threading.Barrier(6)
    came: list[str] = []

    def decide(decider: Member) -> None:
        try:
            start.wait()
            requests.approve(request, decider=decider, now=utc_now())
            came.append("approved")
        except RequestDecided:
            came.append("decided")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=decide, args=[one]) for one in (world.lead, world.chief, world.owner) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came) == ["approved"] + ["decided"] * 5
    assert LimitBoost.objects.filter(organization=world.organization).count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_requests_for_one_limit_at_once_are_one() -> None:
    world = World()
    limit = world.limit("member", "100")
    start = threading.Barrier(5)
    came: list[str] = []

    def ask() -> None:
        try:
            start.wait()
            world.ask(limit)
            came.append("asked")
        except AlreadyAsked:
            came.append("already")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came) == ["already"] * 4 + ["asked"]
    assert LimitRequest.objects.filter(organization=world.organization, status="pending").count() == 1
