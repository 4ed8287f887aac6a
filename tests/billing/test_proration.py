"""Shares of quota and price by calendar days: pure arithmetic."""

from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import proration
from billing.proration import Segment, Terms

CREDIT = 1_000_000
FIRST = date(2026, 3, 1)


def segment(day: date = FIRST, quota: int = 100 * CREDIT, price: str | None = "31.00", plan: str = "small") -> Segment:
    return Segment(day, plan, plan.title(), quota, None if price is None else Decimal(price), Decimal("0.01"), "EUR")


def march(*segments: Segment, **fields: object) -> Terms:
    return Terms(FIRST, 31, segments or (segment(),), **fields)  # type: ignore[arg-type]


def test_a_period_without_a_change_is_the_plan_in_full() -> None:
    terms = march()
    assert (terms.entitlement, terms.price()) == (100 * CREDIT, Decimal("31.00"))
    assert [(line.days, line.of_days) for line in terms.prices()] == [(31, 31)]


def test_each_day_counts_for_the_plan_that_held_on_it() -> None:
    """E15: the 16th to the 31st are 16 of 31 days, though one of them has 23 hours in Paris."""
    terms = march().changed(segment(date(2026, 3, 16), 410 * CREDIT, "62.00", "large"))
    assert [(part.plan, days) for part, days in terms.spans()] == [("small", 15), ("large", 16)]
    assert terms.entitlement == (100 * CREDIT * 15 + 410 * CREDIT * 16) // 31 == 260_000_000
    assert [line.amount for line in terms.prices()] == [Decimal("15.00"), Decimal("32.00")]
    assert terms.left_on(date(2026, 3, 16)) == 16


def test_of_two_changes_on_one_day_the_later_holds() -> None:
    first = march().changed(segment(date(2026, 3, 10), 999 * CREDIT, "999", "wrong"))
    second = first.changed(segment(date(2026, 3, 10), 50 * CREDIT, "1", "right"))
    assert [part.plan for part, _ in second.spans()] == ["small", "right"]


def test_a_change_on_the_first_day_leaves_nothing_of_the_old_plan() -> None:
    terms = march().changed(segment(FIRST, 7, None, "free"))
    assert (terms.entitlement, terms.price()) == (7, Decimal("0.00"))


def test_credits_are_rounded_once_half_up() -> None:
    """D3: 1 on 15 days and 0 on 16 days of 31 is 0; on 16 days it is 1. The halves of two days go up."""
    assert march(segment(quota=1), segment(date(2026, 3, 16), quota=0)).entitlement == 0
    assert march(segment(quota=1), segment(date(2026, 3, 17), quota=0)).entitlement == 1
    assert Terms(FIRST, 2, (segment(quota=1), segment(FIRST + timedelta(days=1), quota=0))).entitlement == 1


def test_money_is_rounded_once_per_line_half_up() -> None:
    assert proration.money(Decimal("0.125")) == Decimal("0.13")
    assert proration.money(Decimal("-0.125")) == Decimal("-0.13")
    assert march(segment(price="0.10"), segment(date(2026, 3, 16), price="0.10")).prices()[0].amount == Decimal("0.05")


def test_what_is_carried_over_counts_and_is_never_more_than_everything() -> None:
    assert march(carried=30 * CREDIT).entitlement == 70 * CREDIT
    beyond = march(carried=130 * CREDIT)
    assert (beyond.entitlement, beyond.quota(0), beyond.quota(5)) == (-30 * CREDIT, 0, 5)


def test_an_early_end_pays_for_the_days_before_it() -> None:
    assert march().ended(date(2026, 3, 11)).price() == Decimal("10.00")
    assert march().ended(FIRST).price() == Decimal("0.00")


days = st.integers(0, 30).map(lambda number: FIRST + timedelta(days=number))
changes = st.lists(st.tuples(days, st.integers(0, 10**12)), max_size=6)


@given(changes=changes)
def test_days_always_sum_to_the_period_and_no_order_of_plans_grants_more_than_the_largest(changes: list[tuple[date, int]]) -> None:
    terms = march()
    for day, quota in sorted(changes):
        terms = terms.changed(segment(day, quota))
    assert sum(number for _, number in terms.spans()) == 31
    quotas = [part.quota for part in terms.segments]
    assert min(quotas) <= terms.entitlement <= max(quotas)
    assert proration.from_json(proration.to_json(terms)) == terms


@given(day=days, small=st.integers(0, 10**9), large=st.integers(0, 10**9), times=st.integers(1, 5))
def test_going_there_and_back_on_one_day_changes_nothing(day: date, small: int, large: int, times: int) -> None:
    start = march(segment(quota=small))
    terms = start
    for _ in range(times):
        terms = terms.changed(segment(day, large)).changed(segment(day, small))
    assert terms.entitlement == start.entitlement


def test_what_it_costs_without_a_price_is_nothing_and_no_line() -> None:
    """Missing is not zero: without a price there is no line, with the price 0 there is one."""
    assert march(segment(price=None)).prices() == []
    assert [line.amount for line in march(segment(price="0")).prices()] == [Decimal("0.00")]


@pytest.mark.parametrize("day", [date(2026, 2, 1), date(2026, 4, 30)])
def test_a_change_outside_the_period_counts_from_its_edge(day: date) -> None:
    terms = march().changed(segment(day, 200 * CREDIT))
    assert sum(number for _, number in terms.spans()) == 31
