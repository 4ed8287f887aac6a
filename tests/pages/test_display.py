"""How numbers, moments and durations are written: the rules of the pages, as tables."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.template import Context, Template
from django.utils import translation

from accounts import display
from accounts.models import Member, Organization

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 18, 13, 20, 0, tzinfo=UTC)
"""Wed 18 Nov, 14:20 in Berlin."""


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (None, "–"),
        (0, "0"),
        (1, "0.000001"),
        (4, "0.000004"),
        (465, "0.000465"),
        (2_742, "0.002742"),
        (2_700, "0.002700"),
        (9_999, "0.009999"),
        (10_000, "0.0100"),
        (65_500, "0.0655"),
        (65_549, "0.0655"),
        (65_550, "0.0656"),
        (999_949, "0.9999"),
        (999_950, "1.00"),
        (999_960, "1.00"),
        (1_000_000, "1.00"),
        (41_900_000, "41.90"),
        (41_895_000, "41.90"),
        (41_894_999, "41.89"),
        (99_994_999, "99.99"),
        (99_995_000, "100"),
        (99_996_000, "100"),
        (100_000_000, "100"),
        (100_500_000, "101"),
        (100_499_999, "100"),
        (999_500_000, "1,000"),
        (10_014_000_000, "10,014"),
        (1_000_000_000_000, "1,000,000"),
        (-4_210_000, "−4.21"),
        (-2_742, "−0.002742"),
        (-999_960, "−1.00"),
        (10**15, "1,000,000,000"),
    ],
)
def test_credits_are_rounded_by_their_size(micro: int | None, text: str) -> None:
    """D9: a small amount is shown in full, zero is `0`, nothing measured is `–`."""
    assert display.credits(micro) == text


@pytest.mark.parametrize("border", [10_000, 1_000_000, 100_000_000])
def test_every_amount_around_a_border_can_be_written(border: int) -> None:
    for micro in range(border - 6000, border + 6000):
        assert float(display.credits(micro).replace(",", "")) == pytest.approx(micro / 10**6, abs=0.5)


def test_exact_credits_have_six_decimals_set_back() -> None:
    assert display.exact(6_324_380) == ("6", ".324380")
    assert display.exact(-1_234_000_001) == ("−1,234", ".000001")
    template = Template("{% load weir %}{{ amount|exact }}")
    assert template.render(Context({"amount": 6_324_380})) == '6<span class="micro">.324380</span>'


@pytest.mark.parametrize(
    ("left", "limit", "percent"),
    [(62, 100, 62), (629, 1000, 62), (999_999, 1_000_000, 99), (1, 1000, 0), (0, 5, 0), (-4, 100, 0), (5, 0, 0), (120, 100, 100)],
)
def test_percent_left_is_rounded_down_and_never_below_zero(left: int, limit: int, percent: int) -> None:
    assert display.percent_left(left, limit) == percent


@pytest.mark.parametrize(
    ("left", "limit", "level"),
    [(201, 1000, ""), (200, 1000, "low"), (51, 1000, "low"), (50, 1000, "out"), (0, 1000, "out"), (-1, 1000, "out"), (0, 0, "out")],
)
def test_colours_compare_the_exact_value(left: int, limit: int, level: str) -> None:
    assert display.level(left, limit) == level


def test_a_share_is_truncated_to_a_tenth_and_bounded() -> None:
    assert [display.share(part, 1000) for part in (412, 999, 1, -5, 2000)] == ["41.2%", "99.9%", "0.1%", "0.0%", "100.0%"]
    assert display.share(1, 0) == "0%"


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(days=2, hours=4, minutes=59), "2 d 4 h"),
        (timedelta(days=12), "12 d"),
        (timedelta(hours=18, minutes=50), "18 h 50 min"),
        (timedelta(hours=5), "5 h"),
        (timedelta(minutes=48, seconds=30), "48 min"),
        (timedelta(seconds=22), "22 s"),
        (timedelta(0), "1 s"),
        (timedelta(seconds=-9), "1 s"),
        (0.4, "1 s"),
    ],
)
def test_durations_have_two_units(span: timedelta | float, text: str) -> None:
    assert display.duration(span) == text


@pytest.mark.parametrize(
    ("at", "short", "full", "clock"),
    [
        (datetime(2026, 11, 18, 13, 18, 27, tzinfo=UTC), "14:18", "Wed 18 Nov, 14:18", "14:18:27"),
        (datetime(2026, 11, 20, 17, 34, tzinfo=UTC), "Fri 18:34", "Fri 20 Nov, 18:34", "Fri 20 Nov, 18:34"),
        # 23:30 in UTC is the next day in Berlin.
        (datetime(2026, 11, 18, 23, 30, tzinfo=UTC), "Thu 00:30", "Thu 19 Nov, 00:30", "Thu 19 Nov, 00:30"),
        (datetime(2026, 11, 2, 8, 14, tzinfo=UTC), "Mon 2 Nov, 09:14", "Mon 2 Nov, 09:14", "Mon 2 Nov, 09:14"),
        (datetime(2027, 1, 1, 0, 0, tzinfo=UTC), "Fri 1 Jan 2027, 01:00", "Fri 1 Jan 2027, 01:00", "Fri 1 Jan 2027, 01:00"),
    ],
)
def test_moments_stand_in_the_organizations_zone(at: datetime, short: str, full: str, clock: str) -> None:
    assert display.moment(at, BERLIN, NOW) == short
    assert display.full_moment(at, BERLIN, NOW) == full
    assert display.clock(at, BERLIN, NOW) == clock


def test_a_time_element_holds_utc_for_machines() -> None:
    template = Template("{% load weir %}{% moment at %} {% countdown at %} {% day at %}")
    context = Context({"at": datetime(2026, 11, 18, 23, 30, tzinfo=UTC), "zone": BERLIN, "now": NOW})
    assert template.render(context) == '<time datetime="2026-11-18T23:30:00+00:00">Thu 00:30</time> 10 h 10 min Thu 19 Nov'


def test_a_month_and_a_day_stand_alone() -> None:
    today = date(2026, 11, 18)
    assert (display.month(today, today), display.month(date(2025, 12, 1), today)) == ("November", "December 2025")
    assert display.day_alone(date(2026, 11, 8)) == "08 Nov 2026"
    with translation.override("ru"):
        assert (display.month(today, today), display.day_alone(today)) == ("Ноябрь", "18 ноя 2026")
    with translation.override("vi"):
        assert (display.month(date(2025, 12, 1), today), display.day_alone(today)) == ("Tháng 12/2025", "18/11/2026")


def test_a_day_names_its_year_only_when_it_is_another() -> None:
    assert display.day(date(2026, 11, 1), date(2026, 11, 18)) == "Sun 1 Nov"
    assert display.day(date(2025, 12, 31), date(2026, 1, 1)) == "Wed 31 Dec 2025"


@pytest.mark.parametrize(
    ("name", "initials"),
    [("Tomasz Wrona", "TW"), ("tomasz.wrona@halden.example", "TW"), ("release-bot", "RB"), ("Inés", "I"), ("", "?")],
)
def test_initials(name: str, initials: str) -> None:
    assert display.initials(name) == initials
    member = Member(display_name=name or "?", organization=Organization())
    assert Template("{% load weir %}{{ member|initials }}").render(Context({"member": member})) == initials


NBSP = "\N{NO-BREAK SPACE}"


@pytest.mark.parametrize(
    ("language", "credits", "exact", "span", "seconds", "day", "other_year", "paper"),
    [
        ("en", ("10,014", "41.90", "0.002742"), ("−1,234", ".000001"), "2 d 4 h", "1,018.4 s",
         "Wed 18 Nov", "Sat 3 May 2025", "3 May 2026"),
        ("ru", (f"10{NBSP}014", "41,90", "0,002742"), (f"−1{NBSP}234", ",000001"), "2 д 4 ч", f"1{NBSP}018,4 с",
         "ср 18 ноя", "сб 3 мая 2025", "3 мая 2026"),
        ("vi", ("10.014", "41,90", "0,002742"), ("−1.234", ",000001"), "2 ngày 4 giờ", "1.018,4 giây",
         "T4 18/11", "T7 3/5/2025", "3 tháng 5, 2026"),
    ],
)  # fmt: skip
def test_each_language_has_its_marks_and_names(
    language: str, credits: tuple[str, ...], exact: tuple[str, str], span: str, seconds: str, day: str, other_year: str, paper: str
) -> None:
    today = date(2026, 11, 18)
    with translation.override(language):
        assert tuple(display.credits(micro) for micro in (10_014_000_000, 41_900_000, 2_742)) == credits
        assert display.exact(-1_234_000_001) == exact
        assert display.duration(timedelta(days=2, hours=4, minutes=9)) == span
        assert display.seconds(1_018_400) == seconds
        assert display.day(today, today) == day
        assert display.day(date(2025, 5, 3), today) == other_year
        assert display.long_day(date(2026, 5, 3)) == paper


@pytest.mark.parametrize(
    ("language", "amounts", "prices"),
    [
        ("en", ("12,345.67", "−1,000.00", "0.05", "999.99", "1,234,567.00", "–"), ("0.0125", "4.00", "1,250.00", "0.05", "–")),
        ("ru", (f"12{NBSP}345,67", f"−1{NBSP}000,00", "0,05", "999,99", f"1{NBSP}234{NBSP}567,00", "–"),
         ("0,0125", "4,00", f"1{NBSP}250,00", "0,05", "–")),
        ("vi", ("12.345,67", "−1.000,00", "0,05", "999,99", "1.234.567,00", "–"), ("0,0125", "4,00", "1.250,00", "0,05", "–")),
    ],
)  # fmt: skip
def test_money_is_set_apart_as_the_reader_writes_it(language: str, amounts: tuple[str, ...], prices: tuple[str, ...]) -> None:
    """The filters of the pages; the decimals of an amount stay, those of a price are as many as it needs."""
    template = Template("{% load weir %}{{ one|money }}")
    of_one = Template("{% load weir %}{{ one|price }}")
    with translation.override(language):
        texts = ("12345.67", "-1000.00", "0.05", "999.99", "1234567.00")
        assert tuple(template.render(Context({"one": Decimal(text)})) for text in texts) == amounts[:5]
        given = ("0.012500", "4.000000", "1250", "0.05")
        assert tuple(of_one.render(Context({"one": Decimal(text)})) for text in given) == prices[:4]
        assert (display.money(None), display.price(None)) == (amounts[5], prices[4])


def test_where_no_language_is_active_it_is_english() -> None:
    with translation.override(None):
        assert display.credits(10_014_500_000) == "10,015"
    with translation.override("fr"):
        assert display.duration(61) == "1 min"
