"""The lock files: what pyproject.toml asks for, by hash, and no address of where it came from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from config.launch import folders

LOCKS = [folders.PROJECT / "requirements.lock", folders.PROJECT / "requirements-uv.lock"]


def pinned(lock: Path) -> dict[str, Version]:
    return {
        canonicalize_name(name): Version(version) for name, version in re.findall(r"^([\w.-]+)==([^ ;\\]+)", lock.read_text(), re.M)
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_no_lock_holds_an_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("    --hash=sha256:", ""), re.M)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_package_is_pinned_by_hash(lock: Path) -> None:
    entries = re.split(r"^(?=\S)", lock.read_text(), flags=re.M)[1:]
    assert entries
    assert [entry.splitlines()[0] for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_the_lock_satisfies_what_pyproject_asks_for() -> None:
    asked = tomllib.loads((folders.PROJECT / "pyproject.toml").read_text())
    groups = asked["dependency-groups"]
    wanted = [Requirement(text) for text in [*asked["project"]["dependencies"], *groups["dev"], *groups["e2e"]]]
    held = pinned(LOCKS[0])
    missing = [
        str(one) for one in wanted if (version := held.get(canonicalize_name(one.name))) is None or version not in one.specifier
    ]
    assert missing == []
