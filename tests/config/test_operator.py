"""What every operator command shares, and when `serve` does not start."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command, load_command_class

from config.management.operator import OperatorCommand, text

COMMANDS = {
    "accounts": ("add_member", "create_key", "resume", "revoke_key", "suspend"),
    "billing": (
        "add_alias",
        "adjust_credits",
        "complete_purchase",
        "create_organization",
        "grant_credits",
        "import_ratecard",
        "ledger_balance",
        "set_fallback_rate",
        "set_override",
    ),
    "config": ("usage",),
    "quotas": ("set_limit",),
    "routing": ("add_account", "reset_cooldowns", "rotate_encryption_keys", "withdraw_account"),
}


@pytest.mark.parametrize(("app", "name"), [(app, name) for app, names in COMMANDS.items() for name in names])
def test_help_shows_what_an_operator_needs_and_nothing_else(app: str, name: str) -> None:
    command = load_command_class(app, name)
    assert isinstance(command, OperatorCommand)
    shown = command.create_parser("manage.py", name).format_help()
    assert "--json" in shown
    assert "--var DIR" in shown
    assert "--pythonpath" not in shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        ([], "none"),
        (["a", "b"], "a; b"),
        ([{"input": 3}], '[{"input": 3}]'),
        ({"a": None}, '{"a": null}'),
        ("Zürich", "Zürich"),
    ],
)
def test_values_are_shown_as_people_write_them(value: Any, shown: str) -> None:
    assert text(value) == shown


def test_serve_says_that_static_files_are_missing_instead_of_failing_on_every_page(settings: Any, tmp_path: Path) -> None:
    settings.STATIC_ROOT = tmp_path / "static"
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.ManifestStaticFilesStorage"},
    }
    with pytest.raises(CommandError, match=r"no static files in .*collectstatic --no-input"):
        call_command("serve", stdout=StringIO())
