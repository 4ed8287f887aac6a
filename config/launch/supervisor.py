"""Keeps the processes of a stack running: restarts what crashes, stops all in reverse order."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from config.launch import embedded

BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0)
CALM_SECONDS = 60.0
"""A child that ran this long begins its back-off anew."""
STOP_SECONDS = 15.0


@dataclass
class Child:
    """One process: its command, its log, and how often it has crashed in a row."""

    name: str
    command: list[str]
    log: Path
    environ: dict[str, str] = field(repr=False)
    process: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    started: float = 0.0
    crashes: int = 0
    due: float = 0.0

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


class Supervisor:
    """Started in order, watched, stopped in reverse.

    All from the main thread: the death signal is tied to the thread that forks.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.children: list[Child] = []
        self.servers: list[embedded.Server] = []
        self.stopping = False
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, name: str, command: list[str], environ: dict[str, str]) -> Child:
        child = Child(name, command, self.folder / f"{name}.log", environ)
        self.children.append(child)
        child.start()
        return child

    def catch_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop_soon)

    def _stop_soon(self, number: int, frame: object) -> None:
        # The first signal ends the watch; a start that is under way is left by the exception.
        if not self.stopping:
            self.stopping = True
            raise KeyboardInterrupt

    def watch(self) -> int:
        """Until a signal (0), or a server that cannot be replaced ends (1)."""
        try:
            while True:
                time.sleep(0.25)
                for server in self.servers:
                    if server.process.poll() is not None:
                        print(f"{server.name} ended with {server.process.returncode}; stopping.", file=sys.stderr, flush=True)
                        return 1
                for child in self.children:
                    self._revive(child)
        except KeyboardInterrupt:
            return 0

    def _revive(self, child: Child) -> None:
        if child.is_running():
            return
        now = time.monotonic()
        if child.due == 0.0:
            if now - child.started > CALM_SECONDS:
                child.crashes = 0
            pause = BACK_OFF_SECONDS[min(child.crashes, len(BACK_OFF_SECONDS) - 1)]
            child.crashes += 1
            child.due = now + pause
            code = child.process.returncode if child.process else None
            print(f"{child.name} ended with {code}; started again in {pause:g} s (see {child.log}).", file=sys.stderr, flush=True)
        elif now >= child.due:
            child.due = 0.0
            child.start()

    def stop(self) -> None:
        """Children in reverse order of their start, then the servers in reverse order."""
        self.stopping = True
        for child in reversed(self.children):
            if child.process is not None and child.is_running():
                child.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for child in reversed(self.children):
            if child.process is None:
                continue
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait(5)
        for server in reversed(self.servers):
            server.stop()
