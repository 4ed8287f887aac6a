"""The README says what is true."""

import re
from pathlib import Path

from config.settings.env import REQUIRED, VARIABLES, Variable

README = Path(__file__).resolve().parent.parent / "README.md"


def shown(variable: Variable) -> str:
    default = variable.default
    if default is REQUIRED:
        return "required"
    if default is None:
        return "unset"
    if isinstance(default, list | dict):
        return f"`{','.join(default)}`" if default else "empty"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


def test_the_settings_table_is_what_env_reads() -> None:
    section = README.read_text().split("## Settings", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([A-Z_]+)` \| (.+?) \| (.+) \|$", section, flags=re.MULTILINE)
    assert rows == [(variable.name, shown(variable), variable.about) for variable in VARIABLES]


def test_every_operator_command_of_the_table_exists() -> None:
    section = README.read_text().split("## Operate it", 1)[1].split("\n### ", 1)[0]
    names = set(re.findall(r"`([a-z_]+) (?:ORG|NAME|FILE)", section))
    root = README.parent
    commands = {path.stem for path in root.glob("*/management/commands/*.py") if not path.stem.startswith("_")}
    assert names >= {"create_organization", "add_member", "create_key", "revoke_key", "add_account", "set_limit", "usage"}
    assert names <= commands
