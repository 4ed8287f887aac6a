"""ScriptedUpstream: `demo.upstream` in a process of its own, and its control routes as methods."""

import asyncio
import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from config.launch.embedded import dies_with_parent
from tests import ports, secrets

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Received:
    """One request that reached the upstream. `state`: running, done, cut, client_gone. Times in unix seconds.

    `headers` has the last of each name, `raw_headers` all in order. `is_whole`: the body came to its end. `answered_at` is when
    the head was sent, `ended_at` when the answer was done, cut or given up by the client.
    """

    method: str
    path: str
    query: str
    headers: dict[str, str] = field(repr=False)
    raw_headers: list[tuple[str, str]] = field(repr=False)
    body: bytes = field(repr=False)
    account: str | None
    token: str = field(repr=False)
    at: float
    state: str
    sent_events: int
    sent_bytes: int
    is_whole: bool
    scripted: bool
    status: int | None
    response_id: str | None
    answered_at: float | None
    ended_at: float | None
    socket: int | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedUpstream:
    """Started by `start`, on a free port of loopback. Raises RuntimeError when it does not come up.

    A refused control request fails the test that made it, with the upstream's words.
    """

    def __init__(self) -> None:
        self.port = ports.free()
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = httpx.Client(base_url=self.url, timeout=10, trust_env=False)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "demo.upstream:app", "--host", "127.0.0.1", "--port", str(self.port)]
        options = ["--no-access-log", "--log-level", "critical", "--timeout-graceful-shutdown", "1"]
        options += ["--ws", "websockets-sansio", "--ws-per-message-deflate", "false", "--ws-max-size", "67108864"]
        preparation = dies_with_parent(signal.SIGTERM)
        self._process = subprocess.Popen([*command, *options], cwd=ROOT, preexec_fn=preparation)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._http.get("/control/health").status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.03)
        raise RuntimeError("the scripted upstream did not start")

    def stop(self) -> None:
        self._http.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)

    def _post(self, name: str, value: dict[str, Any]) -> Any:
        answer = self._http.post(f"/control/{name}", json=value)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def script(self, *answers: dict[str, Any], repeat: int = 1, **match: str) -> None:
        """Queues answers (the fields of demo/upstream.py) for the requests that match (account, path, model, token, transport)."""
        self._post("script", {"answers": list(answers), "repeat": repeat, "match": match})

    def release(self, name: str) -> None:
        """Opens the gate that answers with `hold` wait at."""
        self._post("release", {"name": name})

    def reset(self, *, keep_accounts: bool = True) -> None:
        """Forgets scripts and received requests, opens every gate; accounts and tokens stay unless told otherwise."""
        self._post("reset", {"keep_accounts": keep_accounts})

    def mint(self, **fields: Any) -> dict[str, Any]:
        """A new ChatGPT account (or new tokens of a known one) as an auth.json; its tokens are registered as secrets."""
        made: dict[str, Any] = self._post("mint", fields)
        for name in ("access_token", "refresh_token", "id_token"):
            secrets.register(made["tokens"][name], name)
        return made

    def person(self, **fields: Any) -> None:
        """Who signs in next at the authorize page (account_id, user_id, email, plan)."""
        self._post("person", fields)

    def sign_in(self, url: str) -> str:
        """Opens an authorize URL as a browser would, and gives the address that it ends at; its code is registered as a secret."""
        answer = httpx.get(url, trust_env=False)
        assert answer.status_code == 302, answer.text
        back: str = answer.headers["location"]
        secrets.register(httpx.URL(back).params["code"], "authorization code")
        return back

    def approve(self, user_code: str, **fields: Any) -> None:
        """Enters a device's code, as a person (account_id, user_id, email, plan); `deny=True` refuses it."""
        self._post("approve", {"user_code": user_code, **fields})

    def windows(self, account_id: str, **fields: Any) -> None:
        self._post("windows", {"account_id": account_id, **fields})

    def revoke(self, *, account_id: str | None = None, token: str | None = None) -> None:
        self._post("revoke", {"account_id": account_id} if token is None else {"token": token})

    def expire(self, account_id: str, *, refresh: bool = False) -> None:
        """Ends the account's access tokens, or its refresh tokens, now."""
        self._post("expire", {"account_id": account_id, "refresh": refresh})

    def account(self, account_id: str) -> dict[str, Any]:
        """{"account_id", "refreshes", "short_percent", "week_percent"}"""
        accounts: list[dict[str, Any]] = self._http.get("/control/accounts").json()
        return next(one for one in accounts if one["account_id"] == account_id)

    def refreshes(self, account_id: str) -> int:
        return int(self.account(account_id)["refreshes"])

    def received(self, *, token: str | None = None, account: str | None = None, path: str | None = None) -> list[Received]:
        """What reached it, oldest first."""
        wanted = {"token": token, "account": account, "path": path}
        answer = self._http.get("/control/requests", params={name: value for name, value in wanted.items() if value is not None})
        assert answer.status_code == 200, answer.text
        return [_received(row) for row in answer.json()]

    async def wait_for(
        self,
        count: int,
        *,
        state: str | None = None,
        until: Callable[[Received], bool] = lambda received: True,
        seconds: float = 30.0,
        **wanted: str,
    ) -> list[Received]:
        """Waits until that many requests are there, in that state; `wanted` as in `received`. Fails when time is up."""
        deadline = time.monotonic() + seconds
        while True:
            rows = await asyncio.to_thread(lambda: self.received(**wanted))
            found = [row for row in rows if state in (None, row.state) and until(row)]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, f"{len(found)} of {count} requests after {seconds} s; all: {rows}"
            await asyncio.sleep(0.01)


def _received(row: dict[str, Any]) -> Received:
    pairs = [(name, value) for name, value in row["headers"]]
    return Received(**{**row, "headers": dict(pairs), "raw_headers": pairs, "body": base64.b64decode(row["body"])})
