"""Whole processes for the flows: web processes and a ledger on the test database, killed and started at will."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from django.conf import settings
from django.db import connection

from config import tls
from tests import ports

ROOT = Path(__file__).resolve().parents[2]


def environment(upstream_url: str, **extra: str) -> dict[str, str]:
    """The environment of a process of the product that shares this test run's services and secrets."""
    database = connection.settings_dict
    url = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**database)
    return {
        **os.environ,
        "DATABASE_URL": url,
        "REDIS_URL": settings.REDIS_URL,
        "DJANGO_SETTINGS_MODULE": "config.settings.test",
        "UPSTREAM_CHATGPT_URL": f"{upstream_url}/backend-api",
        "UPSTREAM_OPENAI_URL": f"{upstream_url}/v1",
        "UPSTREAM_ANTHROPIC_URL": f"{upstream_url}/v1",
        "UPSTREAM_AUTH_URL": upstream_url,
        "PYTHONUNBUFFERED": "1",
        **extra,
    }


@dataclass
class Process:
    """One process of the product and the file that its output goes to."""

    name: str
    command: list[str]
    environ: dict[str, str] = field(repr=False)
    log: Path
    popen: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.popen = subprocess.Popen(self.command, cwd=ROOT, env=self.environ, stdout=output, stderr=subprocess.STDOUT)

    @property
    def running(self) -> "subprocess.Popen[bytes]":
        assert self.popen is not None
        return self.popen

    def kill(self) -> None:
        self.running.kill()
        self.running.wait(10)

    def terminate(self) -> int:
        """SIGTERM, then the exit code."""
        if self.running.poll() is None:
            self.running.send_signal(signal.SIGTERM)
        try:
            return self.running.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@dataclass
class Web(Process):
    url: str = ""

    def wait_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        with httpx.Client(timeout=5, verify=tls.authorities(trusts_env=False), trust_env=False) as client:
            while time.monotonic() < deadline:
                assert self.running.poll() is None, f"{self.name} ended:\n{self.tail()}"
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/health/ready").status_code == 200:
                        return
                time.sleep(0.05)
        raise AssertionError(f"{self.name} is not ready:\n{self.tail()}")


def web(name: str, upstream_url: str, folder: Path, **extra: str) -> Web:
    """A started web process on a free port; `wait_ready` is the caller's."""
    port = ports.free()
    url = f"http://127.0.0.1:{port}"
    process = Web(
        name=name,
        command=[
            sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1", "--port", str(port),
            "--loop", "uvloop", "--http", "httptools", "--ws", "proxy.socket_server:SocketProtocol", "--ws-max-size", "33554432",
            "--ws-per-message-deflate", "false", "--no-access-log", "--no-proxy-headers", "--lifespan", "on",
            "--timeout-graceful-shutdown", "5",
        ],
        environ=environment(upstream_url, PUBLIC_URL=url, **extra),
        log=folder / f"{name}.log",
        url=url,
    )  # fmt: skip
    process.start()
    return process


def ledger(name: str, upstream_url: str, folder: Path, **extra: str) -> Process:
    process = Process(
        name=name,
        command=[sys.executable, "manage.py", "ledger"],
        environ=environment(upstream_url, **extra),
        log=folder / f"{name}.log",
    )
    process.start()
    return process
