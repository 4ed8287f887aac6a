"""rotate_encryption_keys: everything under the newest key, in pages; safe to repeat, to interrupt, beside what runs."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import models

from accounts.models import Organization
from config.clock import utc_now
from routing import accounts, credentials, flows, rotation, sealing
from routing.errors import SealBroken
from routing.models import PoolAccount, SignInFlow
from tests.routing import made
from tests.routing.test_accounts import api_key, auth_json, ids

pytestmark = pytest.mark.django_db

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


@pytest.fixture
def organization(settings: Any) -> Organization:
    """A tenant with secrets under the old key; the new one is in front now. What other tests left is out of the way."""
    SignInFlow.objects.all().delete()
    Authenticator.objects.all().delete()
    PoolAccount.objects.all().update(access_token="", refresh_token="")
    settings.ENCRYPTION_KEYS = {"old": OLD}
    organization = made.organization()
    for number in range(3):
        file = auth_json(*ids())
        accounts.add_chatgpt(organization, file, label=f"Ada {number}", accept_terms=True, by=None, now=utc_now())
    accounts.add_key(organization, api_key(), label="Key", by=None, now=utc_now())
    flows.begin(organization, SignInFlow.Kind.BROWSER, {"state": "s", "verifier": "v"}, label="", plan=None, by=None, now=utc_now())
    settings.ENCRYPTION_KEYS = {"new": NEW, "old": OLD}
    credentials.forget()
    return organization


def opened(organization: Organization) -> list[str]:
    """Every secret of the organization, in the clear."""
    found = []
    for row in PoolAccount.objects.for_organization(organization):
        names = ("access_token", "refresh_token")
        found.extend(sealing.unseal(getattr(row, name), account=row.uuid, field=name) for name in names)
    flow = SignInFlow.objects.get(organization=organization)
    return [*found, sealing.unseal(flow.sealed, account=flow.uuid, field="sealed")]


def run(*arguments: str) -> Any:
    out = io.StringIO()
    call_command("rotate_encryption_keys", *arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.mark.parametrize("page", ["1", "2", "500"])
def test_all_is_under_the_newest_key_and_the_old_one_can_be_dropped(organization: Organization, settings: Any, page: str) -> None:
    before = opened(organization)
    versions = list(PoolAccount.objects.for_organization(organization).values_list("credential_version", flat=True))
    found = run("--page", page)
    assert found["newest"] == "new"
    assert (found["resealed"], found["changed_meanwhile"], found["broken"]) == (5, 0, [])
    assert found["secrets_by_key"] == {"new": 8}
    assert found["droppable_keys"] == ["old"]
    settings.ENCRYPTION_KEYS = {"new": NEW}
    assert opened(organization) == before
    # Nobody has to read a credential again: the token is the same.
    assert list(PoolAccount.objects.for_organization(organization).values_list("credential_version", flat=True)) == versions


def test_a_second_run_changes_nothing(organization: Organization) -> None:
    run()
    stored = list(PoolAccount.objects.values_list("access_token", "refresh_token"))
    again = run()
    assert (again["resealed"], again["broken"]) == (0, [])
    assert list(PoolAccount.objects.values_list("access_token", "refresh_token")) == stored


def test_what_was_interrupted_goes_on_where_it_stopped(organization: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    real, left = rotation._reseal, [2]

    def stop(*arguments: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*arguments)

    # Rows of other tests hold nothing, so the first rows of all are not this tenant's; only its own are worked on here.
    monkeypatch.setattr(rotation, "_pages", lambda rows, page: iter(list(rows.order_by("-pk"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotation, "_reseal", stop)
        with pytest.raises(KeyboardInterrupt):
            rotation.rotate(page=1)
    assert rotation.rotate(page=1).resealed == 3
    assert rotation.rotate(page=1).keys == {"new": 8}


def test_a_token_that_is_renewed_meanwhile_is_not_overwritten(organization: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    account = PoolAccount.objects.for_organization(organization).first()
    assert account is not None
    real = sealing.unseal

    def renewed_meanwhile(text: str, **about: Any) -> str:
        if about["account"] == account.uuid:
            # As a process that has not been restarted stores it: under the old key.
            fresh = sealed_old("a newer token", account)
            PoolAccount.objects.filter(pk=account.pk).update(access_token=fresh)
        return real(text, **about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sealing, "unseal", renewed_meanwhile)
        found = rotation.rotate()
    assert (found.moved, found.resealed, found.droppable) == (1, 4, [])
    account.refresh_from_db()
    assert sealing.unseal(account.access_token, account=account.uuid, field="access_token") == "a newer token"
    assert rotation.rotate().droppable == ["old"]


def sealed_old(value: str, account: PoolAccount) -> str:
    plain = json.dumps({"account": str(account.uuid), "field": "access_token", "value": value}).encode()
    return f"old:{Fernet(OLD).encrypt(plain).decode()}"


def test_what_no_key_opens_is_named_left_alone_and_an_error(organization: Organization) -> None:
    first, second = list(PoolAccount.objects.for_organization(organization))[:2]
    PoolAccount.objects.filter(pk=first.pk).update(access_token="lost:" + first.access_token.partition(":")[2])
    # A ciphertext of another row: it opens, and is not this row's.
    PoolAccount.objects.filter(pk=second.pk).update(refresh_token=first.refresh_token)
    out = io.StringIO()
    with pytest.raises(CommandError, match="2 rows cannot be opened"):
        call_command("rotate_encryption_keys", "--json", stdout=out)
    found = json.loads(out.getvalue())
    assert [line.split(":")[0] for line in found["broken"]] == [f"poolaccount {one.uuid}" for one in (first, second)]
    assert (found["resealed"], found["droppable_keys"]) == (3, [])
    first.refresh_from_db()
    assert first.refresh_token.startswith("old:")
    with pytest.raises(SealBroken):
        credentials.load(first.pk)


def test_a_page_of_no_rows_is_refused(organization: Organization) -> None:
    with pytest.raises(CommandError, match="1 to 100,000"):
        run("--page", "0")


def test_every_column_that_holds_a_ciphertext_is_rotated() -> None:
    """Columns that nobody may edit and that hold text without a bound: ciphertexts; a new one must be rotated too."""
    rotated = {(model, name) for model, names in rotation.SEALED for name in names}
    found = {
        (model, field.name)
        for label in ("accounts", "billing", "quotas", "routing")
        for model in apps.get_app_config(label).get_models()
        for field in model._meta.get_fields()
        if isinstance(field, models.TextField) and not field.editable
    }
    assert found == rotated


def test_an_expired_flow_is_no_hindrance(organization: Organization) -> None:
    SignInFlow.objects.filter(organization=organization).update(expires_at=utc_now() - timedelta(minutes=1))
    assert rotation.rotate().droppable == ["old"]
