"""The real Codex CLI, unmodified: pinned by package-lock.json, installed once into the data folder, driven by `codex exec`."""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.launch import folders
from tests.clients import node
from tests.clients.policy import not_run

HERE = Path(__file__).resolve().parent
FILES = ("package.json", "package-lock.json", ".npmrc")
ACCOUNT_ID = "acct-of-the-client"
"""The account that a signed-in client thinks it has; it says so with every request."""
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
    def session(self) -> str:
        """The id that `exec resume` takes."""
        return str(next(event["thread_id"] for event in self.events if event["type"] == "thread.started"))

    @property
    def notices(self) -> list[str]:
        """What was told beside the turn: "Reconnecting… 1/5", a fallback to HTTPS."""
        told = [event["message"] for event in self.events if event["type"] == "error"]
        return [str(text) for text in (*told, *(item["message"] for item in self.items("error")))]

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


@dataclass(frozen=True, slots=True)
class Codex:
    """A developer's Codex: a home of its own below `folder`, set up as the page of a key says.

    `base_url` is …/backend-api/codex or …/v1. `provider`: named "OpenAI" it lets the server compact, by another name it does it
    itself. `compact_at`: tokens above which it compacts. `authority`: with the certificate of an authority (PEM) it is signed in to
    ChatGPT instead, with the key for its token; `base_url` must then be …/backend-api/codex over https.
    """

    base_url: str
    key: str = field(repr=False)
    folder: Path
    model: str = "gpt-5.4"
    provider: str = "OpenAI"
    websockets: bool = False
    compact_at: int | None = None
    authority: Path | None = None

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def run(self, prompt: str, *, resume: str = "", timeout: float = 90) -> CodexRun:
        """`codex exec`, or `exec resume` of that session. Blocks. Raises subprocess.TimeoutExpired."""
        done = subprocess.run(
            self.command(prompt, resume=resume), timeout=timeout, check=False, capture_output=True, **self.options()
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return CodexRun(done.returncode, events, done.stderr)

    def command(self, prompt: str, *, resume: str = "") -> list[str]:
        return [*command(), *FLAGS, *(("resume", resume) if resume else ()), prompt]

    def options(self) -> dict[str, Any]:
        """For subprocess; writes the configuration. Nothing of the machine's settings: no other home, key or proxy."""
        work = self.folder / "work"
        self.home.mkdir(parents=True, exist_ok=True)
        work.mkdir(exist_ok=True)
        (self.home / "config.toml").write_text(self.config())
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "CODEX_HOME": str(self.home),
            "RUST_LOG": "error",
            "TZ": "UTC",
        }
        if self.authority is None:
            environ["WEIR_KEY"] = self.key
        else:
            environ["CODEX_CA_CERTIFICATE"] = str(self.authority)
            (self.home / "auth.json").write_text(json.dumps(self.sign_in()))
        return {"cwd": work, "env": environ, "stdin": subprocess.DEVNULL, "text": True}

    def sign_in(self) -> dict[str, Any]:
        """An auth.json whose access token is the key. The client reads the claims of the other one only."""
        auth = {"chatgpt_account_id": ACCOUNT_ID, "chatgpt_plan_type": "team", "chatgpt_user_id": "user-1", "user_id": "user-1"}
        claims = {"email": "dev@example.com", "exp": int(time.time()) + 86_400, "https://api.openai.com/auth": auth}
        parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims)]
        tokens = {"id_token": ".".join([*parts, "unsigned"]), "access_token": self.key, "refresh_token": "rt-none"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": {**tokens, "account_id": ACCOUNT_ID}, "last_refresh": now}

    def config(self) -> str:
        lines = [f'model = "{self.model}"', 'model_provider = "weir"']
        if self.authority is not None:
            lines.append(f'chatgpt_base_url = "{self.base_url.removesuffix("/codex")}"')
        if self.compact_at is not None:
            lines.append(f"model_auto_compact_token_limit = {self.compact_at}")
        lines += [
            "",
            "[model_providers.weir]",
            f'name = "{self.provider}"',
            f'base_url = "{self.base_url}"',
            'wire_api = "responses"',
            'env_key = "WEIR_KEY"' if self.authority is None else "requires_openai_auth = true",
            *(["supports_websockets = true"] if self.websockets else []),
        ]
        return "\n".join(lines) + "\n"

    def log(self, session: str) -> list[dict[str, Any]]:
        """The entries of a session's log, oldest first."""
        [found] = self.home.glob(f"sessions/**/*{session}.jsonl")
        return [json.loads(line) for line in found.read_text().splitlines()]

    def rate_limits(self, session: str) -> list[dict[str, Any]]:
        """The windows that `/status` shows, as they came with each answer: {"primary", "secondary", "credits", "plan_type"}."""
        told = [entry["payload"] for entry in self.log(session) if entry["type"] == "event_msg"]
        return [one["rate_limits"] for one in told if one["type"] == "token_count" and one.get("rate_limits")]


def run(prompt: str, *, base_url: str, key: str, folder: Path, model: str = "gpt-5.4", timeout: float = 90) -> CodexRun:
    """One `codex exec` with a home of its own below `folder`. Blocks. Raises subprocess.TimeoutExpired."""
    return Codex(base_url, key, folder, model).run(prompt, timeout=timeout)
