"""The burn of a quota: cumulative by the organization's days, an even pace, and a range from the last days' quartiles."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from accounts.models import Organization
from billing import periods
from config.clock import utc_now
from quotas import burn, forecast, remaining
from quotas.standing import PlanState
from tests import factories
from tests.pages import made

pytestmark = pytest.mark.django_db
CREDIT = made.CREDIT
ZONE = ZoneInfo("Europe/Berlin")


class World:
    """Noon of the eighth day of a period of fourteen; 1 to 7 credits on the days before, 10 today, quota 140."""

    def __init__(self) -> None:
        self.organization: Organization = factories.organization(timezone="Europe/Berlin")
        self.key = factories.api_key(factories.member(self.organization)).row
        self.today = utc_now().astimezone(ZONE).date()
        self.first = self.today - timedelta(days=7)
        self.now = self.at(0) + timedelta(hours=12)
        plan = remaining.of_organization(self.organization, now=utc_now()).plan
        self.plan: PlanState = dataclasses.replace(
            plan,
            starts_at=int(self.at(-7).timestamp()),
            ends_at=int(self.at(7).timestamp()),
            quota=140 * CREDIT,
            used=38 * CREDIT,
        )

    def at(self, days: int) -> datetime:
        return periods.day_start(self.today + timedelta(days=days), ZONE)

    def use(self, *, days: int = 7) -> None:
        for number in range(1, days + 1):
            made.used(self.key, (8 - number) * CREDIT, at=self.at(-number) + timedelta(minutes=30))
        made.used(self.key, 10 * CREDIT, at=self.at(0) + timedelta(hours=9))

    def burn(self, **fields: Any) -> burn.Burn:
        found = burn.of(self.organization, dataclasses.replace(self.plan, **fields), seat_member_id=None, now=self.now)
        assert found is not None
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_days_add_up_and_the_rest_is_a_range(world: World) -> None:
    world.use()
    found = world.burn()
    assert [point.used for point in found.points[:9]] == [amount * CREDIT for amount in (0, 1, 3, 6, 10, 15, 21, 28, 38)]
    assert [point.day for point in found.days] == [world.first + timedelta(days=number) for number in range(14)]
    assert found.points[8].at == world.now
    assert (found.points[8].low, found.points[8].high) == (38 * CREDIT, 38 * CREDIT)
    assert all(point.used is None for point in found.points[9:])
    # The quartiles of 1 to 7 are 2 and 6 a day; six days and a half are left.
    seconds = int((world.at(7) - world.now).total_seconds())
    assert (found.low, found.high) == (38 * CREDIT + 2 * CREDIT * seconds // 86400, 38 * CREDIT + 6 * CREDIT * seconds // 86400)
    assert found.outlook.verdict == forecast.LASTS
    assert found.used == 38 * CREDIT


def test_the_pace_is_even_from_nothing_to_the_quota(world: World) -> None:
    found = world.burn()
    paces = [point.pace for point in found.points]
    assert (paces[0], paces[-1]) == (0, 140 * CREDIT)
    assert paces == sorted(paces)
    span, gone = world.plan.ends_at - world.plan.starts_at, int(world.now.timestamp()) - world.plan.starts_at
    assert found.points[8].pace == 140 * CREDIT * gone // span


def test_with_few_days_of_use_nothing_is_projected(world: World) -> None:
    world.use(days=forecast.FEWEST_DAYS - 1)
    found = world.burn()
    assert found.range_text == ""
    assert found.outlook.verdict == forecast.TOO_EARLY
    assert {(point.low, point.high) for point in found.points} == {(None, None)}
    assert found.used == (7 + 6 + 5 + 4 + 10) * CREDIT


def test_when_it_runs_out_is_told_as_a_moment(world: World) -> None:
    world.use()
    found = world.burn(quota=46 * CREDIT)
    assert found.outlook.verdict == forecast.RUNS_OUT
    # The mean of 1 to 7 is 4 a day, and 8 are left.
    assert found.around == world.now + timedelta(days=2)
    assert found.soonest is not None
    assert found.soonest < found.around


def test_a_seats_burn_is_its_members_and_the_organizations_is_the_others(world: World) -> None:
    world.use()
    seated = factories.member(world.organization)
    factories.subscription(world.organization, plan="pro", member=seated)
    made.used(factories.api_key(seated).row, 100 * CREDIT, at=world.at(-1) + timedelta(hours=1))
    assert world.burn().used == 38 * CREDIT
    own = burn.of(world.organization, world.plan, seat_member_id=seated.pk, now=world.now)
    assert own is not None
    assert own.used == 100 * CREDIT


def test_what_is_drawn_is_the_organizations_clock(world: World) -> None:
    world.use()
    found = world.burn()
    drawn = burn.chart(found, ZONE)
    start = datetime(world.first.year, world.first.month, world.first.day, tzinfo=UTC)
    assert drawn["x"][0] == int(start.timestamp())
    assert drawn["x"][8] == int((start + timedelta(days=7, hours=12)).timestamp())
    assert drawn["x"] == sorted(drawn["x"])
    assert drawn["used"][:9] == [0, 1, 3, 6, 10, 15, 21, 28, 38]
    assert drawn["used"][9:] == [None] * 6
    assert drawn["low"][:8] == [None] * 8
    assert drawn["quota"] == 140


def test_outside_the_period_there_is_no_chart(world: World) -> None:
    for now in (world.at(-8), world.at(7)):
        assert burn.of(world.organization, world.plan, seat_member_id=None, now=now) is None
    endless = dataclasses.replace(world.plan, ends_at=world.plan.starts_at + 41 * 86400)
    assert burn.of(world.organization, endless, seat_member_id=None, now=world.now) is None


@pytest.mark.parametrize(
    ("micro", "text"),
    [(9_999_000_000, "9,999"), (10_000_000_000, "10 k"), (262_725_300_000, "263 k"), (290_499_999_999, "290 k"), (5, "0.000005")],
)
def test_ranges_are_in_thousands(micro: int, text: str) -> None:
    assert burn.rounded(micro) == text
