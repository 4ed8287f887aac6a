"""`demo` and `up` as whole processes: what they refuse before anything starts, what runs, what is left when they end."""

import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import psycopg
import pytest
import redis

from config import tls
from config.launch import embedded, runtime
from tests import ports
from tests.launch import processes
from tests.launch.launching import Stack, run

ROLES = {"developer", "lead", "finance", "owner"}


def started_nothing(var: Path) -> bool:
    return not any((var / name).exists() for name in ("postgres", "valkey", "run.json", "demo.json"))


# ---------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (["--port", "0"], "argument --port: '0' is not a port from 1 to 65535"),
        (["--port", "http"], "argument --port: 'http' is not a port from 1 to 65535"),
        (["--gateways", "0"], "argument --gateways: '0' is not a number of processes from 1 to 64"),
        (["--gateways", "two"], "argument --gateways: 'two' is not a number of processes from 1 to 64"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_wrong_argument_is_named(folder: Path, environ: dict[str, str], wrong: list[str], reason: str) -> None:
    done = run("demo", "--var", str(folder / "var"), *wrong, environ=environ)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"manage.py demo: error: {reason}"
    assert not (folder / "var").exists()


@pytest.mark.parametrize("command", ["demo", "up"])
def test_help_names_every_argument(environ: dict[str, str], command: str) -> None:
    done = run(command, "--help", environ=environ)
    assert done.returncode == 0, done.stderr
    for option in ("--host", "--port", "--gateways N", "--var DIR"):
        assert option in done.stdout


def test_a_port_in_use_is_named_before_anything_starts(folder: Path, environ: dict[str, str]) -> None:
    first = ports.free(2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first + 1))
        taken.listen()
        done = run("up", "--var", str(folder / "var"), "--port", str(first), "--gateways", "2", environ=environ)
    assert done.returncode == 1
    assert done.stderr == (
        f"manage.py up: cannot listen on 127.0.0.1 port {first + 1}: Address already in use. Name another by --port.\n"
    )
    assert started_nothing(folder / "var")


def test_more_processes_than_ports_are_refused(folder: Path, environ: dict[str, str]) -> None:
    done = run("up", "--var", str(folder / "var"), "--port", "65535", "--gateways", "2", environ=environ)
    assert done.returncode == 1
    assert done.stderr == "manage.py up: 2 web processes from port 65535 on need ports above 65535.\n"
    assert started_nothing(folder / "var")


def test_a_wrong_setting_is_named_before_anything_starts(folder: Path, environ: dict[str, str]) -> None:
    wrong = {**environ, "HOLD_DEADLINE_SECONDS": "soon", "TRUSTED_PROXIES": "10.0.0.0/99"}
    done = run("up", "--var", str(folder / "var"), "--port", str(ports.free(2)), environ=wrong)
    assert done.returncode == 1
    first, *named = done.stderr.splitlines()
    assert first == "manage.py up: Wrong settings:"
    assert [line.split(":")[0].strip() for line in named] == ["TRUSTED_PROXIES", "HOLD_DEADLINE_SECONDS"]
    assert started_nothing(folder / "var")


def test_a_setting_that_parses_and_cannot_work_stops_the_start(folder: Path, environ: dict[str, str]) -> None:
    wrong = {**environ, "HOLD_DEADLINE_SECONDS": "3", "HOLD_RENEW_SECONDS": "2"}
    done = run("up", "--var", str(folder / "var"), "--port", str(ports.free(2)), environ=wrong)
    assert done.returncode == 1
    assert "HOLD_RENEW_SECONDS must be at most half of HOLD_DEADLINE_SECONDS." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "var" / "run.json").exists()


@pytest.mark.parametrize("name", ["DATABASE_URL", "REDIS_URL"])
def test_a_service_that_was_given_and_does_not_answer_is_named_without_its_password(
    folder: Path, environ: dict[str, str], name: str
) -> None:
    scheme, path = ("postgresql", "weir") if name == "DATABASE_URL" else ("redis", "0")
    given = {**environ, name: f"{scheme}://weir:open-sesame@127.0.0.1:{ports.free()}/{path}"}
    done = run("up", "--var", str(folder / "var"), "--port", str(ports.free(2)), environ=given)
    assert done.returncode == 1
    assert done.stderr.startswith(f"manage.py up: {name} is set, but cannot be used: ")
    assert "open-sesame" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_folder_that_cannot_be_made_is_named(folder: Path, environ: dict[str, str]) -> None:
    (folder / "file").write_text("")
    done = run("up", "--var", str(folder / "file" / "var"), environ=environ)
    assert done.returncode == 1
    assert done.stderr.startswith(f"manage.py up: cannot use the data folder {folder / 'file' / 'var'}: ")


def test_a_second_run_in_one_folder_is_refused_and_leaves_the_first_alone(folder: Path, environ: dict[str, str]) -> None:
    with runtime.alone_in(folder):
        (folder / "demo.json").write_text("{}")
        done = run("demo", "--var", str(folder), environ=environ)
        assert (folder / "demo.json").read_text() == "{}"
    assert done.returncode == 1
    assert done.stderr == f"manage.py demo: another run is using {folder}. Stop it, or name another folder by --var DIR.\n"
    assert started_nothing(folder) is False
    assert not (folder / "postgres").exists()


@pytest.mark.parametrize("command", ["serve", "ledger"])
def test_production_processes_start_no_services_of_their_own(environ: dict[str, str], command: str) -> None:
    done = run(command, environ=environ)
    assert done.returncode == 1
    assert done.stderr.startswith(f"manage.py {command}: set DATABASE_URL, REDIS_URL, SECRET_KEY, ")


# ------------------------------------------------------------------------------------------------------------- runs


def ask(base_url: str, key: str) -> httpx.Response:
    body = {"model": "gpt-5.5", "stream": True, "store": False, "input": "hello"}
    return httpx.post(f"{base_url}/v1/responses", json=body, headers={"authorization": f"Bearer {key}"}, timeout=30)


def is_ready(port: int) -> bool:
    try:
        trusted = tls.authorities(trusts_env=True)
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=5, verify=trusted).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.stack
def test_demo_serves_survives_a_kill_and_stops_clean(launch: Callable[..., Stack], environ: dict[str, str]) -> None:
    port = ports.free(2)
    stack = launch("demo", port, gateways=2)
    described = stack.var / "demo.json"
    stack.wait_until(described.exists)

    assert stat.S_IMODE(described.stat().st_mode) == 0o600
    demo: dict[str, Any] = json.loads(described.read_text())
    assert demo["base_url"] == f"http://127.0.0.1:{port}"
    assert httpx.get(f"{demo['upstream_url']}/control/health").status_code == 200
    assert len(demo["organizations"]) == 2
    for organization in demo["organizations"]:
        assert {member["role"] for member in organization["members"]} == ROLES
        for member in organization["members"]:
            assert set(member) == {"email", "role", "password", "key"}
            assert (member["key"] is None) == (member["role"] == "finance")
    assert is_ready(port)
    assert is_ready(port + 1)

    # A command beside it finds its services by the folder's name, whatever else the environment names.
    slug = demo["organizations"][0]["slug"]
    developer = next(member for member in demo["organizations"][0]["members"] if member["role"] == "developer")
    elsewhere = {**environ, "DATABASE_URL": "postgresql://127.0.0.1:1/none", "WEIR_VAR": str(stack.var)}
    done = run("create_key", slug, developer["email"], "--name", "second", "--json", environ=elsewhere)
    assert done.returncode == 0, done.stderr
    answer = ask(f"http://127.0.0.1:{port + 1}", json.loads(done.stdout)["key"])
    assert answer.status_code == 200
    assert "response.completed" in answer.text

    # A web process that is killed is started again where it was.
    first = stack.running().processes["web-0"]
    os.kill(first, signal.SIGKILL)
    stack.wait_until(lambda: stack.running().processes["web-0"] != first and is_ready(port))
    assert ask(demo["base_url"], developer["key"]).status_code == 200

    everything = stack.everything()
    assert len(everything) >= 9
    stack.process.send_signal(signal.SIGKILL)
    stack.process.wait(5)
    assert processes.still_alive(everything, within=15) == []
    assert described.exists()

    # Again in the same folder, on the same ports: the description is gone until all is ready; keys and passwords are the same.
    again = launch("demo", port, gateways=2)
    again.wait_until(lambda: not described.exists())
    again.wait_until(described.exists)
    assert json.loads(described.read_text()) == demo
    assert ask(demo["base_url"], developer["key"]).status_code == 200

    everything = again.everything()
    again.process.send_signal(signal.SIGTERM)
    assert again.process.wait(30) == 0, again.output.read_text()
    assert processes.still_alive(everything, within=0) == []
    assert not described.exists()
    assert not (again.var / "run.json").exists()


@pytest.fixture
def given_database() -> Iterator[str]:
    """A new, empty database beside the tests'."""
    own = urlsplit(os.environ["DATABASE_URL"])
    name = f"weir_up_{uuid4().hex[:8]}"
    with psycopg.connect(own._replace(path="/postgres").geturl(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield own._replace(path=f"/{name}").geturl()
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.mark.stack
def test_up_uses_the_services_it_is_given_and_invites_the_first_owner(
    launch: Callable[..., Stack], folder: Path, given_database: str
) -> None:
    valkey = embedded.start_valkey(folder, "open-sesame", log=folder / "given.log")
    try:
        port = ports.free(2)
        stack = launch("up", port, given={"DATABASE_URL": given_database, "REDIS_URL": valkey.url})
        stack.wait_until(lambda: "Ready on" in stack.output.read_text())
        told = stack.output.read_text()
        link = next(line.strip() for line in told.splitlines() if line.startswith("    http"))
        assert link.startswith(f"http://127.0.0.1:{port}/join/")
        assert httpx.get(link).status_code == 200
        assert not (stack.var / "postgres").exists()
        assert not (stack.var / "valkey").exists()
        assert set(stack.running().processes) == {"web-0", "ledger", "worker", "reports", "beat"}
        with psycopg.connect(given_database) as connection:
            row = connection.execute("SELECT count(*) FROM accounts_organization").fetchone()
        assert row == (0,)
        with redis.Redis.from_url(valkey.url) as client:
            stack.wait_until(lambda: client.exists("config:beat") == 1)

        # Ctrl-C in a terminal reaches the launcher's whole group.
        everything = stack.everything()
        os.killpg(stack.process.pid, signal.SIGINT)
        assert stack.process.wait(30) == 0, stack.output.read_text()
        assert stack.output.read_text().endswith("\nStopping: what runs may end first. Ctrl-C once more cuts it.\n")
        assert processes.still_alive(everything, within=0) == []
        with redis.Redis.from_url(valkey.url) as client:
            assert client.exists("config:beat") == 0
    finally:
        valkey.stop()
