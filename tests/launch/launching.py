"""Runs `manage.py demo` and `up` as somebody at a shell does."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from config.launch import folders, runtime
from tests.launch import processes

MANAGE = [sys.executable, str(folders.PROJECT / "manage.py")]


def run(*arguments: str, environ: dict[str, str], timeout: float = 60) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*MANAGE, *arguments], env=environ, capture_output=True, text=True, check=False, timeout=timeout)


@dataclass
class Stack:
    """A launcher that runs in a process group of its own, as under a shell."""

    var: Path
    port: int
    process: "subprocess.Popen[bytes]"
    output: Path

    def wait_until(self, happened: Callable[[], bool], *, within: float = 150) -> None:
        """A start takes 20 s alone and a minute beside the other workers' tests."""
        deadline = time.monotonic() + within
        while not happened():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def end(self) -> None:
        """Whatever state it is in: kills the launcher and waits for what ends with it, for they write to its folder until then."""
        everything = self.everything()
        self.process.kill()
        self.process.wait()
        left = processes.still_alive(everything, within=60)
        assert left == [], left

    def everything(self) -> list[int]:
        return [self.process.pid, *processes.descendants(self.process.pid)]

    def running(self) -> runtime.Running:
        found = runtime.read(self.var)
        assert found is not None
        return found
