"""Rate card files and their import."""

import json
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing import cardfile, ratecards
from billing.errors import RateCardRefused
from billing.models import Rate, RateCard
from tests import factories

pytestmark = pytest.mark.django_db


def day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def entry(model: str, *, start: str | None = None, end: str | None = None, price: str | None = "60", **more: Any) -> dict[str, Any]:
    output = None if price is None else "300"
    cached = None if price is None else "6"
    return {
        "model": model,
        "effective_from": start,
        "effective_to": end,
        "credits_per_million": {"input": price, "cached_input": cached, "output": output},
        **more,
    }


def fast(model: str, multiplier: str, *, start: str | None = None, end: str | None = None) -> dict[str, Any]:
    return {"model": model, "multiplier": multiplier, "effective_from": start, "effective_to": end}


def content(rates: list[dict[str, Any]], multipliers: list[dict[str, Any]] | None = None, **more: Any) -> bytes:
    card = {"schema": "ratecard-facts/1", "unit": "credits per 1,000,000 tokens, decimal strings; null = no rate found"}
    return json.dumps({**card, "rates": rates, "fast_multiplier": multipliers or [], **more}).encode()


def read(rates: list[dict[str, Any]], multipliers: list[dict[str, Any]] | None = None) -> cardfile.Card:
    return cardfile.read(content(rates, multipliers), name="test.json")


def rows(model: str) -> list[tuple[datetime, datetime | None, int | None, int]]:
    return list(
        Rate.objects.filter(model=model).order_by("valid_from").values_list("valid_from", "valid_to", "input", "fast_thousandths")
    )


# ------------------------------------------------------------------------------------------------------ the packaged card


def test_a_new_install_prices_with_the_packaged_card() -> None:
    card = cardfile.read(ratecards.PACKAGED.read_bytes(), name=ratecards.PACKAGED.name)
    stored = {(rate.model, rate.valid_from): rate for rate in Rate.objects.filter(card__sha256=card.sha256)}
    assert len(card.rates) == len(stored) == 20
    mini = stored["gpt-5.4-mini", day("2026-04-02")]
    assert (mini.input, mini.cached_input, mini.cache_write, mini.output) == (18_750_000, 1_875_000, None, 113_000_000)
    assert "S10" in mini.source["sources"]
    assert RateCard.objects.get(sha256=card.sha256).sources["S1"].startswith("OpenAI Help Center")


def test_null_dates_mean_the_day_tokens_were_charged_from_and_null_rates_stay_unpriced() -> None:
    assert rows("gpt-5.5") == [(day("2026-04-02"), None, 125_000_000, 2500)]
    assert rows("gpt-5.3-codex-spark") == [(day("2026-04-02"), None, None, 2000)]


def test_patterns_and_lists_of_multipliers_are_expanded_and_the_most_specific_wins() -> None:
    assert rows("gpt-5.6-sol") == [
        (day("2026-07-09"), day("2026-08-21"), 125_000_000, 2500),
        (day("2026-08-21"), None, 100_000_000, 2500),
    ]
    assert [
        rows(model)[0][3] for model in ("gpt-5.4", "gpt-5.4-mini", "gpt-6-sol", "gpt-6-luna", "gpt-6.1-sol", "gpt-6-astra")
    ] == [
        2000,
        2000,
        2500,
        2500,
        2000,
        2000,
    ]


def test_the_command_finds_nothing_new_in_it_and_says_what_is_unpriced_and_skipped() -> None:
    out = StringIO()
    call_command("import_ratecard", str(ratecards.PACKAGED), "--json", stdout=out)
    answer = json.loads(out.getvalue())
    assert (answer["added"], answer["unchanged"], answer["unpriced"]) == (0, 20, ["gpt-5.3-codex-spark"])
    assert [notice.split(" ")[0] for notice in answer["notices"]] == ["gpt-image-2:image", "gpt-image-2:text"]
    assert not Rate.objects.filter(model__startswith="gpt-image").exists()


# ------------------------------------------------------------------------------------------------------------- the file


def test_lists_are_split() -> None:
    card = read([entry("a-1, a-2")], [fast("a-1, b", "1.333")])
    assert [(rate.model, rate.fast_thousandths) for rate in card.rates] == [("a-1", 1333), ("a-2", 1000)]
    assert card.notices == ("The fast multiplier of b fits no model of the card.",)


def test_the_longest_beginning_wins_over_shorter_ones_and_a_whole_name_over_all() -> None:
    card = read([entry("a-b-c, a-b, a-x, z")], [fast("*", "1.5"), fast("a-b-*", "3"), fast("a-*", "2"), fast("a-b", "4")])
    assert {rate.model: rate.fast_thousandths for rate in card.rates} == {"a-b-c": 3000, "a-b": 4000, "a-x": 2000, "z": 1500}


def test_a_row_is_cut_where_a_dated_multiplier_takes_over() -> None:
    multipliers = [fast("*", "2"), fast("a", "3", start="2026-06-01", end="2026-07-01")]
    card = read([entry("a, b")], multipliers)
    assert [(rate.model, rate.valid_from, rate.valid_to, rate.fast_thousandths) for rate in card.rates] == [
        ("a", day("2026-04-02"), day("2026-06-01"), 2000),
        ("a", day("2026-06-01"), day("2026-07-01"), 3000),
        ("a", day("2026-07-01"), None, 2000),
        ("b", day("2026-04-02"), None, 2000),
    ]


def test_a_multiplier_that_has_not_begun_does_not_hold() -> None:
    card = read([entry("a")], [fast("*", "2", start="2026-05-01")])
    assert [(rate.valid_from, rate.fast_thousandths) for rate in card.rates] == [
        (day("2026-04-02"), 1000),
        (day("2026-05-01"), 2000),
    ]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"not json", "is not a rate card"),
        (b"\xff\xfe", "is not a rate card"),
        (b"[]", "is not a rate card"),
        (json.dumps({"schema": "x", "unit": "credits per 1,000,000 tokens", "rates": []}).encode(), "schema 'x'"),
        (json.dumps({"schema": "ratecard-facts/1", "unit": "USD", "rates": []}).encode(), "unit 'USD'"),
        (content([entry("a", price="1e3")]), "not a decimal number"),
        (content([entry("a", price="0.0000001")]), "more than 6 decimal places"),
        (content([entry("a", price="-1")]), "is negative"),
        (content([{"model": "a", "credits_per_million": {"input": 12.5, "cached_input": "1", "output": "1"}}]), r"rates\[0\]"),
        (content([{"model": "a", "credits_per_million": {"input": "1", "cached_input": None, "output": "1"}}]), "all together"),
        (content([{"model": "a"}]), "credits_per_million"),
        (content([entry("a-*")]), "is a pattern"),
        (content([entry("a b")]), "not a model name"),
        (content([entry("a,")]), "not a model name"),
        (content([entry("a", start="soon")]), "'soon' is not a date"),
        (content([entry("a", start="2026-05-01T00:00:00")]), "has no zone"),
        (content([entry("a", start="2026-05-01", end="2026-05-01")]), "not after its start"),
        (content([entry("a"), entry("a")]), "two rates"),
        (content([entry("a", end="2026-06-01"), entry("a", start="2026-05-01")]), "still holds"),
        (content([entry("a")], [fast("a", "two")]), "multiplier 'two'"),
    ],
)
def test_a_wrong_file_says_what_is_wrong_and_imports_nothing(bad: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(bad)
    before = Rate.objects.count()
    with pytest.raises(CommandError, match=says):
        call_command("import_ratecard", str(file))
    assert Rate.objects.count() == before


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read: No such file"):
        call_command("import_ratecard", str(tmp_path / "none.json"))


# ----------------------------------------------------------------------------------------------------------- the import


def test_an_import_adds_its_rows_once() -> None:
    card = read([entry("new-1"), entry("new-2", price=None)])
    first, second = ratecards.import_card(card), ratecards.import_card(card)
    assert (first.added, first.unchanged, first.unpriced) == (2, 0, ("new-2",))
    assert (second.added, second.unchanged, second.closed) == (0, 2, 0)
    assert RateCard.objects.filter(sha256=card.sha256).count() == 1


def test_a_dry_run_says_the_same_and_changes_nothing() -> None:
    organization = factories.organization(plan=None)
    imported = ratecards.import_card(read([entry("new-1")]), dry_run=True)
    assert imported.added == 1
    assert rows("new-1") == []
    version = organization.config_version
    organization.refresh_from_db()
    assert organization.config_version == version


def test_an_import_is_heard_of_by_every_organization_and_one_without_news_by_none() -> None:
    organizations = [factories.organization(plan=None) for _ in range(2)]
    before = [organization.config_version for organization in organizations]
    card = read([entry("new-1")])
    for _ in range(2):
        ratecards.import_card(card)
        for organization in organizations:
            organization.refresh_from_db()
        assert [organization.config_version for organization in organizations] == [version + 1 for version in before]


def test_a_price_that_is_there_is_not_changed() -> None:
    """C17: the past is never recomputed: a change is a row with a new date."""
    ratecards.import_card(read([entry("new-1"), entry("new-2")]))
    with pytest.raises(RateCardRefused, match=r"new-2 has other rates from 2026-04-02 already.*a row with a new date"):
        ratecards.import_card(read([entry("new-0"), entry("new-1"), entry("new-2", price="61")]))
    assert rows("new-0") == []
    assert rows("new-2") == [(day("2026-04-02"), None, 60_000_000, 1000)]


def test_a_later_row_closes_the_open_one() -> None:
    """C17: two rows, half open, meeting at the change."""
    ratecards.import_card(read([entry("new-1")]))
    changed = ratecards.import_card(read([entry("new-1", start="2026-12-01T12:00:00Z", price="50")]))
    assert (changed.added, changed.closed) == (1, 1)
    noon = datetime(2026, 12, 1, 12, tzinfo=UTC)
    assert rows("new-1") == [(day("2026-04-02"), noon, 60_000_000, 1000), (noon, None, 50_000_000, 1000)]


def test_the_old_file_again_after_a_newer_one_changes_nothing() -> None:
    old = read([entry("new-1")])
    ratecards.import_card(old)
    ratecards.import_card(read([entry("new-1"), entry("new-1", start="2026-12-01", price="50")]))
    again = ratecards.import_card(old)
    assert (again.added, again.unchanged, again.closed) == (0, 1, 0)
    assert rows("new-1") == [(day("2026-04-02"), day("2026-12-01"), 60_000_000, 1000), (day("2026-12-01"), None, 50_000_000, 1000)]


def test_a_file_may_end_an_open_row_but_not_move_an_end() -> None:
    ratecards.import_card(read([entry("new-1")]))
    ended = ratecards.import_card(read([entry("new-1", end="2026-12-01")]))
    assert (ended.added, ended.unchanged, ended.closed) == (0, 1, 1)
    with pytest.raises(RateCardRefused, match="ends at 2026-12-01 already, not at 2026-12-02"):
        ratecards.import_card(read([entry("new-1", end="2026-12-02")]))
    assert rows("new-1") == [(day("2026-04-02"), day("2026-12-01"), 60_000_000, 1000)]


def test_an_earlier_row_ends_where_the_next_one_begins() -> None:
    ratecards.import_card(read([entry("new-1", start="2026-12-01")]))
    ratecards.import_card(read([entry("new-1", start="2026-11-01", price="50")]))
    assert rows("new-1")[0] == (day("2026-11-01"), day("2026-12-01"), 50_000_000, 1000)


@pytest.mark.parametrize(("start", "end"), [("2026-06-01", None), ("2026-03-01", "2026-05-01")])
def test_rows_of_a_model_never_lie_over_each_other(start: str, end: str | None) -> None:
    ratecards.import_card(read([entry("new-1", end="2026-07-01")]))
    with pytest.raises(RateCardRefused, match="would lie over the row from 2026-04-02"):
        ratecards.import_card(read([entry("new-1", start=start, end=end, price="50")]))
    assert len(rows("new-1")) == 1
