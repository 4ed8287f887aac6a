"""A rate card on its way in: shown, confirmed, applied once; by the domain, the command, the page and the admin."""

import json
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, Organization, User
from billing import ratecards, rates_import
from billing.errors import RateCardRefused, RatesMoved
from billing.models import Rate, RateAlias, RateCard, RateImport
from config.clock import utc_now
from tests import factories
from tests.billing.test_ratecards import content, entry, fast, rows

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


def version(organization: Organization) -> int:
    return Organization.objects.get(pk=organization.pk).config_version


def proposed(data: bytes, *, by: User | None = None) -> RateImport:
    return rates_import.propose(data, name="test.json", now=NOW, by=by)


def applied(row: RateImport, *, by: User | None = None) -> rates_import.Outcome:
    return rates_import.apply(row, seen=rates_import.fingerprint(row.difference), now=NOW, by=by)


def operator() -> User:
    return User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())


def card(*, price: str = "50") -> bytes:
    """A new model, a changed one from a future day, one that ends, an unpriced one, a part, an alias."""
    return content(
        [
            entry("new-1", credits_per_million={"input": "10", "cached_input": "1", "cache_write": "12.5", "output": "50"}),
            entry("gpt-5.4", start="2026-12-24", price=price),
            entry("gpt-5.2", start="2026-04-02", end="2027-01-01", credits_per_million=PRICE_5_2),
            entry("preview-1", price=None),
            entry("gpt-image-2:image"),
        ],
        [fast("gpt-5.2", "2"), fast("new-*", "3")],
        aliases=[{"alias": "latest", "model": "new-1"}],
    )


PRICE_5_2 = {"input": "43.75", "cached_input": "4.375", "output": "350"}


# ----------------------------------------------------------------------------------------------------- the difference


def test_a_difference_says_what_is_new_changed_ended_missing_unpriced_and_skipped() -> None:
    difference = proposed(card()).difference
    assert [(one["model"], one["is_priced"]) for one in difference["added"]] == [("new-1", True), ("preview-1", False)]
    assert difference["added"][0]["terms"] == [
        {"name": "input", "new": "10"},
        {"name": "cached input", "new": "1"},
        {"name": "cache write", "new": "12.5"},
        {"name": "output", "new": "50"},
        {"name": "fast mode, times", "new": "3"},
    ]
    [changed] = difference["changed"]
    assert (changed["model"], changed["from"], changed["to"]) == ("gpt-5.4", "2026-12-24T00:00:00Z", None)
    assert changed["terms"] == [
        {"name": "input", "old": "62.5", "new": "50"},
        {"name": "cached input", "old": "6.25", "new": "6"},
        {"name": "output", "old": "375", "new": "300"},
        {"name": "fast mode, times", "old": "2", "new": "1"},
    ]
    assert difference["ended"] == [{"model": "gpt-5.2", "at": "2027-01-01T00:00:00Z"}]
    assert difference["aliases"] == [{"alias": "latest", "old": None, "new": "new-1", "from": "2026-04-02T00:00:00Z", "to": None}]
    assert "gpt-5.5" in difference["removed"]
    assert "gpt-5.4" not in difference["removed"]
    assert difference["unpriced"] == ["preview-1"]
    assert difference["past"] == ["new-1", "preview-1"]
    assert [notice.split(" ")[0] for notice in difference["notices"]] == ["gpt-image-2:image"]
    assert {"pattern": "new-*", "multiplier": "3", "models": ["new-1"]} in difference["expansions"]
    assert difference["unchanged"] == 1


def test_a_long_context_is_shown_with_the_rate_it_is_part_of() -> None:
    long = {"threshold_input_tokens": 272_000, "input_multiplier": "2", "output_multiplier": "1.5"}
    difference = proposed(content([entry("long-1", long_context=long)])).difference
    assert difference["long_context"][0]["terms"] == [
        {"name": "long context above, input tokens", "new": "272000"},
        {"name": "long context input, times", "new": "2"},
        {"name": "long context output, times", "new": "1.5"},
    ]
    assert difference["long_context"][0]["terms"][0] in difference["added"][0]["terms"]


def test_showing_changes_no_rate_and_is_heard_of_by_nobody() -> None:
    organization = factories.organization(plan=None)
    before = (Rate.objects.count(), RateAlias.objects.count(), RateCard.objects.count(), version(organization))
    proposed(card())
    assert (Rate.objects.count(), RateAlias.objects.count(), RateCard.objects.count(), version(organization)) == before
    assert rows("gpt-5.2")[0][1] is None
    assert rows("gpt-5.4")[0][1] is None


# ------------------------------------------------------------------------------------------------------------ applying


def test_what_was_confirmed_is_applied_once_and_heard_of_by_every_organization() -> None:
    organizations = [factories.organization(plan=None) for _ in range(2)]
    versions = [version(one) for one in organizations]
    who = operator()
    row = proposed(card(), by=who)
    outcome = applied(row, by=who)
    assert (outcome.imported.added, outcome.imported.closed, outcome.imported.aliases, outcome.is_repeated) == (3, 2, 1, False)
    assert [version(one) for one in organizations] == [before + 1 for before in versions]
    assert rows("gpt-5.4") == [
        (datetime(2026, 4, 2, tzinfo=UTC), datetime(2026, 12, 24, tzinfo=UTC), 62_500_000, 2000),
        (datetime(2026, 12, 24, tzinfo=UTC), None, 50_000_000, 1000),
    ]
    assert rows("gpt-5.2")[0][1] == datetime(2027, 1, 1, tzinfo=UTC)
    assert RateAlias.objects.get(alias="latest").model == "new-1"
    row.refresh_from_db()
    assert (row.applied_at, row.uploaded_by) == (NOW, who)
    assert row.card is not None
    assert row.card.sha256 == row.sha256
    told = AuditEvent.objects.get(action="ratecard.imported", object_id=str(row.uuid))
    assert (told.actor, told.data["added"], told.data["sha256"]) == (who, 3, row.sha256)


def test_the_same_file_again_is_the_same_import_and_changes_nothing() -> None:
    organization = factories.organization(plan=None)
    first = proposed(card())
    applied(first)
    count, number = Rate.objects.count(), version(organization)
    again = proposed(card())
    assert (again.pk, again.applied_at) == (first.pk, NOW)
    assert applied(again) == rates_import.Outcome(
        ratecards.Imported(0, 4, 0, ("preview-1",), again_notices(again), 0), is_repeated=True
    )
    assert (Rate.objects.count(), version(organization)) == (count, number)
    assert AuditEvent.objects.filter(action="ratecard.imported", object_id=str(first.uuid)).count() == 1


def again_notices(row: RateImport) -> tuple[str, ...]:
    return tuple(row.difference["notices"])


def test_what_is_no_longer_what_was_shown_is_not_applied() -> None:
    row = proposed(card())
    applied(rates_import.propose(content([entry("new-1", price="6")]), name="other.json", now=NOW))
    count = Rate.objects.count()
    with pytest.raises(RateCardRefused, match="new-1 has other rates"):
        applied(row)
    other = proposed(content([entry("gpt-5.4", start="2027-06-01", price="40")]))
    applied(proposed(content([entry("gpt-5.4", start="2027-01-01", price="45")])))
    with pytest.raises(RatesMoved):
        applied(other)
    assert Rate.objects.filter(model="gpt-5.4").count() == 2
    assert Rate.objects.count() == count + 1
    looked = rates_import.look(other, now=NOW)
    assert looked.difference["changed"][0]["terms"][0] == {"name": "input", "old": "45", "new": "40"}
    assert applied(looked).imported.added == 1


def test_a_confirmation_is_of_what_would_be_done_and_not_of_the_hour() -> None:
    row = rates_import.propose(content([entry("new-1", start="2026-12-02")]), name="test.json", now=NOW)
    seen = rates_import.fingerprint(row.difference)
    assert not row.difference["past"]
    rates_import.apply(row, seen=seen, now=NOW + timedelta(days=3))
    row.refresh_from_db()
    assert row.difference["past"] == ["new-1"]


def test_a_card_that_is_wrong_or_too_large_leaves_nothing() -> None:
    count = RateImport.objects.count()
    for bad, says in (
        (b"{", "is not a rate card"),
        (content([entry("gpt-5.4", price="1000")]), "other rates"),
        (b" " * 1_000_001, "larger"),
    ):
        with pytest.raises(RateCardRefused, match=says):
            proposed(bad)
    assert RateImport.objects.count() == count


def test_a_card_of_nothing_new_can_be_marked_as_imported() -> None:
    organization = factories.organization(plan=None)
    number = version(organization)
    row = rates_import.propose(ratecards.PACKAGED.read_bytes(), name="codex-2026.json", now=NOW)
    assert rates_import.is_empty(row.difference)
    assert row.difference["unchanged"] == 20
    assert row.difference["removed"] == []
    assert applied(row).imported.added == 0
    assert version(organization) == number


def test_an_alias_of_a_card_replaces_the_one_before_and_the_difference_says_so() -> None:
    applied(proposed(content([entry("a-1, a-2")], aliases=[{"alias": "newest", "model": "a-1"}])))
    moved = {"alias": "newest", "model": "a-2", "effective_from": "2026-12-24"}
    row = proposed(content([entry("a-1, a-2")], aliases=[moved]))
    assert row.difference["aliases"] == [
        {"alias": "newest", "old": "a-1", "new": "a-2", "from": "2026-12-24T00:00:00Z", "to": None}
    ]
    applied(row)
    assert list(RateAlias.objects.filter(alias="newest").order_by("valid_from").values_list("model", flat=True)) == ["a-1", "a-2"]
    with pytest.raises(RateCardRefused, match="newest is an alias"):
        proposed(content([entry("newest")]))
    with pytest.raises(RateCardRefused, match="a rate of its own"):
        proposed(content([entry("b")], aliases=[{"alias": "a-1", "model": "b"}]))


# ---------------------------------------------------------------------------------------------------------- the command


def written(tmp_path: Path, data: bytes) -> str:
    file = tmp_path / "card.json"
    file.write_bytes(data)
    return str(file)


def run(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("import_ratecard", *arguments, "--json", stdout=out)
    answer = json.loads(out.getvalue())
    assert isinstance(answer, dict)
    return answer


def test_the_command_shows_without_changing_and_imports_what_is_confirmed(tmp_path: Path) -> None:
    file = written(tmp_path, card())
    count, imports = Rate.objects.count(), RateImport.objects.count()
    shown = run(file, "--dry-run")
    assert (shown["added"], shown["applied"], shown["difference"]["changed"][0]["model"]) == (3, False, "gpt-5.4")
    assert (Rate.objects.count(), RateImport.objects.count()) == (count, imports)
    with pytest.raises(CommandError, match="--yes"):
        run(file)
    assert Rate.objects.count() == count
    done = run(file, "--yes")
    assert (done["added"], done["closed"], done["aliases"], done["applied"], done["imported_before_at"]) == (3, 2, 1, True, None)
    assert Rate.objects.count() == count + 3
    again = run(file)
    assert (again["added"], again["unchanged"]) == (0, 4)
    assert again["imported_before_at"] is not None


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("says", "is_agreed"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_at_a_terminal_the_command_asks(says: str, is_agreed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, count = written(tmp_path, card()), Rate.objects.count()
    monkeypatch.setattr(sys, "stdin", Terminal(says))
    out, err = StringIO(), StringIO()
    if is_agreed:
        call_command("import_ratecard", file, stdout=out, stderr=err)
        assert "added: 3" in out.getvalue()
    else:
        with pytest.raises(CommandError, match="Nothing was imported"):
            call_command("import_ratecard", file, stdout=out, stderr=err)
    assert "~ gpt-5.4 from 2026-12-24T00:00:00Z: input 62.5 -> 50" in err.getvalue()
    assert "Import this? [y/N]" in err.getvalue()
    assert Rate.objects.count() == count + 3 * is_agreed


def test_the_fallback_rate_is_set_like_a_card_of_one_row() -> None:
    """C13: what has no rate costs what the operator says, for organizations that chose that."""
    call_command("set_fallback_rate", "--input", "500", "--cached-input", "50", "--output", "3000", "--yes", stdout=StringIO())
    row = Rate.objects.get(model="fallback")
    assert (row.input, row.cached_input, row.cache_write, row.output, row.valid_to) == (
        500_000_000,
        50_000_000,
        None,
        3_000_000_000,
        None,
    )
    assert row.valid_from.microsecond == 0
    assert row.valid_from <= utc_now()
    with pytest.raises(CommandError, match="dearer"):
        call_command("set_fallback_rate", "--input", "5", "--cached-input", "50", "--output", "3000", "--yes", stdout=StringIO())
    assert Rate.objects.filter(model="fallback").count() == 1


# ------------------------------------------------------------------------------------------------------- page and admin


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def file(data: bytes) -> dict[str, Any]:
    return {"file": SimpleUploadedFile("card.json", data, content_type="application/json")}


DOORS = {
    "page": ("ratecards", "ratecard_import", "apply_ratecard"),
    "admin": ("admin:billing_rateimport_upload", "admin:billing_rateimport_difference", "admin:billing_rateimport_apply"),
}


@pytest.mark.parametrize("door", DOORS)
def test_an_operator_uploads_looks_and_confirms(door: str) -> None:
    upload, difference, confirm = DOORS[door]
    who = operator()
    client = signed_in(who)
    count = Rate.objects.count()
    assert client.get(reverse(upload)).status_code == 200
    refused = client.post(reverse(upload), file(b"not json"))
    assert refused.status_code == 400
    assert b"is not a rate card" in refused.content
    answer = client.post(reverse(upload), file(card()))
    row = RateImport.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, reverse(difference, kwargs={"uuid": row.uuid}))
    page = client.get(answer["Location"])
    shown = page.content.decode()
    for text in ("new-1", "gpt-5.4", "62.5", ">50<", "preview-1", "gpt-image-2:image", "new-* times 3", "Apply exactly this"):
        assert text in shown, text
    assert "<style" not in shown or door == "admin"
    assert Rate.objects.count() == count
    seen = rates_import.fingerprint(row.difference)
    assert seen in shown
    moved = client.post(reverse(confirm, kwargs={"uuid": row.uuid}), {"seen": "something else"})
    assert moved.status_code == 409
    assert b"Look at it again" in moved.content
    assert Rate.objects.count() == count
    assert client.get(reverse(confirm, kwargs={"uuid": row.uuid})).status_code == 405
    done = client.post(reverse(confirm, kwargs={"uuid": row.uuid}), {"seen": seen})
    assert (done.status_code, done["Location"]) == (302, answer["Location"])
    assert Rate.objects.count() == count + 3
    row.refresh_from_db()
    assert row.uploaded_by == who
    assert AuditEvent.objects.get(action="ratecard.imported", object_id=str(row.uuid)).actor == who
    assert b"Apply exactly this" not in client.get(answer["Location"]).content
    assert client.post(reverse(confirm, kwargs={"uuid": row.uuid}), {"seen": seen}).status_code == 302
    assert Rate.objects.count() == count + 3


def test_the_list_shows_what_was_uploaded_and_what_is_not_applied() -> None:
    client = signed_in(operator())
    proposed(card())
    page = client.get(reverse("ratecards"))
    assert b"test.json" in page.content
    assert b"not applied" in page.content
    assert "unsafe" not in page["Content-Security-Policy"]


@pytest.mark.parametrize("role", ["owner", "lead", "finance", "developer", None])
def test_who_is_no_operator_finds_nothing(role: str | None) -> None:
    row = proposed(card())
    count = Rate.objects.count()
    client = Client()
    if role is not None:
        member = factories.member(factories.organization(plan=None), role=role)
        assert member.user is not None
        client.force_login(member.user)
    for door, missing in (("page", 404), ("admin", 302)):
        upload, difference, confirm = DOORS[door]
        # Owners and leads come into the admin, but not to what is the operators'.
        expected = 302 if role is None else 403 if door == "admin" and role in ("owner", "lead") else missing
        for name in (upload, difference):
            kwargs = {} if name == upload else {"uuid": row.uuid}
            answer = client.get(reverse(name, kwargs=kwargs))
            assert answer.status_code == expected, name
            assert b"gpt-5.4" not in answer.content
        assert client.post(reverse(upload), file(content([entry("sneaked-in")]))).status_code == expected
        seen = {"seen": rates_import.fingerprint(row.difference)}
        assert client.post(reverse(confirm, kwargs={"uuid": row.uuid}), seen).status_code == expected
    assert Rate.objects.count() == count
    assert RateImport.objects.count() == 1


def test_staff_who_are_no_operators_are_refused_in_the_admin() -> None:
    staff = User.objects.create_user(f"{factories.unique('staff')}@weir.example", factories.password())
    staff.is_staff = True
    staff.save()
    client = signed_in(staff)
    assert client.get(reverse("admin:billing_rateimport_upload")).status_code == 302
    row = proposed(card())
    for name in DOORS["admin"][1:]:
        assert client.post(reverse(name, kwargs={"uuid": row.uuid})).status_code == 302
    row.refresh_from_db()
    assert row.applied_at is None


def test_the_fallback_rate_is_set_in_the_admin_too() -> None:
    client = signed_in(operator())
    form = {"input": "500", "cached_input": "50", "cache_write": "", "output": "3000"}
    assert client.post(reverse("admin:billing_rateimport_fallback"), {**form, "output": "x"}).status_code == 400
    answer = client.post(reverse("admin:billing_rateimport_fallback"), form)
    row = RateImport.objects.get()
    seen = {"seen": rates_import.fingerprint(row.difference)}
    assert client.post(reverse("admin:billing_rateimport_apply", kwargs={"uuid": row.uuid}), seen).status_code == 302
    assert answer.status_code == 302
    assert Rate.objects.get(model="fallback").output == 3_000_000_000
