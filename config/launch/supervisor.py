"""Keeps the processes of a stack running: restarts what crashes, stops all in reverse order."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from config.launch import embedded

BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
HURRY_SECONDS = 1.0
"""What a child gets for its last words when a second signal is heard: a web process ends its streams and settles them."""
CALM_SECONDS = 60.0
"""A child that ran this long begins its back-off anew."""
TOLD_LINES = 8
"""How much of a crashed child's log the terminal shows."""


@dataclass
class Child:
    """One process: its command, its log, and how often it has crashed in a row.

    `stage`: the highest stage is stopped first, the children of one stage together, within `patience_seconds`.
    """

    name: str
    command: list[str]
    log: Path
    environ: dict[str, str] = field(repr=False)
    stage: int
    patience_seconds: float
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    started: float = 0.0
    crashes: int = 0
    due: float | None = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.command,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=embedded.dies_with_parent(signal.SIGTERM),
                # A terminal's Ctrl-C goes to the launcher alone, which stops the children in order.
                process_group=0,
            )
        self.started = time.monotonic()

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def ask_to_stop(self) -> None:
        if self.process is not None and self.is_running():
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Kills what is left of it, the processes it started included."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)

    def last_lines(self) -> str:
        return "\n".join(f"    {line}" for line in self.log.read_text(errors="replace").splitlines()[-TOLD_LINES:])


@dataclass
class Served:
    """An embedded server, and how it is started again on the port that its clients know."""

    server: embedded.Server
    start: Callable[[int | None], embedded.Server] = field(repr=False)


class Supervisor:
    """Started in order, watched, stopped in reverse.

    All from the main thread: the death signal is tied to the thread that forks.
    """

    def __init__(self, folder: Path) -> None:
        """`folder` takes the logs; those of the run before are kept as `*.log.1`."""
        self.folder = folder
        self.children: list[Child] = []
        self.servers: list[Served] = []
        self.changed: Callable[[], None] = lambda: None
        """Called when a process was replaced."""
        self._stopping = False
        self._hurry = False
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for log in folder.glob("*.log"):
            log.rename(log.with_name(f"{log.name}.1"))

    def serve(self, start: Callable[[int | None], embedded.Server]) -> str:
        """Starts an embedded server (`start` takes its port, None for a free one); returns its URL."""
        server = start(None)
        self.servers.append(Served(server, start))
        return server.url

    def add(self, name: str, command: list[str], environ: dict[str, str], *, stage: int, patience_seconds: float = 10.0) -> Child:
        child = Child(name, command, self.folder / f"{name}.log", environ, stage, patience_seconds)
        self.children.append(child)
        child.start()
        return child

    def processes(self) -> dict[str, int]:
        """Name -> pid of everything that was started."""
        servers = {served.server.name: served.server.process.pid for served in self.servers}
        return servers | {child.name: child.process.pid for child in self.children if child.process is not None}

    @contextlib.contextmanager
    def catching_signals(self) -> Iterator[None]:
        """The first signal raises KeyboardInterrupt where the launcher is; one that comes while it stops cuts what still runs."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._stopping:
            self._hurry = True
            return
        self._stopping = True
        raise KeyboardInterrupt

    def watch(self) -> int:
        """Until a signal (0), or an embedded server that cannot be started again (1)."""
        try:
            while True:
                time.sleep(0.25)
                for served in self.servers:
                    if served.server.process.poll() is not None:
                        self._serve_again(served)
                for child in self.children:
                    if not child.is_running():
                        self._revive(child)
        except KeyboardInterrupt:
            return 0
        except embedded.CannotStart as error:
            print(f"{error} Stopping.", file=sys.stderr, flush=True)
            return 1

    def _serve_again(self, served: Served) -> None:
        ended = served.server
        print(f"{ended.name} ended with {ended.process.returncode}; starting it again.", file=sys.stderr, flush=True)
        served.server = served.start(ended.port)
        self.changed()

    def _revive(self, child: Child) -> None:
        now = time.monotonic()
        if child.due is None:
            if now - child.started > CALM_SECONDS:
                child.crashes = 0
            pause = BACK_OFF_SECONDS[min(child.crashes, len(BACK_OFF_SECONDS) - 1)]
            child.crashes += 1
            child.due = now + pause
            code = child.process.returncode if child.process else None
            print(f"{child.name} ended with {code}; started again in {pause:g} s. {child.log} ends with", file=sys.stderr)
            print(child.last_lines(), file=sys.stderr, flush=True)
            child.end()
        elif now >= child.due:
            child.due = None
            child.start()
            self.changed()

    def stop(self) -> None:
        """Children stage by stage, the highest first; then the servers in reverse order."""
        self._stopping = True
        for stage in sorted({child.stage for child in self.children}, reverse=True):
            self._stop_together([child for child in self.children if child.stage == stage])
        for served in reversed(self.servers):
            served.server.stop()

    def _stop_together(self, group: list[Child]) -> None:
        """Asked once, and once more when somebody is in a hurry; then killed."""
        for child in group:
            child.ask_to_stop()
        asked, was_in_hurry = time.monotonic(), self._hurry
        hurried = asked
        while any(child.is_running() and time.monotonic() < asked + child.patience_seconds for child in group):
            if self._hurry and not was_in_hurry:
                hurried, was_in_hurry = time.monotonic(), True
                for child in group:
                    child.ask_to_stop()
            if was_in_hurry and time.monotonic() > hurried + HURRY_SECONDS:
                break
            time.sleep(0.02)
        for child in group:
            child.end()
