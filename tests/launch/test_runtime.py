"""How a command finds the stack that runs beside it."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from config.launch import folders, runtime

SETTINGS = {
    "DATABASE_URL": "postgresql://stack/db",
    "REDIS_URL": "redis://stack",
    "SECRET_KEY": "s" * 40,
    "ENCRYPTION_KEYS": "k1:x",
    "KEY_PEPPERS": "p1:y",
}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*runtime.NEEDED, "WEIR_VAR", "DJANGO_SETTINGS_MODULE"):
        # setenv first, so that what adopt() puts there is taken back.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default data folder of this test, with nothing in it."""
    monkeypatch.setattr(folders, "default_var", lambda: folder)
    return folder


@contextmanager
def stack(var: Path, **settings: str) -> Iterator[None]:
    folders.make(var)
    with runtime.alone_in(var):
        runtime.write(var, environ={**SETTINGS, **settings}, base_url="http://127.0.0.1:8000", processes={"web-0": 7})
        yield
        runtime.remove(var)


def test_a_running_stack_is_described_for_its_user_only(folder: Path) -> None:
    with stack(folder, HOME="/home/ada", AWS_SECRET_ACCESS_KEY="not ours", HOLD_DEADLINE_SECONDS="5"):
        assert stat.S_IMODE((folder / "run.json").stat().st_mode) == 0o600
        found = runtime.read(folder)
        assert found is not None
        assert found.pid == os.getpid()
        assert found.processes == {"web-0": 7}
        assert found.environ == {**SETTINGS, "HOLD_DEADLINE_SECONDS": "5"}
        assert SETTINGS["SECRET_KEY"] not in repr(found)
    assert runtime.read(folder) is None


def test_what_a_killed_stack_left_is_not_believed(folder: Path) -> None:
    with stack(folder):
        left = (folder / "run.json").read_text()
    (folder / "run.json").write_text(left)
    assert json.loads(left)["pid"] == os.getpid()
    assert runtime.read(folder) is None


def test_a_second_stack_in_one_folder_is_refused(folder: Path) -> None:
    with stack(folder), pytest.raises(runtime.InUse, match=f"another run is using {folder}"), runtime.alone_in(folder):
        pass
    with runtime.alone_in(folder):
        pass


@pytest.mark.parametrize("command", ["demo", "up"])
def test_the_one_default_stack_is_found(default: Path, command: str) -> None:
    with stack(default / command):
        runtime.adopt(join=True)
    assert {name: os.environ[name] for name in SETTINGS} == SETTINGS


def test_two_default_stacks_have_to_be_told_apart(default: Path) -> None:
    with ExitStack() as both:
        both.enter_context(stack(default / "demo"))
        both.enter_context(stack(default / "up"))
        with pytest.raises(runtime.NothingRuns) as refused:
            runtime.adopt(join=True)
        assert str(refused.value) == f"two stacks run. Name one: --var {default / 'demo'} or --var {default / 'up'}"
        assert "DATABASE_URL" not in os.environ


def test_without_a_stack_what_is_missing_is_named(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://mine/db")
    with pytest.raises(runtime.NothingRuns) as refused:
        runtime.adopt(join=True)
    assert str(refused.value).endswith("or set REDIS_URL, SECRET_KEY, ENCRYPTION_KEYS, KEY_PEPPERS.")


def test_a_named_stack_goes_before_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "of another")
    monkeypatch.setenv("WEIR_VAR", str(folder))
    with stack(folder):
        runtime.adopt(join=True)
    assert {name: os.environ[name] for name in SETTINGS} == SETTINGS


def test_a_complete_environment_goes_before_a_stack_that_nobody_named(default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.setenv(name, "of another")
    with stack(default / "up"):
        runtime.adopt(join=True)
    assert {os.environ[name] for name in SETTINGS} == {"of another"}


def test_a_serving_process_does_not_slip_into_somebodys_stack(default: Path) -> None:
    with stack(default / "up"), pytest.raises(runtime.NothingRuns, match="set DATABASE_URL, REDIS_URL, SECRET_KEY"):
        runtime.adopt(join=False)
