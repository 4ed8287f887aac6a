"""The whole product on a PostgreSQL and a Valkey of its own, which can be killed, and clients that go on asking meanwhile."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from config.launch import embedded, folders, secrets
from tests.flows import stack as processes
from tests.flows.tenants import body, cost
from tests.upstream import ScriptedUpstream

LANES = 12
USAGE = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
COST = cost(input=1000, output=200)
ANSWER = {"event_delay": 0.05, "deltas": 16, "usage": USAGE}
"""A stream of about a second."""
RESPONSE_ID = re.compile(rb'"id":\s*"(resp_[^"]+)"')
QUIET_SECONDS = 40.0


@dataclass
class Agent:
    """`tests.flows.chaos_agent`, asked in lines."""

    environ: dict[str, str] = field(repr=False)
    log: Path

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.flows.chaos_agent"],
                cwd=processes.ROOT,
                env=self.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
            )

    def ask(self, call: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": call, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            assert line, f"the agent ended:\n{self.log.read_text(errors='replace')[-3000:]}"
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if "is" in answer or "error" in answer:
                break
        assert "error" not in answer, (call, answer)
        return answer["is"]

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Chaos:
    """Two web processes, a ledger, and servers that are nobody else's. `worker` is started by the test that needs it."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self.upstream = upstream
        user = folders.server_user()
        self.folder = Path(tempfile.mkdtemp(prefix="weir-chaos-", dir="/tmp" if user is not None else None))  # noqa: S108
        # PostgreSQL runs as another user under root.
        self.folder.chmod(0o711)
        self.secrets = secrets.make()
        self.webs: list[processes.Web] = []

    def start(self) -> None:
        self.postgres = embedded.start_postgres(self.folder, self.secrets, log=self.folder / "postgres.log")
        self.valkey = embedded.start_valkey(self.folder, self.secrets["REDIS_PASSWORD"], log=self.folder / "valkey.log")
        self.extra = {"DATABASE_URL": self.postgres.url, "REDIS_URL": self.valkey.url}
        environ = processes.environment(self.upstream.url, **self.extra)
        done = subprocess.run(
            [sys.executable, "manage.py", "migrate", "-v0"], cwd=processes.ROOT, env=environ, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        self.agent = Agent(environ, self.folder / "agent.log")
        self.agent.start()
        self.webs = [processes.web(f"web-{number}", self.upstream.url, self.folder, **self.extra) for number in range(2)]
        self.ledger = processes.ledger("ledger", self.upstream.url, self.folder, **self.extra)
        for web in self.webs:
            web.wait_ready(60)

    def stop(self) -> None:
        for process in (*self.webs, self.ledger):
            process.kill()
        self.agent.stop()
        self.valkey.stop()
        self.postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def worker(self) -> processes.Process:
        """A started worker of Celery."""
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "config.celery",
            "worker",
            "-c",
            "1",
            "--without-gossip",
            "--without-mingle",
        ]
        environ = processes.environment(self.upstream.url, **self.extra)
        process = processes.Process("worker", command, environ, self.folder / "worker.log")
        process.start()
        return process

    def sent_again(self) -> int:
        """How many times a web process has said that settlements had been lost and were sent again."""
        return sum(web.log.read_text(errors="replace").count("settlements had been lost") for web in self.webs)

    # -- what is done to the servers; from the main thread, for a server ends with the thread that started it

    def kill_valkey(self) -> None:
        self.valkey.process.kill()
        self.valkey.process.wait(10)

    def start_valkey(self) -> None:
        self.valkey = embedded.start_valkey(
            self.folder, self.secrets["REDIS_PASSWORD"], log=self.folder / "valkey.log", port=self.valkey.port
        )

    def forget_valkey(self) -> None:
        """Its data are gone."""
        shutil.rmtree(self.folder / "valkey" / "appendonlydir")

    def sizes(self) -> "Sizes":
        return Sizes(self.folder / "valkey" / "appendonlydir")

    def kill_postgres(self) -> None:
        """The postmaster and all that serve connections."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.postgres.process.pid, signal.SIGKILL)
        self.postgres.process.wait(10)

    def start_postgres(self) -> None:
        self.postgres = embedded.start_postgres(
            self.folder, self.secrets, log=self.folder / "postgres.log", port=self.postgres.port
        )


class Sizes:
    """How long the append-only file was at each moment: where to cut it to be a second old."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: deque[tuple[float, Path, int]] = deque(maxlen=1000)

    async def watch(self) -> None:
        while True:
            for path in self._folder.glob("*.incr.aof"):
                self._seen.append((time.monotonic(), path, path.stat().st_size))
            await asyncio.sleep(0.02)

    def cut(self, seconds: float) -> int:
        """Shortens it to what it was `seconds` before its end; the bytes that were lost."""
        last, path, _ = self._seen[-1]
        kept = max(size for at, own, size in self._seen if own == path and at <= last - seconds)
        lost = path.stat().st_size - kept
        os.truncate(path, kept)
        return lost


@dataclass(slots=True)
class Answer:
    """What a client heard. `is_complete`: the terminal event came. Times by the monotonic clock."""

    began: float
    status: int = 0
    first: float = 0.0
    ended: float = 0.0
    response_id: str = ""
    is_complete: bool = False
    text: str = ""
    retry_after: str = ""


class Load:
    """Clients that ask one after the other until they are stopped, over all web processes."""

    def __init__(self, chaos: Chaos, tenant: dict[str, Any], lanes: int = LANES) -> None:
        self.answers: list[Answer] = []
        self._chaos = chaos
        self._headers = {"authorization": f"Bearer {tenant['secret']}", "content-type": "application/json"}
        self._lanes = lanes
        self._is_stopped = False

    async def __aenter__(self) -> "Load":
        self._client = httpx.AsyncClient(timeout=90, limits=httpx.Limits(max_connections=100))
        self._tasks = [asyncio.create_task(self._lane(number)) for number in range(self._lanes)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_stopped = True
        await asyncio.gather(*self._tasks)
        await self._client.aclose()

    async def _lane(self, number: int) -> None:
        url = f"{self._chaos.webs[number % len(self._chaos.webs)].url}/v1/responses"
        while not self._is_stopped:
            answer = Answer(time.monotonic())
            self.answers.append(answer)
            data = bytearray()
            with contextlib.suppress(httpx.TransportError):
                async with self._client.stream("POST", url, headers=self._headers, content=body()) as response:
                    answer.status, answer.retry_after = response.status_code, response.headers.get("retry-after", "")
                    async for chunk in response.aiter_raw():
                        answer.first = answer.first or time.monotonic()
                        data += chunk
            answer.ended = time.monotonic()
            answer.is_complete = b"event: response.completed" in data
            found = RESPONSE_ID.search(data)
            answer.response_id = found[1].decode() if found else ""
            if not answer.is_complete:
                answer.text = bytes(data[-600:]).decode(errors="replace")
                await asyncio.sleep(0.1)

    async def until(self, count: int, seconds: float = 60.0) -> None:
        """Until so many more streams are complete."""
        wanted = len(self.complete) + count
        deadline = time.monotonic() + seconds
        while len(self.complete) < wanted:
            assert time.monotonic() < deadline, (f"{len(self.complete)} of {wanted}", self.answers[-3:], self._chaos.webs[0].tail())
            await asyncio.sleep(0.05)

    async def until_running(self, count: int, seconds: float = 60.0) -> float:
        """Until so many streams have begun and not ended; that moment."""
        deadline = time.monotonic() + seconds
        while len(self.running(time.monotonic())) < count:
            assert time.monotonic() < deadline, f"{len(self.running(time.monotonic()))} of {count} run; {self.answers[-3:]}"
            await asyncio.sleep(0.01)
        return time.monotonic()

    @property
    def complete(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.is_complete]

    def running(self, at: float) -> list[Answer]:
        """Streams whose first byte had come and that had not ended."""
        return [answer for answer in self.answers if answer.first and answer.first < at and (not answer.ended or answer.ended > at)]

    def asked(self, since: float, until: float) -> list[Answer]:
        """What was asked and answered in between."""
        return [answer for answer in self.answers if since < answer.began and answer.ended and answer.ended < until]
