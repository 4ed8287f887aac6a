"""What is written over TLS: in small pieces, no faster than it is taken, whole and in order."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.frames import Frame, Opcode

from proxy.outflow import HIGH_WATER_BYTES, PIECE_BYTES, Outflow
from proxy.upstream import Client, Request
from proxy.upstream_socket import SocketClient, UpstreamSocket
from tests.flows import certificates
from tests.proxy.raw_server import Peer, answer, serve
from tests.proxy.test_upstream_socket import accept, read_frame

TIMEOUTS: dict[str, Any] = {"connect_seconds": 5, "header_seconds": 20, "idle_seconds": 20}
BODY = b"".join(b"%08d" % number for number in range(500_000))
"""4 MB, every part of it different."""


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
Run = Callable[[Coroutine[Any, Any, None]], None]
loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run])


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Contexts:
    """The server's context, and that of clients which trust it."""
    context, trusted = certificates.make(Path(tmp_path_factory.mktemp("tls")))
    return context, ssl.create_default_context(cafile=str(trusted))


class Transport(asyncio.Transport):
    """Takes what it is given, and counts."""

    def __init__(self, *, is_secure: bool) -> None:
        super().__init__({"sslcontext": object()} if is_secure else {})
        self.written: list[bytes] = []
        self.high: int | None = None

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 7

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = high


def test_pieces_are_small_and_wait_while_the_peer_takes_nothing() -> None:
    transport = Transport(is_secure=True)
    outflow = Outflow(transport)
    assert transport.high == HIGH_WATER_BYTES
    outflow.write(BODY[: 3 * PIECE_BYTES + 5])
    assert [len(piece) for piece in transport.written] == [PIECE_BYTES] * 3 + [5]
    outflow.pause()
    outflow.write(b"first")
    outflow.write(b"second")
    assert (len(transport.written), outflow.unsent_bytes, outflow.is_drained) == (4, 7 + 11, False)
    outflow.resume()
    assert (transport.written[4:], outflow.unsent_bytes, outflow.is_drained) == ([b"first", b"second"], 7, True)


def test_in_the_clear_all_is_written_at_once() -> None:
    transport = Transport(is_secure=False)
    Outflow(transport).write(BODY)
    assert transport.written == [BODY]
    assert transport.high is None


async def send_a_large_request(tls: Contexts) -> None:
    async def script(peer: Peer) -> None:
        # Its head has come; for a moment nothing more is taken.
        await asyncio.sleep(0.2)
        while (await peer.request())[0]:
            await peer.send(answer(b"ok"))

    async with serve(script, tls=tls[0]) as server:
        client = Client(tls=tls[1], **TIMEOUTS)
        for body in (BODY, b"short"):
            async with client.open(Request("POST", server.url, (), body)) as response:
                assert await response.read(10) == b"ok"
        assert [body for _, body in server.requests] == [BODY, b"short"]
        assert (client.connects, client.idle_connections) == (1, 1)
        await client.close()


async def be_answered_early(tls: Contexts) -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(answer(b"too large"))
        await asyncio.sleep(3600)

    async with serve(script, tls=tls[0]) as server:
        client = Client(tls=tls[1], **TIMEOUTS)
        async with client.open(Request("POST", server.url, (), BODY * 4)) as response:
            assert await response.read(20) == b"too large"
        assert client.idle_connections == 0
        await client.close()


async def answer_pings_while_a_frame_is_stuck(tls: Contexts) -> None:
    got: list[tuple[Opcode, bytes]] = []
    is_done = asyncio.Event()

    async def script(peer: Peer) -> None:
        await accept(peer)
        for number in range(20):
            # While the client's frame is stuck.
            await peer.send(Frame(Opcode.PING, b"%d" % number).serialize(mask=False))
            await asyncio.sleep(0.01)
        while len(got) < 22:
            got.append(await read_frame(peer))
        is_done.set()

    async with serve(script, tls=tls[0]) as server:
        client = SocketClient(tls=tls[1], **TIMEOUTS)
        socket = await client.open(server.url, ())
        assert isinstance(socket, UpstreamSocket)
        for data in (BODY, b"short"):
            await socket.send_text(data, on_written=lambda: None)
        await asyncio.wait_for(is_done.wait(), 20)
        await client.close()
    assert [data for opcode, data in got if opcode is Opcode.TEXT] == [BODY, b"short"]
    assert [data for opcode, data in got if opcode is Opcode.PONG] == [b"%d" % number for number in range(20)]


@loops
def test_a_large_request_arrives_whole_and_its_connection_is_used_again(run: Run, tls: Contexts) -> None:
    run(send_a_large_request(tls))


@loops
def test_an_answer_before_the_request_was_taken_ends_the_connection(run: Run, tls: Contexts) -> None:
    """What is left of the request would be read as the next one."""
    run(be_answered_early(tls))


@loops
def test_pongs_go_between_large_frames_and_not_into_them(run: Run, tls: Contexts) -> None:
    run(answer_pings_while_a_frame_is_stuck(tls))
