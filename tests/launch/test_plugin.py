"""The services of a test run, seen from a run of its own."""

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
