"""Does a pool last: what is left against how fast it goes, over the resets that lie ahead."""

from datetime import UTC, date, datetime, timedelta

import pytest

from routing import outlook
from routing.carried import Carried
from routing.outlook import Rates, Week

NOW = datetime(2026, 11, 18, 14, 0, tzinfo=UTC)
HOUR = 3600.0


def week(label: str, left: float, size: float, hours: float | None) -> Week:
    return Week(label, left, size, None if hours is None else NOW + timedelta(hours=hours))


def rates(per_hour: float, lately: float | None = None) -> Rates:
    return Rates(per_hour / HOUR, (per_hour if lately is None else lately) / HOUR, 8)


def test_it_runs_out_before_the_next_reset() -> None:
    found = outlook.foresee([week("a", 100, 1500, 50)], rates(10), NOW)
    assert (found.verdict, found.is_before_next) == (outlook.RUNS_OUT, True)
    assert found.dry_from == found.dry_until == NOW + timedelta(hours=10)
    assert found.next == week("a", 100, 1500, 50)


def test_a_reset_brings_back_its_account_alone() -> None:
    # 200 last 20 hours; at 10 hours `a` has been used up and is full again: 100 + 50 more hours' worth.
    weeks = [week("a", 100, 500, 10), week("b", 100, 900, 9_000)]
    found = outlook.foresee(weeks, rates(10), NOW)
    assert found.verdict == outlook.RUNS_OUT
    assert found.dry_from == NOW + timedelta(hours=10 + (100 + 500) / 10)
    assert not found.is_before_next


def test_it_lasts_for_the_week_that_is_looked_at() -> None:
    found = outlook.foresee([week("a", 1500, 1500, 24), week("b", 400, 1500, 48)], rates(10), NOW)
    assert (found.verdict, found.dry_from, found.is_before_next) == (outlook.LASTS, None, False)


def test_what_has_nothing_to_bring_back_is_not_the_next() -> None:
    found = outlook.foresee([week("full", 1500, 1500, 2), week("used", 400, 1500, 48)], rates(1), NOW)
    assert found.next is not None
    assert found.next.label == "used"


def test_two_rates_make_a_range() -> None:
    found = outlook.foresee([week("a", 100, 1500, None)], rates(10, 5), NOW)
    assert (found.verdict, found.dry_from, found.dry_until) == (
        outlook.RUNS_OUT,
        NOW + timedelta(hours=10),
        NOW + timedelta(hours=20),
    )
    assert outlook.foresee([week("a", 100, 1500, None)], rates(10, 0.1), NOW).verdict == outlook.PROBABLY


def test_nobody_uses_it() -> None:
    assert outlook.foresee([week("a", 1, 1500, 2)], rates(0), NOW).verdict == outlook.LASTS


def test_an_empty_pool_is_dry_now() -> None:
    found = outlook.foresee([week("a", 0, 1500, 50)], rates(10), NOW)
    assert found.dry_from == NOW


@pytest.mark.parametrize(("hours", "within", "back"), [(20, 24, 1400.0), (30, 24, 0.0), (-1, 24, 0.0)])
def test_what_comes_back_in_a_time(hours: float, within: float, back: float) -> None:
    assert outlook.coming_back({1: week("a", 100, 1500, hours)}, NOW, timedelta(hours=within)) == back


def test_rates_are_of_these_accounts_over_the_days_and_lately() -> None:
    today = date(2026, 11, 18)
    days = {today - timedelta(days=back): 24_000_000 for back in range(8)}
    carried = Carried({}, {1: days, 2: {today: 10**9}}, datetime(2026, 11, 11, tzinfo=UTC), today)
    found = outlook.rates(carried, [1], NOW)
    # Eight days of 24 credits in 7 days and 14 hours; two of them since yesterday's midnight, 38 hours ago.
    assert found.of_week == pytest.approx(8 * 24 / (7 * 24 + 14) / HOUR)
    assert found.of_day == pytest.approx(2 * 24 / 38 / HOUR)
    assert (found.days, found.is_thin) == (8, False)


@pytest.mark.parametrize(("first", "is_thin"), [(3, True), (4, False)])
def test_under_five_days_of_use_are_thin(first: int, is_thin: bool) -> None:
    today = date(2026, 11, 18)
    carried = Carried({}, {1: {today - timedelta(days=first): 5}}, datetime(2026, 11, 11, tzinfo=UTC), today)
    assert outlook.rates(carried, [1], NOW).is_thin is is_thin
    assert outlook.rates(carried, [2], NOW).is_thin
