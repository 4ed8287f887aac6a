"""Accounts with an address of their own are connected to where it was judged, and nowhere else, whatever their name says later."""

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from proxy import guard as guards
from proxy.errors import ConnectFailed
from proxy.guard import Guard
from proxy.origins import Origin, split
from proxy.upstream import Client, Request
from proxy.upstream_socket import SocketClient
from tests.proxy.raw_server import Peer, answer, serve
from tests.proxy.test_upstream import certificate, eventually

__all__ = ["certificate"]

HOST = "models.example.test"
TIMES: dict[str, Any] = {"connect_seconds": 1.0, "header_seconds": 1.0, "idle_seconds": 1.0}


@dataclass
class Names:
    """A name server in place of the system's: what it answers for HOST, and how often it was asked for that."""

    answers: list[str]
    asked: int = 0
    pause_seconds: float = 0.0
    _real: Callable[..., Any] = field(default=socket.getaddrinfo, repr=False)

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host not in (HOST, HOST.encode()):
            return self._real(host, port, *args, **options)
        self.asked += 1
        time.sleep(self.pause_seconds)
        if not self.answers:
            raise socket.gaierror("no such name")
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in self.answers
        ]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Names:
    """127.0.0.1 and 127.0.0.3 stand for addresses of the internet here; all else of the machine is private."""
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.1/32", "127.0.0.3/32"]
    made = Names(["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    return made


async def serving(peer: Peer) -> None:
    while (await peer.request())[0]:
        await peer.send(answer(b"served"))


def by_name(url: str, host: str = HOST) -> Request:
    return Request("POST", url.replace("127.0.0.1", host) + "/v1/responses", [], b"{}")


async def fetch(client: Client, request: Request) -> bytes:
    async with client.open(request) as response:
        return await response.read(1000)


async def test_the_judged_address_is_connected_to_and_the_request_names_the_host(names: Names) -> None:
    """N72"""
    client = Client(**TIMES, guard=Guard())
    async with serve(serving) as server:
        for _ in range(3):
            assert await fetch(client, by_name(server.url)) == b"served"
        port = server.url.rpartition(":")[2]
        assert f"host: {HOST}:{port}\r\n".encode() in server.requests[0][0]
        assert (names.asked, client.connects) == (1, 1)
        await client.close()


@pytest.mark.parametrize(
    "answers",
    [["127.0.0.2"], ["10.0.0.1"], ["169.254.169.254"], ["127.0.0.1", "10.0.0.1"], ["::1"], ["fd00::1"], ["::ffff:10.0.0.1"], []],
)
async def test_a_name_with_any_address_inside_is_not_connected_to(names: Names, answers: list[str]) -> None:
    """N72: also one that has a public address besides."""
    names.answers = answers
    client = Client(**TIMES, guard=Guard())
    async with serve(serving) as server:
        with pytest.raises(ConnectFailed) as refused:
            await fetch(client, by_name(server.url))
        assert (refused.value.written, server.connections, client.connections) == (False, 0, 0)
    await client.close()


async def test_a_name_that_turns_private_between_two_lookups_is_never_followed(names: Names) -> None:
    """DNS rebinding: the judge sees an address outside, whoever would look again sees one inside."""
    names.answers = ["127.0.0.3"]
    client = Client(**TIMES, guard=Guard())
    async with serve(serving) as server:
        real = names.getaddrinfo

        def once(*args: Any, **options: Any) -> Any:
            found = real(*args, **options)
            names.answers = ["127.0.0.1"]
            return found

        names.getaddrinfo = once  # type: ignore[method-assign]
        socket.getaddrinfo = once
        # Nothing listens at 127.0.0.3; the server at 127.0.0.1 is what a second lookup would find.
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        assert (names.asked, server.connections) == (1, 0)
    await client.close()


async def test_a_name_that_turns_private_later_is_refused_and_its_kept_connection_is_left(names: Names) -> None:
    client = Client(**TIMES, guard=Guard(kept_seconds=0.2))
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
        names.answers = ["10.0.0.1"]
        # Until the judgement lapses it holds.
        assert await fetch(client, by_name(server.url)) == b"served"
        await asyncio.sleep(0.25)
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        assert (len(server.requests), names.asked) == (2, 2)
        names.answers = ["127.0.0.1"]
        assert await fetch(client, by_name(server.url)) == b"served"
    await client.close()


async def test_a_connection_to_an_address_that_the_name_has_left_is_not_used_again(names: Names) -> None:
    client = Client(**TIMES, guard=Guard(kept_seconds=0.0))
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
        assert client.idle_connections == 1
        names.answers = ["127.0.0.3"]
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        assert len(server.requests) == 1
    await client.close()


async def test_the_next_address_is_tried_where_the_first_does_not_answer(names: Names) -> None:
    names.answers = ["127.0.0.3", "127.0.0.1"]
    client = Client(**TIMES, guard=Guard())
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
    await client.close()


async def test_many_at_once_ask_the_name_server_once_and_one_that_leaves_takes_nobody_along(names: Names) -> None:
    names.pause_seconds = 0.2
    client = Client(**TIMES, guard=Guard())
    async with serve(serving) as server:
        running = [asyncio.create_task(fetch(client, by_name(server.url))) for _ in range(20)]
        await eventually(lambda: names.asked == 1)
        running[0].cancel()
        found = await asyncio.gather(*running, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert found[1:] == [b"served"] * 19
        assert names.asked == 1
    await client.close()


@pytest.mark.alone
async def test_a_name_server_that_does_not_answer_holds_up_nobody_else(names: Names) -> None:
    names.pause_seconds = 1.0
    client = Client(**{**TIMES, "connect_seconds": 0.3}, guard=Guard())
    async with serve(serving) as server:
        began = time.monotonic()
        slow = asyncio.create_task(fetch(client, by_name(server.url)))
        assert await fetch(client, by_name(server.url, "127.0.0.1")) == b"served"
        assert time.monotonic() - began < 0.25
        with pytest.raises(ConnectFailed):
            await slow
        assert server.connections == 1
    await client.close()


async def test_names_of_others_that_nobody_answers_for_hold_up_no_address_that_was_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever runs a name server could keep all threads waiting, and with them every other tenant's endpoint."""
    monkeypatch.setattr(guards, "PATIENCE_SECONDS", 0.1)
    done = threading.Event()

    def judge(url: str) -> tuple[str, ...]:
        if "slow" in url:
            done.wait(10)
        return ("127.0.0.1",)

    guard = Guard(judge, kept_seconds=0.05)
    client = Client(**TIMES, guard=guard)
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
        slow = [asyncio.create_task(guard.addresses(split(f"http://slow{number}.test")[0])) for number in range(20)]
        await asyncio.sleep(0.1)
        assert await fetch(client, by_name(server.url)) == b"served"
        done.set()
        assert await asyncio.gather(*slow) == [("127.0.0.1",)] * 20
    await client.close()


async def test_an_answer_that_comes_late_is_believed(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """N72: what was judged before serves only as long as nothing newer is known."""
    monkeypatch.setattr(guards, "PATIENCE_SECONDS", 0.05)
    client = Client(**TIMES, guard=Guard(kept_seconds=0.0))
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
        names.pause_seconds, names.answers = 0.3, ["10.0.0.1"]
        assert await fetch(client, by_name(server.url)) == b"served"
        await asyncio.sleep(0.4)
        names.pause_seconds = 0.0
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        assert len(server.requests) == 2
    await client.close()


async def test_what_was_judged_long_ago_is_not_connected_to(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(guards, "STALE_SECONDS", 0.0)
    client = Client(**{**TIMES, "connect_seconds": 0.2}, guard=Guard(kept_seconds=0.0))
    async with serve(serving) as server:
        assert await fetch(client, by_name(server.url)) == b"served"
        names.pause_seconds = 0.5
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        assert len(server.requests) == 1
    await client.close()


async def test_tls_is_checked_against_the_hosts_name(names: Names, certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    client = Client(**TIMES, tls=ssl.create_default_context(cafile=str(certificate[0])), guard=Guard())
    async with serve(serving, tls=context) as server:
        # The certificate is for localhost: its address in place of its name would not do.
        names.answers = ["127.0.0.1"]
        with pytest.raises(ConnectFailed):
            await fetch(client, by_name(server.url))
        judged = Guard(lambda url: ("127.0.0.1",))
        pinned = Client(**TIMES, tls=ssl.create_default_context(cafile=str(certificate[0])), guard=judged)
        assert await fetch(pinned, by_name(server.url, "localhost")) == b"served"
        await pinned.close()
    await client.close()


async def test_the_operators_own_upstreams_are_trusted_wherever_they_are(names: Names, settings: Any) -> None:
    def never(url: str) -> tuple[str, ...]:
        raise AssertionError(url)

    settings.UPSTREAM_CHATGPT_URL = "http://10.1.1.1:8080/backend-api"
    settings.UPSTREAM_OPENAI_URL = "http://10.1.1.2/v1"
    settings.UPSTREAM_ANTHROPIC_URL = "https://anthropic.internal/v1"
    guard = Guard(never)
    for url in (settings.UPSTREAM_CHATGPT_URL, settings.UPSTREAM_OPENAI_URL, settings.UPSTREAM_ANTHROPIC_URL):
        assert await guard.addresses(split(url)[0]) is None
    for other in (Origin("http", "10.1.1.1", 80), Origin("https", "10.1.1.2", 443)):
        with pytest.raises(AssertionError):
            await guard.addresses(other)


async def test_sockets_are_held_to_the_same(names: Names) -> None:
    client = SocketClient(**TIMES, guard=Guard(kept_seconds=0.0))
    async with serve(serving) as server:
        names.answers = ["10.0.0.1"]
        with pytest.raises(ConnectFailed):
            await client.open(by_name(server.url).url, [])
        assert server.connections == 0
        names.answers = ["127.0.0.3", "127.0.0.1"]
        refusal = await client.open(by_name(server.url).url, [])
        assert getattr(refusal, "status", None) == 200
        assert server.connections == 1
    await client.close()
