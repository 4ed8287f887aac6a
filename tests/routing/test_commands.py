"""add_account and reset_cooldowns, as an operator types them."""

import io
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from accounts.models import Organization
from config.clock import utc_now
from config.redis import sync_client
from routing.models import PoolAccount
from tests.routing import made
from tests.routing.test_accounts import api_key
from tests.upstream import ScriptedUpstream

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("remote")]


def run(*arguments: str) -> Any:
    out = io.StringIO()
    call_command(*arguments, "--json", stdout=out)
    return json.loads(out.getvalue())


@pytest.fixture
def organization() -> Organization:
    return made.organization()


@pytest.fixture
def sign_in(tmp_path: Path, remote: ScriptedUpstream) -> Path:
    path = tmp_path / "auth.json"
    path.write_text(json.dumps(remote.mint()))
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


def test_anthropics_key_and_a_compatible_endpoint_are_added_and_told_their_models(
    organization: Organization, remote: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    added = ("add_account", organization.slug, "--api-key-stdin", "--label", "K", "--kind")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"sk-ant-{made.number()}\n"))
    assert run(*added, "anthropic")["identity"].startswith("anthropic:")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{api_key()}\n"))
    own = run(*added, "openai_compatible", "--base-url", f"http://localhost:{remote.port}/v1", "--models", "qwen3", "gpt-oss")
    account = PoolAccount.objects.for_organization(organization).get(kind="openai_compatible")
    assert (own["id"], account.models_served) == (str(account.uuid), ["gpt-oss", "qwen3"])
    assert run("set_models", own["id"], "qwen3-coder")["models"] == ["qwen3-coder"]
    assert run("set_models", own["id"])["models"] == ["qwen3-coder"]
    assert run("set_models", own["id"], "--all") == {"id": own["id"], "label": "K", "models": "all"}
    account.refresh_from_db()
    assert account.models_served is None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no-such-account", "gpt-5.5"], "There is no account"),
        (["00000000-0000-4000-8000-000000000000", "gpt-5.5"], "There is no account"),
        (["00000000-0000-4000-8000-000000000000", "gpt-5.5", "--all"], "--all takes no models"),
    ],
)
def test_models_of_no_account_are_a_clear_error(arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("set_models", *arguments)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--kind", "openai", "--label", "K"], "needs --api-key-stdin"),
        (["--kind", "anthropic", "--label", "K"], "needs --api-key-stdin"),
        (["--kind", "anthropic", "--api-key-stdin"], "needs --label"),
        (["--kind", "openai_compatible", "--label", "K", "--api-key-stdin"], "needs --base-url"),
        (["--kind", "openai_compatible", "--device"], "--device does not go with --kind openai_compatible"),
        (["--kind", "anthropic", "--label", "K", "--api-key-stdin", "--accept-terms"], "--accept-terms does not go with"),
        (["--device", "--models", "gpt-5.5"], "--models does not go with --kind chatgpt"),
        (["--kind", "chatgpt", "--label", "K"], "needs --sign-in or --device or --auth-json FILE"),
        (["--kind", "chatgpt", "--label", "K", "--api-key-stdin"], "--api-key-stdin does not go with --kind chatgpt"),
        (["--kind", "openai", "--label", "K", "--api-key-stdin", "--plan", "plus"], "--plan does not go with --kind openai"),
        (["--kind", "chatgpt", "--label", "K", "--auth-json", "/no/such/file"], "cannot be read"),
        (["--kind", "azure", "--label", "K"], "invalid choice"),
        (["--kind", "openai", "--api-key-stdin"], "needs --label"),
        (["--label", "K"], "add_account needs --sign-in or --device or --auth-json FILE or --api-key-stdin"),
        (["--sign-in", "--device"], "--sign-in and --device do not go together"),
        (["--sign-in", "--base-url", "https://1.1.1.1/v1"], "--base-url does not go with --kind chatgpt"),
        (["--auth-json", "a", "b", "--label", "K"], "--label names one account"),
        (["--sign-in", "--accept-terms", "--plan", "platinum"], "'platinum' is not known"),
    ],
)
def test_a_wrong_argument_is_a_clear_error(organization: Organization, arguments: list[str], sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        run("add_account", organization.slug, *arguments)


def test_a_file_that_is_not_json_is_named_and_never_quoted(organization: Organization, tmp_path: Path) -> None:
    path = tmp_path / "auth.json"
    path.write_text("refresh_token = something-secret")
    with pytest.raises(CommandError) as refused:
        run("add_account", organization.slug, "--auth-json", str(path), "--label", "Ada", "--accept-terms")
    assert str(refused.value) == f"{path} is not JSON."


def test_of_several_files_each_is_told_and_one_that_is_refused_is_an_error_at_the_end(
    organization: Organization, remote: ScriptedUpstream, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    first, second = remote.mint(), remote.mint()
    good.write_text(json.dumps([first, second]))
    bad.write_text("{")
    out = io.StringIO()
    files = [str(good), str(bad), "/no/such/file"]
    with pytest.raises(CommandError, match="2 of the sign-ins were refused"):
        call_command("add_account", organization.slug, "--auth-json", *files, "--accept-terms", "--json", stdout=out)
    rows = json.loads(out.getvalue())["files"]
    assert [(row["file"], row["outcome"], row["code"]) for row in rows] == [
        ("/no/such/file", "refused", "file_unreadable"),
        (f"{good}[0]", "added", ""),
        (f"{good}[1]", "added", ""),
        (str(bad), "refused", "auth_file_invalid"),
    ]
    joined = PoolAccount.objects.for_organization(organization)
    assert [row["identity"] for row in rows if row["identity"]] == list(joined.values_list("identity", flat=True))
    call_command("add_account", organization.slug, "--auth-json", str(good), stdout=out)
    assert out.getvalue().count("renewed") == 2


def test_a_browser_sign_in_is_begun_by_one_command_and_finished_by_another(
    organization: Organization, remote: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N44: started on one process, callback on another."""
    said = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    out = io.StringIO()
    begin = ("add_account", organization.slug, "--sign-in", "--label", "Ada", "--accept-terms", "--json")
    call_command(*begin, stdout=out, stderr=said)
    begun = json.loads(out.getvalue())
    url = next(line for line in said.getvalue().splitlines() if line.startswith(remote.url))
    monkeypatch.setattr(sys, "stdin", io.StringIO(remote.sign_in(url) + "\n"))
    printed = run("add_account", organization.slug, "--sign-in", begun["sign_in"])
    account = PoolAccount.objects.for_organization(organization).get()
    assert printed == {"id": str(account.uuid), "label": "Ada", "identity": account.identity}


def test_a_device_sign_in_waits_for_its_person(organization: Organization, remote: ScriptedUpstream) -> None:
    said = io.StringIO()

    def enter(*arguments: Any) -> None:
        code = said.getvalue().split(" and enter ")[1].split()[0]
        remote.approve(code, email="ada@example.test")

    with pytest.MonkeyPatch.context() as patch:
        # Between two polls the person enters the code; the pause itself is not what is tested.
        patch.setattr("routing.management.commands.add_account.time.sleep", enter)
        patch.setattr("routing.management.commands.add_account.utc_now", Ticking())
        out = io.StringIO()
        call_command("add_account", organization.slug, "--device", "--accept-terms", "--json", stdout=out, stderr=said)
    account = PoolAccount.objects.for_organization(organization).get()
    assert json.loads(out.getvalue()) == {"id": str(account.uuid), "label": "ada@example.test", "identity": account.identity}


class Ticking:
    """A clock on which every look is 2 s after the last."""

    def __init__(self) -> None:
        self.now = utc_now()

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=2)
        return self.now


def test_an_account_is_withdrawn_by_its_label_or_id(organization: Organization, sign_in: Path) -> None:
    run("add_account", organization.slug, "--auth-json", str(sign_in), "--label", "Ada", "--accept-terms")
    account = PoolAccount.objects.for_organization(organization).get()
    with pytest.raises(CommandError, match="No sign-in account"):
        run("withdraw_account", organization.slug, "Somebody")
    for name in ("Ada", str(account.uuid)):
        assert run("withdraw_account", organization.slug, name) == {
            "id": str(account.uuid),
            "label": "Ada",
            "status": "withdrawn",
        }


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
