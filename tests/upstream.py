"""ScriptedUpstream: `demo.upstream` in a process of its own, and its control routes as methods."""

import base64
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests import secrets

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Received:
    """One request that reached the upstream. `state`: running, done, cut, client_gone."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes = field(repr=False)
    account: str | None
    token: str = field(repr=False)
    at: float
    state: str
    sent_events: int


class ScriptedUpstream:
    """Started by `start`, on a free port of loopback. Raises RuntimeError when it does not come up."""

    def __init__(self) -> None:
        from config.launch.embedded import free_port

        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._http = httpx.Client(base_url=self.url, timeout=10)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "demo.upstream:app", "--host", "127.0.0.1", "--port", str(self.port)]
        self._process = subprocess.Popen([*command, "--no-access-log", "--log-level", "critical"], cwd=ROOT)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
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
        """Queues answers for the requests that match (account, path, model, token)."""
        self._post("script", {"answers": list(answers), "repeat": repeat, "match": match})

    def reset(self) -> None:
        """Forgets scripts and received requests; accounts and tokens stay."""
        self._post("reset", {"keep_accounts": True})

    def mint(self, **fields: Any) -> dict[str, Any]:
        """A new ChatGPT account (or new tokens of a known one) as an auth.json; its tokens are registered as secrets."""
        made: dict[str, Any] = self._post("mint", fields)
        for name in ("access_token", "refresh_token", "id_token"):
            secrets.register(made["tokens"][name], name)
        return made

    def windows(self, account_id: str, **fields: Any) -> None:
        self._post("windows", {"account_id": account_id, **fields})

    def revoke(self, *, account_id: str | None = None, token: str | None = None) -> None:
        self._post("revoke", {"account_id": account_id} if token is None else {"token": token})

    def expire(self, account_id: str) -> None:
        self._post("expire", {"account_id": account_id})

    def refreshes(self, account_id: str) -> int:
        accounts = self._http.get("/control/accounts").json()
        return int(next(one["refreshes"] for one in accounts if one["account_id"] == account_id))

    def received(self, *, token: str | None = None, account: str | None = None, path: str | None = None) -> list[Received]:
        """What reached it, oldest first."""
        rows = self._http.get("/control/requests").json()
        found = []
        for row in rows:
            wanted = ((token, row["token"]), (account, row["account"]), (path, row["path"]))
            if all(want is None or want == value for want, value in wanted):
                found.append(Received(**{**row, "headers": dict(row["headers"]), "body": base64.b64decode(row["body"])}))
        return found
