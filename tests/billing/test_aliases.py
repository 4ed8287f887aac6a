"""Other names of models: dated, never chained, never by likeness."""

from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from accounts.models import AuditEvent, Organization, User
from billing import aliases, overrides, ratecards, snapshots
from billing.errors import AliasRefused, ModelUnknown
from billing.models import RateAlias
from billing.overrides import Terms
from tests import factories
from tests.billing.test_ratecards import entry, read

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _models() -> None:
    ratecards.import_card(read([entry("m-big", price="120"), entry("m-small")]))


def version(organization: Organization) -> int:
    return Organization.objects.get(pk=organization.pk).config_version


def named(alias: str, at: datetime) -> str:
    return snapshots.load_rates().rate_for(alias, at).model


def spans(alias: str) -> list[tuple[str, datetime, datetime | None]]:
    return list(RateAlias.objects.filter(alias=alias).order_by("valid_from").values_list("model", "valid_from", "valid_to"))


def test_an_alias_is_priced_as_the_model_it_stands_for_then() -> None:
    """C17, B8: on the second, by the moment of admission."""
    aliases.add("latest", "m-big", now=NOW)
    later = NOW + timedelta(days=30)
    aliases.add("latest", "m-small", now=NOW, valid_from=later)
    assert named("latest", NOW) == "m-big"
    assert named("latest", later - timedelta(seconds=1)) == "m-big"
    assert named("latest", later) == "m-small"
    with pytest.raises(ModelUnknown):
        named("latest", NOW - timedelta(seconds=1))
    assert spans("latest") == [("m-big", NOW, later), ("m-small", later, None)]


def test_an_alias_is_asked_upstream_by_the_models_own_name() -> None:
    aliases.add("latest", "m-big-2026-09-01", now=NOW)
    rates = snapshots.load_rates()
    assert rates.upstream_name("latest", NOW) == "m-big-2026-09-01"
    assert rates.base_name("latest", NOW) == "m-big"
    assert rates.upstream_name("m-big", NOW) == "m-big"
    assert rates.upstream_name("latest", NOW - timedelta(seconds=1)) == "latest"


def test_an_alias_matches_by_its_whole_name_only() -> None:
    """C24: neither likeness nor a date after an alias makes it a model."""
    aliases.add("latest", "m-big", now=NOW)
    for name in ("latest-2", "lates", "LATEST", "latest-2026-09-01", "x-latest"):
        with pytest.raises(ModelUnknown):
            named(name, NOW)


def test_every_organization_hears_of_it_and_it_is_in_the_audit() -> None:
    organizations = [factories.organization(plan=None) for _ in range(2)]
    before = [version(one) for one in organizations]
    made = aliases.add("latest", "m-big", now=NOW, reason="the newest")
    assert [version(one) for one in organizations] == [number + 1 for number in before]
    told = AuditEvent.objects.get(action="alias.added", object_id="latest")
    assert (told.organization, told.data["model"], made.source) == (None, "m-big", {"reason": "the newest"})
    assert aliases.add("latest", "m-big", now=NOW + timedelta(days=1)) == made
    assert [version(one) for one in organizations] == [number + 1 for number in before]


@pytest.mark.parametrize(
    ("alias", "model", "says"),
    [
        ("m-big", "m-small", "a rate under its own name"),
        ("x", "nothing-like-it", "on no rate card"),
        ("x", "x", "itself"),
        ("x", "known-alias", "is an alias itself"),
        ("x", "fallback", "cannot be"),
        ("fallback", "m-big", "cannot be"),
        ("two words", "m-big", "cannot be"),
        ("", "m-big", "cannot be"),
        ("x" * 121, "m-big", "cannot be"),
        ("own-price", "m-big", "a rate under its own name"),
    ],
)
def test_what_cannot_be_an_alias_is_refused(alias: str, model: str, says: str) -> None:
    """C24: a name means one model at a time."""
    aliases.add("known-alias", "m-big", now=NOW)
    overrides.set_override(factories.organization(plan=None), "own-price", Terms(1, 1, 1), now=NOW)
    count = RateAlias.objects.count()
    with pytest.raises(AliasRefused, match=says):
        aliases.add(alias, model, now=NOW)
    assert RateAlias.objects.count() == count


def test_the_past_keeps_its_names() -> None:
    with pytest.raises(AliasRefused, match="is past"):
        aliases.add("latest", "m-big", now=NOW, valid_from=NOW - timedelta(seconds=1))
    with pytest.raises(AliasRefused, match="end before it begins"):
        aliases.add("latest", "m-big", now=NOW, valid_to=NOW)
    assert not RateAlias.objects.filter(alias="latest").exists()


def test_a_change_now_holds_for_the_second_it_is_made_in() -> None:
    """A request's admission is known to the second; one that comes right after the change is priced by it."""
    made = aliases.add("latest", "m-big", now=NOW + timedelta(microseconds=900_000))
    assert made.valid_from == NOW
    again = aliases.add("latest", "m-small", now=NOW + timedelta(microseconds=950_000))
    assert again.valid_from == NOW + timedelta(seconds=1)
    assert [model for model, _, _ in spans("latest")] == ["m-big", "m-small"]


def test_an_ended_alias_stands_for_nothing_and_one_that_has_not_begun_is_taken_out() -> None:
    aliases.add("latest", "m-big", now=NOW)
    planned = aliases.add("next", "m-big", now=NOW, valid_from=NOW + timedelta(days=1))
    then = NOW + timedelta(hours=1)
    aliases.end(RateAlias.objects.get(alias="latest"), now=then)
    aliases.end(planned, now=then)
    assert spans("latest") == [("m-big", NOW, then)]
    assert spans("next") == []
    assert named("latest", then - timedelta(seconds=1)) == "m-big"
    with pytest.raises(ModelUnknown):
        named("latest", then)
    aliases.end(RateAlias.objects.get(alias="latest"), now=then + timedelta(hours=1))
    assert spans("latest") == [("m-big", NOW, then)]
    assert AuditEvent.objects.filter(action="alias.ended").count() == 2


def test_the_database_forbids_two_models_under_one_name_at_a_time() -> None:
    RateAlias.objects.create(alias="latest", model="m-big", valid_from=NOW, valid_to=NOW + timedelta(days=2))
    for start, end in ((NOW + timedelta(days=1), None), (NOW - timedelta(days=1), NOW + timedelta(seconds=1))):
        with pytest.raises(IntegrityError, match="alias_never_over_another"), transaction.atomic():
            RateAlias.objects.create(alias="latest", model="m-small", valid_from=start, valid_to=end)
    RateAlias.objects.create(alias="latest", model="m-small", valid_from=NOW + timedelta(days=2))


def test_models_lists_offer_an_alias_while_it_holds() -> None:
    aliases.add("latest", "m-big", now=NOW)
    rates = snapshots.load_rates()
    assert "latest" in rates.models_at(NOW)
    assert "latest" not in rates.models_at(NOW - timedelta(seconds=1))


def test_the_command_adds_and_ends() -> None:
    out = StringIO()
    call_command("add_alias", "latest", "m-big", "--to", "2999-01-01", stdout=out)
    assert "model: m-big" in out.getvalue()
    assert spans("latest")[0][2] == datetime(2999, 1, 1, tzinfo=UTC)
    for arguments, says in (
        (("latest",), "Name the model"),
        (("other", "m-big", "--from", "soon"), "is not a date"),
        (("other", "--end"), "no alias"),
        (("m-big", "m-small"), "own name"),
    ):
        with pytest.raises(CommandError, match=says):
            call_command("add_alias", *arguments, stdout=StringIO())
    call_command("add_alias", "latest", "--end", stdout=StringIO())
    assert spans("latest")[0][2] != datetime(2999, 1, 1, tzinfo=UTC)


def test_the_admin_adds_and_ends() -> None:
    operator = User.objects.create_superuser(f"{factories.unique('operator')}@weir.example", factories.password())
    client = Client()
    client.force_login(operator)
    add = reverse("admin:billing_ratealias_add_alias")
    assert client.get(add).status_code == 200
    form: dict[str, Any] = {"alias": "latest", "model": "m-bug", "reason": "", "valid_from": "", "valid_to": ""}
    refused = client.post(add, form)
    assert (refused.status_code, b"on no rate card" in refused.content) == (400, True)
    assert client.post(add, {**form, "model": "m-big"}).status_code == 302
    row = RateAlias.objects.get(alias="latest")
    chosen = {"action": "end", "_selected_action": [row.pk], "index": "0"}
    assert client.post(reverse("admin:billing_ratealias_changelist"), chosen).status_code == 302
    row.refresh_from_db()
    assert row.valid_to is not None
    told = AuditEvent.objects.filter(object_id="latest", actor=operator).order_by("pk").values_list("action", flat=True)
    assert list(told) == ["alias.added", "alias.ended"]
