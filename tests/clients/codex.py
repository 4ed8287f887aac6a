"""The real Codex CLI, unmodified: pinned by package-lock.json, installed once into the data folder, driven by `codex exec`."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.launch import folders
from tests.clients import node
from tests.clients.policy import not_run

HERE = Path(__file__).resolve().parent
FILES = ("package.json", "package-lock.json", ".npmrc")
FLAGS = ("exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")


@dataclass(frozen=True, slots=True)
class CodexRun:
    """One `codex exec`: how it ended, and its JSON events."""

    exit_code: int
    events: list[dict[str, Any]]
    stderr: str = field(repr=False)

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Completed items of a kind: agent_message, command_execution, error."""
        return [event["item"] for event in self.events if event["type"] == "item.completed" and event["item"]["type"] == kind]

    @property
    def text(self) -> str:
        """What the agent said last; "" if it said nothing."""
        said = self.items("agent_message")
        return str(said[-1]["text"]) if said else ""

    @property
    def usage(self) -> dict[str, int]:
        """The turn's tokens, summed over its requests, under the client's names."""
        return dict(next(event["usage"] for event in reversed(self.events) if event["type"] == "turn.completed"))

    @property
    def failure(self) -> str:
        """The message of the failed turn; "" if none failed."""
        failed = [event["error"]["message"] for event in self.events if event["type"] == "turn.failed"]
        return str(failed[-1]) if failed else ""


def install_folder() -> Path:
    """Named by the lock, and kept between runs: the package is 400 MB unpacked."""
    mark = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
    return folders.default_var() / "clients" / mark


@contextlib.contextmanager
def installing() -> Iterator[Path]:
    """The install folder, for one process at a time. Ends the test if it cannot be written."""
    folder = install_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        not_run(f"the data folder cannot be written: {error}")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def command() -> list[str]:
    """What starts Codex; installs it at the first call. Ends the test if it cannot be had."""
    with installing() as folder:
        found = node.find(folder)
        script = folder / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
        if not (folder / "complete").exists():
            for name in FILES:
                shutil.copy(HERE / name, folder / name)
            # npm's own cache stays out of the home folder; a package that failed half-way is fetched anew.
            store = folder / "npm-cache"
            options = ["ci", f"--cache={store}", "--loglevel=error"]
            node.run([*found.npm, *options], folder, "npm ci failed", path=str(Path(found.node).parent))
            shutil.rmtree(store, ignore_errors=True)
            (folder / "complete").touch()
    return [found.node, str(script)]


def run(prompt: str, *, base_url: str, key: str, folder: Path, model: str = "gpt-5.4", timeout: float = 90) -> CodexRun:
    """`codex exec` with a home of its own below `folder`, against `base_url` (…/backend-api/codex or …/v1) with `key`.

    Blocks. The configuration is the one that a developer is given. Raises subprocess.TimeoutExpired.
    """
    start = command()
    home, work = folder / "home", folder / "work"
    home.mkdir(parents=True, exist_ok=True)
    work.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        f"""model = "{model}"
model_provider = "weir"

[model_providers.weir]
name = "OpenAI"
base_url = "{base_url}"
wire_api = "responses"
env_key = "WEIR_KEY"
"""
    )
    # Nothing of the machine's settings: no other home, key or proxy.
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "WEIR_KEY": key, "RUST_LOG": "error"}
    options: dict[str, Any] = {"cwd": work, "env": environ, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run([*start, *FLAGS, prompt], timeout=timeout, check=False, **options)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return CodexRun(done.returncode, events, done.stderr)
