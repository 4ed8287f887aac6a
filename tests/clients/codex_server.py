"""Codex as its editors and its terminal screen run it: one process, many turns, asked by JSON-RPC over its standard streams."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.clients import codex
from tests.clients.codex import Codex


@dataclass(frozen=True, slots=True)
class Turn:
    """How a turn ended: completed or failed. `told`: its notifications, as (method, parameters)."""

    status: str
    error: str
    told: list[tuple[str, dict[str, Any]]] = field(repr=False)

    @property
    def text(self) -> str:
        """What the agent said last; "" if it said nothing."""
        items = [params["item"] for method, params in self.told if method == "item/completed"]
        return next((str(item["text"]) for item in reversed(items) if item["type"] == "agentMessage"), "")

    @property
    def notices(self) -> list[str]:
        """Errors that were shown on the way: "Reconnecting… 1/5"."""
        return [str(params["error"]["message"]) for method, params in self.told if method == "error"]


class CodexServer:
    """`codex app-server`. Every method blocks; the process is killed when its time is up, on which they raise EOFError."""

    def __init__(self, process: "subprocess.Popen[str]", folder: str) -> None:
        self._process = process
        self._folder = folder
        self._number = 0
        self._thread = ""
        self.told: list[tuple[str, dict[str, Any]]] = []

    def call(self, method: str, **params: Any) -> Any:
        """The result of a request. Raises RuntimeError with the error it was answered with."""
        self._number += 1
        self._send({"id": self._number, "method": method, **({"params": params} if params else {})})
        while True:
            message = self._read()
            if message.get("id") == self._number and "method" not in message:
                if "error" in message:
                    raise RuntimeError(message["error"])
                return message["result"]

    def start(self) -> None:
        self.call("initialize", clientInfo={"name": "weir-tests", "version": "1"})
        self._send({"method": "initialized"})

    def turn(self, text: str) -> Turn:
        """A turn of the one conversation, which the first begins."""
        if not self._thread:
            options = {"cwd": self._folder, "approvalPolicy": "never", "sandbox": "danger-full-access"}
            self._thread = self.call("thread/start", **options)["thread"]["id"]
        begun = len(self.told)
        self.call("turn/start", threadId=self._thread, input=[{"type": "text", "text": text}])
        while not any(method == "turn/completed" for method, _ in self.told[begun:]):
            self._read()
        told = self.told[begun:]
        ended = next(params["turn"] for method, params in told if method == "turn/completed")
        return Turn(ended["status"], str((ended.get("error") or {}).get("message") or ""), told)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError("codex app-server has ended")
        message: dict[str, Any] = json.loads(line)
        if "method" in message and "id" not in message:
            self.told.append((message["method"], message.get("params") or {}))
        return message


@contextlib.contextmanager
def running(client: Codex, *, seconds: float = 60) -> Iterator[CodexServer]:
    """A server for that client; killed at the end, or when it is older than that."""
    options = {**client.options(), "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*codex.command(), "app-server"], start_new_session=True, **options)
    limit = threading.Timer(seconds, process.kill)
    limit.start()
    try:
        server = CodexServer(process, str(options["cwd"]))
        server.start()
        yield server
    finally:
        limit.cancel()
        # Its standard input ends, on which it ends.
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
