"""The relay's upstream WebSocket against a peer that is written by hand: frames, refusals, and all the ways it can go wrong."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.frames import Frame, Opcode
from websockets.utils import accept_key

from proxy import metering
from proxy.errors import BadAnswer, ConnectFailed, Cut, HeadersLate, IdleTooLong, UpstreamError
from proxy.upstream_socket import Refusal, SocketClient, UpstreamSocket
from tests import ports
from tests.proxy.raw_server import Peer, RawServer, serve

Script = Callable[[Peer], Awaitable[None]]


async def accept(peer: Peer, extra: bytes = b"") -> bytes:
    """Answers the upgrade; its head."""
    head, _ = await peer.request()
    found = re.search(rb"sec-websocket-key: (\S+)", head)
    assert found is not None
    key = accept_key(found.group(1).decode()).encode()
    await peer.send(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        + key
        + b"\r\n"
        + extra
        + b"\r\n"
    )
    return head


def frame(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


async def read_frame(peer: Peer) -> tuple[Opcode, bytes]:
    """A frame of the client's, unmasked."""
    first, second = await peer.reader.readexactly(2)
    length = second & 0x7F
    if length > 125:
        length = int.from_bytes(await peer.reader.readexactly(2 if length == 126 else 8), "big")
    assert second & 0x80
    mask = await peer.reader.readexactly(4)
    data = await peer.reader.readexactly(length)
    pad = int.from_bytes((mask * (length // 4 + 1))[:length], "big")
    return Opcode(first & 0x0F), (int.from_bytes(data, "big") ^ pad).to_bytes(length, "big")


async def stay(peer: Peer) -> None:
    """Keeps the connection, and reads nothing."""
    await asyncio.sleep(3600)


@asynccontextmanager
async def client(**changes: float) -> AsyncIterator[SocketClient]:
    seconds: dict[str, Any] = {"connect_seconds": 2.0, "header_seconds": 2.0, "idle_seconds": 5.0, **changes}
    made = SocketClient(**seconds)
    try:
        yield made
    finally:
        await made.close()
        assert len(made) == 0


@asynccontextmanager
async def connected(script: Script, **changes: float) -> AsyncIterator[tuple[UpstreamSocket, RawServer]]:
    async with serve(script) as server, client(**changes) as sockets:
        socket = await sockets.open(f"{server.url}/v1/responses", [])
        assert isinstance(socket, UpstreamSocket)
        yield socket, server


def ignore() -> None:
    """Nobody wants to know."""


async def test_the_upgrade_carries_the_given_headers_and_no_compression() -> None:
    heads: list[bytes] = []

    async def script(peer: Peer) -> None:
        heads.append(await accept(peer, b"X-Codex-Primary-Used-Percent: 41\r\n"))
        await stay(peer)

    async with serve(script) as server, client() as sockets:
        socket = await sockets.open(f"{server.url}/v1/responses?a=1", [(b"authorization", b"Bearer \xe9"), (b"x-a", b"1")])
        assert isinstance(socket, UpstreamSocket)
        assert socket.headers["x-codex-primary-used-percent"] == "41"
        assert len(sockets) == 1
    lines = heads[0].lower().split(b"\r\n")
    assert lines[0] == b"get /v1/responses?a=1 http/1.1"
    assert b"authorization: bearer \xe9" in lines
    assert b"host: " + server.url.removeprefix("http://").encode() in lines
    assert not any(line.startswith((b"sec-websocket-extensions", b"user-agent", b"origin")) for line in lines)


@pytest.mark.parametrize("headers", [[(b"x-a", b"1\r\nhost: b")], [(b"x-a:\n", b"1")]])
async def test_a_header_that_breaks_the_framing_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    async with serve(stay) as server, client() as sockets:
        with pytest.raises(ValueError, match="line break"):
            await sockets.open(server.url, headers)


async def test_frames_go_both_ways_byte_for_byte_and_pings_are_answered() -> None:
    large = ("é" * 400_000).encode()
    seen: list[tuple[Opcode, bytes]] = []

    async def script(peer: Peer) -> None:
        await accept(peer)
        seen.append(await read_frame(peer))
        # In three fragments with a ping between them, and two frames in one write.
        await peer.send(frame(large[:3], fin=False) + frame(b"p", Opcode.PING) + frame(large[3:99], Opcode.CONT, fin=False))
        await peer.send(frame(large[99:], Opcode.CONT) + frame(b'{"a":1}'))
        seen.append(await read_frame(peer))
        await stay(peer)

    async with connected(script) as (socket, _):
        written: list[bool] = []
        await socket.send_text(large, on_written=lambda: written.append(True))
        assert written == [True]
        assert await socket.receive() == large
        assert await socket.receive() == b'{"a":1}'
        await until(lambda: len(seen) == 2)
    assert seen == [(Opcode.TEXT, large), (Opcode.PONG, b"p")]


async def test_a_slow_consumer_stops_the_peer() -> None:
    sent = 0

    async def script(peer: Peer) -> None:
        nonlocal sent
        await accept(peer)
        for _ in range(400):
            await peer.send(frame(b"x" * 65_536))
            sent += 1
        await stay(peer)

    async with connected(script, ping_seconds=0.05, pong_seconds=0.05) as (socket, _):
        await until(lambda: sent > 4)
        before = -1
        while sent > before:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 300
        # Reading is stopped, so that pongs are not heard; that is no reason to give the peer up.
        for _ in range(400):
            assert len(await socket.receive()) == 65_536


@pytest.mark.parametrize("framing", ["length", "chunked", "end"])
async def test_an_upgrade_that_is_answered_by_a_status_gives_status_headers_and_body(framing: str) -> None:
    body = b'{"error":{"type":"usage_limit_reached"}}'
    coded = {
        "length": b"content-length: %d\r\n\r\n%s" % (len(body), body),
        "chunked": b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        "end": b"connection: close\r\n\r\n" + body,
    }[framing]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\n" + coded)

    async with serve(script) as server, client() as sockets:
        refusal = await sockets.open(server.url, [])
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.headers["retry-after"], refusal.body) == (429, "7", body)
        await until(lambda: len(sockets) == 0)


async def test_nobody_listening_is_a_failed_connect() -> None:
    async with client() as sockets:
        with pytest.raises(ConnectFailed) as caught:
            await sockets.open(f"http://127.0.0.1:{ports.free()}", [])
    assert not caught.value.written


async def test_a_certificate_that_is_not_trusted_is_a_failed_connect() -> None:
    async with serve(stay) as server, client() as sockets:
        with pytest.raises(ConnectFailed) as caught:
            await sockets.open(server.url.replace("http", "https"), [])
        assert isinstance(caught.value.__cause__, (ssl.SSLError, OSError, TimeoutError))


async def test_an_upgrade_that_is_not_answered_is_given_up_in_time() -> None:
    async with serve(stay) as server, client(header_seconds=0.1) as sockets:
        with pytest.raises(HeadersLate) as caught:
            await sockets.open(server.url, [])
        assert not caught.value.written
        await until(lambda: len(sockets) == 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", Cut),
        (b"HTTP/1.1 101 Sw", Cut),
        (b"SSH-2.0\r\n\r\n", BadAnswer),
        (b"HTTP/1.1 101 Ok\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: x\r\n\r\n", BadAnswer),
        (b"HTTP/1.1 429 No\r\ncontent-length: 99999999\r\n\r\n", BadAnswer),
    ],
)
async def test_an_upgrade_without_a_good_answer_is_movable(answer: bytes, error: type[UpstreamError]) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serve(script) as server, client() as sockets:
        with pytest.raises(error) as caught:
            await sockets.open(server.url, [])
        assert not caught.value.written
        await until(lambda: len(sockets) == 0)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (frame(b"\x00", Opcode.BINARY), BadAnswer, "binary"),
        (frame(b"\xff\xfe"), BadAnswer, "no text"),
        (b"\xff\x00", BadAnswer, "ProtocolError"),
        (frame(b"", Opcode.CLOSE), Cut, "1005"),
        (frame((1009).to_bytes(2, "big"), Opcode.CLOSE), Cut, "1009"),
        (b"", Cut, "closed by the peer"),
        (frame(b"{", fin=False) + frame(b"", Opcode.CONT, fin=False) * 20_000, BadAnswer, "pieces"),
    ],
)
async def test_what_came_before_a_fault_is_received_first(data: bytes, error: type[UpstreamError], words: str) -> None:
    async def script(peer: Peer) -> None:
        await accept(peer)
        await peer.send(frame(b"{}") + data)

    async with connected(script) as (socket, _):
        assert await socket.receive() == b"{}"
        with pytest.raises(error, match=words) as caught:
            await socket.receive()
        assert caught.value.written
        assert not socket.is_open
        with pytest.raises(Cut) as late:
            await socket.send_text(b"{}", on_written=ignore)
        assert not late.value.written


async def test_a_message_above_the_bound_is_a_bad_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "LARGEST_EVENT_BYTES", 1000)

    async def script(peer: Peer) -> None:
        await accept(peer)
        await peer.send(frame(b"x" * 1000) + frame(b"x" * 600, fin=False) + frame(b"x" * 401, Opcode.CONT))
        await stay(peer)

    async with connected(script) as (socket, _):
        assert len(await socket.receive()) == 1000
        with pytest.raises(BadAnswer, match="PayloadTooBig"):
            await socket.receive()


@pytest.mark.alone
async def test_silence_ends_the_wait_though_pings_are_answered() -> None:
    async def script(peer: Peer) -> None:
        await accept(peer)
        while True:
            if (await read_frame(peer))[0] is Opcode.PING:
                await peer.send(frame(b"", Opcode.PONG))

    async with connected(script, idle_seconds=0.4, ping_seconds=0.05, pong_seconds=0.2) as (socket, _):
        # Nobody waits: no silence.
        await asyncio.sleep(0.6)
        began = asyncio.get_running_loop().time()
        with pytest.raises(IdleTooLong):
            await socket.receive()
        assert 0.35 <= asyncio.get_running_loop().time() - began < 2


@pytest.mark.parametrize("is_waited_for", [True, False])
@pytest.mark.alone
async def test_a_black_hole_is_noticed_by_its_unanswered_ping(is_waited_for: bool) -> None:
    """N64: after a ping's interval and its deadline (20 s each in earnest), in a turn and between turns."""

    async def script(peer: Peer) -> None:
        await accept(peer)
        await stay(peer)

    async with connected(script, ping_seconds=0.2, pong_seconds=0.2) as (socket, _):
        began = asyncio.get_running_loop().time()
        if is_waited_for:
            with pytest.raises(Cut, match="ping") as caught:
                await socket.receive()
            assert caught.value.written
        else:
            await until(lambda: not socket.is_open)
        assert 0.35 <= asyncio.get_running_loop().time() - began < 2


async def test_a_peer_that_takes_a_large_frame_slowly_is_no_black_hole() -> None:
    size = 24 * 1024 * 1024

    async def script(peer: Peer) -> None:
        await accept(peer)
        left = size
        while left > 0:
            left -= len(await peer.reader.read(128 * 1024))
            await asyncio.sleep(0.008)
        await peer.send(frame(b"{}"))
        await stay(peer)

    # What the kernels hold takes a part of a second; all of it, twice the deadline.
    async with connected(script, ping_seconds=0.1, pong_seconds=0.8) as (socket, _):
        await socket.send_text(b"x" * size, on_written=ignore)
        assert await socket.receive() == b"{}"


async def test_a_peer_that_takes_nothing_ends_the_writing() -> None:
    async def script(peer: Peer) -> None:
        await accept(peer)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stay(peer)

    async with connected(script, ping_seconds=0.2, pong_seconds=0.2) as (socket, _):
        with pytest.raises(Cut, match="ping"):
            await socket.send_text(b"x" * 16 * 1024 * 1024, on_written=ignore)


async def test_what_nobody_waits_for_goes_where_it_is_told() -> None:
    async def script(peer: Peer) -> None:
        await accept(peer)
        await read_frame(peer)
        await peer.send(frame(b"1") + frame(b"2"))
        await read_frame(peer)
        await peer.send(frame(b"3"))
        await stay(peer)

    async with connected(script) as (socket, _):
        await socket.send_text(b"{}", on_written=ignore)
        assert await socket.receive() == b"1"
        unasked = socket.take_waiting()
        socket.on_unasked = unasked.append
        await socket.send_text(b"{}", on_written=ignore)
        await until(lambda: len(unasked) == 2)
    assert unasked == [b"2", b"3"]


async def test_a_cancelled_wait_loses_nothing() -> None:
    go = asyncio.Event()

    async def script(peer: Peer) -> None:
        await accept(peer)
        await go.wait()
        await peer.send(frame(b"1") + frame(b"2"))
        await stay(peer)

    async with connected(script) as (socket, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await socket.receive()
        go.set()
        assert [await socket.receive(), await socket.receive()] == [b"1", b"2"]


async def test_closing_says_goodbye_and_leaves_nothing() -> None:
    seen: list[tuple[Opcode, bytes]] = []

    async def script(peer: Peer) -> None:
        await accept(peer)
        seen.append(await read_frame(peer))
        assert await peer.reader.read() == b""

    async with serve(script) as server, client() as sockets:
        socket = await sockets.open(server.url, [])
        assert isinstance(socket, UpstreamSocket)
        socket.close()
        socket.close()
        assert not socket.is_open
        await until(lambda: server.ended == 1 and len(sockets) == 0)
        with pytest.raises(Cut):
            await socket.receive()
    assert seen == [(Opcode.CLOSE, (1000).to_bytes(2, "big"))]


async def until(check: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not check():
        assert asyncio.get_running_loop().time() < deadline, "did not come true"
        await asyncio.sleep(0.01)
