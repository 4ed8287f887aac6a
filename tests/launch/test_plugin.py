"""The services of a test run, seen from a run of its own."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from config.launch import embedded, folders
from tests import plugin
from tests.launch import processes

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
ASKED = "tests/launch/test_locks.py"
NOTING = """
import os, pathlib, time
import pytest

def note(name):
    with (pathlib.Path(__file__).parent / "notes").open("a") as notes:
        notes.write(f"{name} begins {os.environ['PYTEST_XDIST_WORKER']} {os.environ['REDIS_URL']}\\n")
        notes.flush()
        time.sleep(0.2)
        notes.write(f"{name} ends\\n")
"""


@pytest.fixture
def fresh(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """The environment of a run that starts everything itself, below a temporary folder of its own."""
    ours = {plugin.OWN, plugin.VALKEYS, plugin.WORKER, "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST"}
    return {**{name: text for name, text in environ.items() if name not in ours}, "TMPDIR": str(folder)}


@pytest.fixture
def given(folder: Path) -> Iterator[embedded.Server]:
    server = embedded.start_valkey(folder, "open-sesame", log=folder / "given.log", durable=False)
    yield server
    server.stop()


def run(environ: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*PYTEST, ASKED, *arguments], env=environ, cwd=folders.PROJECT, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_run_starts_its_own_services_and_leaves_nothing(fresh: dict[str, str], folder: Path) -> None:
    done = run(fresh)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(folder.glob(f"{plugin.PREFIX}*")) == []


def test_a_redis_that_is_given_is_marked_and_used_again(fresh: dict[str, str], given: embedded.Server) -> None:
    with redis.Redis.from_url(given.url) as client:
        assert run({**fresh, "REDIS_URL": given.url}).returncode == 0
        assert client.exists(plugin.MARKER) == 1
        client.set("left by a test", 1)
        assert run({**fresh, "REDIS_URL": given.url}).returncode == 0


def test_a_redis_that_holds_somebodys_keys_is_refused_untouched(fresh: dict[str, str], given: embedded.Server) -> None:
    with redis.Redis.from_url(given.url) as client:
        client.set("precious", 1)
        done = run({**fresh, "REDIS_URL": given.url})
        assert done.returncode == pytest.ExitCode.USAGE_ERROR
        assert "REDIS_URL names a server that holds keys." in done.stderr
        assert client.keys("*") == [b"precious"]


def test_several_workers_do_not_share_a_redis_that_is_given(fresh: dict[str, str], given: embedded.Server) -> None:
    done = run({**fresh, "REDIS_URL": given.url}, "-n", "2")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "with several workers leave DATABASE_URL and REDIS_URL unset" in done.stderr


def test_a_run_that_was_killed_leaves_no_process_and_the_next_removes_its_folder(fresh: dict[str, str], folder: Path) -> None:
    command = [*PYTEST, "--collect-only", "-p", "tests.launch.lingering", ASKED]
    killed = subprocess.Popen(command, env=fresh, cwd=folders.PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (folder / "lingering").exists():
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.02)
    servers = processes.descendants(killed.pid)
    assert len(servers) >= 2
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(5)
    assert processes.still_alive(servers, within=10) == []
    assert len(list(folder.glob(f"{plugin.PREFIX}*"))) == 1
    assert run(fresh).returncode == 0
    assert list(folder.glob(f"{plugin.PREFIX}*")) == []


def notes_of_two_workers(environ: dict[str, str], folder: Path) -> list[list[str]]:
    """Of the tests in the folder, as `manage.py test` spreads them: what each has noted."""
    settings = ["-c", str(folders.PROJECT / "pyproject.toml"), "--rootdir", str(folder)]
    command = [*PYTEST, *settings, "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", str(folder)]
    done = subprocess.run(command, env=environ, cwd=folders.PROJECT, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.split() for line in next(folder.rglob("notes")).read_text().splitlines()]


def test_one_worker_begins_with_the_flows_and_is_helped_at_the_end(fresh: dict[str, str], folder: Path) -> None:
    """What is no flow is never its own, also when it has run all of them."""
    place = folder / "tests" / "flows"
    place.mkdir(parents=True)
    for at in range(3):
        (place / f"test_flow_{at}.py").write_text(NOTING + f"def test_it():\n    note('flow-{at}')\n")
        body = "".join(f"def test_{number}():\n    note('unit-{at}')\n" for number in range(6))
        (place / f"test_{('bad_input', 'doors', 'routes')[at]}.py").write_text(NOTING + body)
    notes = notes_of_two_workers(fresh, folder)
    began = [(note[0], note[2]) for note in notes if note[1] == "begins"]
    assert len(began) == 3 + 3 * 6
    assert {worker for name, worker in began if name.startswith("flow")} == {"gw1"}
    assert {worker for name, worker in began if name.startswith("unit")} == {"gw0"}


def test_workers_have_servers_of_their_own_and_let_others_be_alone(fresh: dict[str, str], folder: Path) -> None:
    """A test that measures has no other beside it, and the last one runs when all others have."""
    for number in range(3):
        tests = "".join(
            f"{mark}\ndef test_{name}_{at}():\n    note('{name}')\n"
            for at in range(3)
            for mark, name in (("", f"file-{number}".replace("-", "_")), ("@pytest.mark.alone", f"alone_{number}"))
        )
        (folder / f"test_{number}.py").write_text(NOTING + tests)
    (folder / "test_z.py").write_text(NOTING + "@pytest.mark.last\ndef test_last():\n    note('last')\n")
    notes = notes_of_two_workers(fresh, folder)
    assert len(notes) == 2 * (3 * 6 + 1)
    assert (
        len({(note[2], note[3]) for note in notes if note[1] == "begins"}) == len({note[3] for note in notes if len(note) > 3}) == 2
    )
    beside = [first[0] for first, second in itertools.pairwise(notes) if first[1] == second[1] == "begins"]
    assert beside, "no two tests ran beside each other"
    for first, second in itertools.pairwise(notes):
        if first[1] == "begins" and "alone" in first[0] + second[0]:
            assert second == [first[0], "ends"]
    assert [note[0] for note in notes[-2:]] == ["last", "last"]
    assert list(folder.glob(f"{plugin.PREFIX}*")) == []
