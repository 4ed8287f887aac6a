"""What the supervisor does with processes that crash, linger and stop."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.launch import embedded, supervisor
from config.launch.supervisor import Supervisor
from tests.launch import processes

SHELL = ["/bin/sh", "-c"]
# Says when it is told to stop, and takes a moment over it.
SLOWLY = "trap 'sleep 0.2; echo stopped $NAME >> {out}; exit 0' TERM; echo ready; while :; do sleep 0.02; done"


@pytest.fixture
def running(folder: Path) -> Iterator[Supervisor]:
    made = Supervisor(folder / "log")
    yield made
    made.stop()


def until(condition: Callable[[], bool], *, within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def watch_for(running: Supervisor, seconds: float) -> int:
    """Watches until a signal that comes after `seconds`."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    with running.catching_signals():
        timer.start()
        code = running.watch()
    timer.join()
    return code


def test_a_crashed_child_is_started_again_after_a_growing_pause(
    running: Supervisor, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "BACK_OFF_SECONDS", (0.1, 0.6))
    child = running.add("fragile", [*SHELL, "date +%s.%N; echo because >&2; exit 3"], {}, stage=1)
    replaced: list[int] = []
    running.changed = lambda: replaced.append(len(replaced))
    assert watch_for(running, 2.2) == 0
    starts = [float(line) for line in child.log.read_text().splitlines() if line != "because"]
    assert len(starts) == 3
    assert starts[1] - starts[0] >= 0.1
    assert starts[2] - starts[1] >= 0.6
    assert len(replaced) == 2
    told = capfd.readouterr().err
    assert told.startswith(f"fragile ended with 3; started again in 0.1 s. {child.log} ends with\n")
    assert "    because\n" in told


@pytest.mark.alone
def test_stages_stop_from_the_highest_down_and_the_children_of_one_together(running: Supervisor, folder: Path) -> None:
    out = folder / "out"
    script = SLOWLY.format(out=out)
    children = [
        running.add(name, [*SHELL, script], {"NAME": name, "PATH": os.environ["PATH"]}, stage=stage)
        for name, stage in (("upstream", 1), ("web-0", 3), ("ledger", 2), ("web-1", 3))
    ]
    assert until(lambda: all(child.log.read_text() == "ready\n" for child in children))
    started = time.monotonic()
    running.stop()
    took = time.monotonic() - started
    lines = out.read_text().splitlines()
    assert sorted(lines[:2]) == ["stopped web-0", "stopped web-1"]
    assert lines[2:] == ["stopped ledger", "stopped upstream"]
    assert 0.6 <= took < 2
    assert [child.is_running() for child in children] == [False] * 4


def test_a_child_that_outlives_its_patience_is_killed_with_what_it_started(running: Supervisor, folder: Path) -> None:
    pidfile = folder / "grandchild"
    script = f"trap '' TERM; sleep 60 & echo $! > {pidfile}; while :; do sleep 0.02; done"
    child = running.add("deaf", [*SHELL, script], {"PATH": os.environ["PATH"]}, stage=1, patience_seconds=0.2)
    assert until(lambda: pidfile.exists() and pidfile.read_text().endswith("\n"))
    grandchild = int(pidfile.read_text())
    running.stop()
    assert child.process is not None
    assert child.process.returncode == -signal.SIGKILL
    assert processes.still_alive([grandchild], within=2) == []


@pytest.mark.alone
def test_a_second_signal_cuts_what_takes_its_time(running: Supervisor) -> None:
    child = running.add(
        "slow", [*SHELL, "trap '' TERM; echo ready; while :; do sleep 0.02; done"], {"PATH": os.environ["PATH"]}, stage=1
    )
    assert until(lambda: child.log.read_text() == "ready\n")
    second = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with running.catching_signals():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        second.start()
        started = time.monotonic()
        running.stop()
        assert time.monotonic() - started < 2
    second.join()
    assert not child.is_running()


def test_a_second_signal_is_passed_on_for_last_words(running: Supervisor) -> None:
    """A web process ends its streams on it, and settles them."""
    script = "n=0; trap 'n=$((n+1)); [ $n -lt 2 ] || { echo cut; exit 0; }' TERM; echo ready; while :; do sleep 0.02; done"
    child = running.add("web-0", [*SHELL, script], {"PATH": os.environ["PATH"]}, stage=1)
    assert until(lambda: child.log.read_text() == "ready\n")
    second = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    with running.catching_signals():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        second.start()
        running.stop()
    second.join()
    assert child.log.read_text() == "ready\ncut\n"
    assert child.process is not None
    assert child.process.returncode == 0


def test_a_lost_server_is_started_again_on_its_port(running: Supervisor, folder: Path) -> None:
    url = running.serve(lambda port: embedded.start_valkey(folder, "secret", log=folder / "valkey.log", port=port))
    first = running.servers[0].server
    first.process.kill()
    assert watch_for(running, 1.0) == 0
    second = running.servers[0].server
    assert second.url == url
    assert second.process.pid != first.process.pid
    assert second.process.poll() is None


def test_a_server_that_cannot_be_started_again_ends_the_stack(running: Supervisor, folder: Path) -> None:
    def start(port: int | None) -> embedded.Server:
        if port is not None:
            raise embedded.CannotStart("gone for good.")
        return embedded.start_valkey(folder, "secret", log=folder / "valkey.log")

    running.serve(start)
    running.servers[0].server.process.kill()
    with running.catching_signals():
        assert running.watch() == 1


def test_logs_of_the_run_before_are_kept_beside(folder: Path) -> None:
    (folder / "log").mkdir()
    (folder / "log" / "web-0.log").write_text("before\n")
    running = Supervisor(folder / "log")
    running.add("web-0", [*SHELL, "echo now"], {}, stage=1)
    assert until(lambda: (folder / "log" / "web-0.log").read_text() == "now\n")
    running.stop()
    assert (folder / "log" / "web-0.log.1").read_text() == "before\n"


LAUNCHER = """
    import sys, time
    from pathlib import Path
    from config.launch.supervisor import Supervisor
    supervisor = Supervisor(Path(sys.argv[1]))
    child = supervisor.add("child", ["/bin/sh", "-c", "echo ready; exec sleep 60"], {}, stage=1)
    print(child.process.pid, flush=True)
    time.sleep(60)
"""


def test_a_killed_launcher_takes_its_children_along(folder: Path) -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), str(folder / "log")], stdout=subprocess.PIPE, text=True
    )
    assert launcher.stdout is not None
    child = int(launcher.stdout.readline())
    assert until(lambda: (folder / "log" / "child.log").read_text() == "ready\n")
    launcher.kill()
    launcher.wait(5)
    launcher.stdout.close()
    assert processes.still_alive([child], within=5) == []
