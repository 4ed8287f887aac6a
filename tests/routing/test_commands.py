"""add_account and reset_cooldowns, as an operator types them."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from accounts.models import Organization
from config.redis import sync_client
from routing.models import PoolAccount
from tests.routing import made
from tests.routing.test_accounts import api_key, auth_json, ids

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> Any:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.fixture
def organization() -> Organization:
    return made.organization()


@pytest.fixture
def sign_in(tmp_path: Path) -> Path:
    path = tmp_path / "auth.json"
    path.write_text(json.dumps(auth_json(*ids())))
    return path


def test_a_sign_in_is_added_from_its_file(organization: Organization, sign_in: Path) -> None:
    slug = organization.slug
    printed = run(
        "add_account",
        slug,
        "--kind",
        "chatgpt",
        "--auth-json",
        str(sign_in),
        "--label",
        "Ada",
        "--plan",
        "pro_100",
        "--accept-terms",
    )
    account = PoolAccount.objects.for_organization(organization).get()
    assert printed == {"id": str(account.uuid), "label": "Ada", "identity": account.identity}
    assert account.plan_type == "pro_100"


def test_the_terms_are_shown_where_they_were_not_accepted(organization: Organization, sign_in: Path) -> None:
    with pytest.raises(CommandError, match="may forbid giving others access"):
        run("add_account", organization.slug, "--kind", "chatgpt", "--auth-json", str(sign_in), "--label", "Ada")
    assert not PoolAccount.objects.for_organization(organization).exists()


def test_an_api_key_is_read_from_standard_input(organization: Organization, monkeypatch: pytest.MonkeyPatch) -> None:
    key = api_key()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{key}\n"))
    printed = run("add_account", organization.slug, "--kind", "openai", "--api-key-stdin", "--label", "Key")
    assert set(printed) == {"id", "label", "identity"}
    assert key not in json.dumps(printed)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kind", "openai", "--label", "K"], "needs --api-key-stdin"),
        (["--kind", "chatgpt", "--label", "K"], "needs --auth-json FILE"),
        (["--kind", "chatgpt", "--label", "K", "--api-key-stdin"], "--api-key-stdin does not go with --kind chatgpt"),
        (["--kind", "openai", "--label", "K", "--api-key-stdin", "--plan", "plus"], "--plan does not go with --kind openai"),
        (["--kind", "chatgpt", "--label", "K", "--auth-json", "/no/such/file"], "cannot be read"),
        (["--kind", "azure", "--label", "K"], "invalid choice"),
        (["--kind", "openai", "--api-key-stdin"], "--label"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(organization: Organization, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("add_account", organization.slug, *arguments)


def test_a_file_that_is_not_json_is_named_and_never_quoted(organization: Organization, tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("refresh_token = something-secret")
    with pytest.raises(CommandError) as refused:
        run("add_account", organization.slug, "--kind", "chatgpt", "--auth-json", str(path), "--label", "Ada")
    assert str(refused.value) == f"{path} is not JSON."


def test_an_unknown_organization_is_a_clear_error() -> None:
    with pytest.raises(CommandError, match="no organization"):
        run("reset_cooldowns", "no-such-organization")


def test_reset_cooldowns_frees_this_organizations_accounts_only(organization: Organization, sign_in: Path) -> None:
    run("add_account", organization.slug, "--kind", "chatgpt", "--auth-json", str(sign_in), "--label", "Ada", "--accept-terms")
    account = PoolAccount.objects.for_organization(organization).get()
    key = f"routing:{{s{organization.pk % 32:02d}}}:p{account.pool_id}:live"
    other = f"{account.pk + 1_000_000}:c"
    fields: dict[Any, Any] = {
        f"{account.pk}:c": "99",
        f"{account.pk}:x": "9:9",
        f"{account.pk}:w": "300=100:9:9",
        f"{account.pk}:v": "3",
        other: "5",
    }
    sync_client().hset(key, mapping=fields)
    assert run("reset_cooldowns", organization.slug) == {"accounts": 1, "cleared": 1}
    assert sync_client().hgetall(key) == {f"{account.pk}:v".encode(): b"3", other.encode(): b"5"}
    assert run("reset_cooldowns", organization.slug) == {"accounts": 1, "cleared": 0}
