"""The bootstrap: what it says to a machine that is not ready, and which arguments it takes away."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from config.launch import folders

SCRIPT = folders.PROJECT / "manage.py"
BASE_PYTHON = str(getattr(sys, "_base_executable", sys.executable))


@pytest.fixture
def manage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("manage_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command: str, environ: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def test_an_older_python_is_told_which_one_is_needed() -> None:
    pretending = f"import runpy, sys; sys.version_info = (3, 10, 4); runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    done = run(sys.executable, "-c", pretending)
    assert done.returncode == 1
    assert done.stderr.startswith("manage.py: Python 3.11 or newer is needed; this is ")


def test_older_pythons_can_parse_it() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def test_without_an_installation_other_commands_name_those_that_install(folder: Path) -> None:
    copy = folder / "project" / "manage.py"
    copy.parent.mkdir()
    copy.write_bytes(SCRIPT.read_bytes())
    done = run(BASE_PYTHON, "-I", str(copy), "usage", "acme", environ={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    assert done.returncode == 1
    assert done.stderr == (
        "manage.py: nothing is installed yet. Run one of "
        "`python3 manage.py demo`, `python3 manage.py up`, `python3 manage.py test`, `python3 manage.py bench` first.\n"
    )
    assert not (copy.parent / ".venv").exists()


def test_another_python_runs_a_command_inside_the_installed_environment(environ: dict[str, str]) -> None:
    """The one that carries the tests may be another; only where there is a `.venv` is there something to show."""
    done = run(BASE_PYTHON, str(SCRIPT), "create_key", "--help", environ=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: manage.py create_key ")


@pytest.mark.parametrize(
    ("arguments", "rest", "var"),
    [
        (["usage", "acme", "--var", "/data/x"], ["usage", "acme"], "/data/x"),
        (["--var=/data/x", "usage", "acme"], ["usage", "acme"], "/data/x"),
        (["usage", "--var", "here"], ["usage"], str(Path("here").absolute())),
        (["usage", "--", "--var", "/data/x"], ["usage", "--", "--var", "/data/x"], None),
        (["usage", "acme", "--variant"], ["usage", "acme", "--variant"], None),
    ],
)
def test_var_is_taken_from_every_command(
    manage: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], rest: list[str], var: str | None
) -> None:
    monkeypatch.setenv("WEIR_VAR", "")
    monkeypatch.delenv("WEIR_VAR")
    assert manage.take_var(arguments) == rest
    assert os.environ.get("WEIR_VAR") == var


@pytest.mark.parametrize("arguments", [["usage", "--var"], ["usage", "--var", "--json"], ["usage", "--var="]])
def test_var_without_a_folder_is_refused(manage: ModuleType, arguments: list[str]) -> None:
    with pytest.raises(manage.Unusable, match="--var needs a folder"):
        manage.take_var(arguments)


def test_a_stamped_environment_is_not_installed_again(manage: ModuleType, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environment = folder / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(sys.executable)
    (environment / "requirements.sha256").write_text(manage.wanted_stamp())
    manage.prepare(environment)
    assert capsys.readouterr().out == ""


def test_the_stamp_changes_with_the_lock(manage: ModuleType, folder: Path) -> None:
    before = manage.wanted_stamp()
    other = folder / "requirements.lock"
    other.write_text(manage.LOCK.read_text() + "# changed\n")
    manage.LOCK = other
    assert manage.wanted_stamp() != before


def test_certificates_named_for_one_tool_are_named_for_all(manage: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in manage.CERTIFICATES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ours.pem")
    environ = manage.network_environment()
    assert (environ["SSL_CERT_FILE"], environ["PIP_CERT"]) == ("/etc/ours.pem", "/etc/ours.pem")


def test_an_index_configured_for_pip_is_used_by_uv_too(manage: ModuleType) -> None:
    pip = [sys.executable, "-c", "print(\"global.timeout='9'\\nglobal.index-url='https://mirror.example/simple'\")", "pip"]
    assert manage.uv_environment({}, pip)["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert manage.uv_environment({"UV_DEFAULT_INDEX": "https://own.example"}, pip)["UV_DEFAULT_INDEX"] == "https://own.example"
