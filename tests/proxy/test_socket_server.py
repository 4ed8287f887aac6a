"""The server's side of a client's WebSocket, where its peer or its process does not keep to good manners."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import uvicorn
from websockets.frames import Frame, Opcode

from proxy import socket_server
from proxy.asgi import Receive, Scope, Send
from proxy.socket_server import MOST_FRAGMENTS
from tests import ports
from tests.proxy.conftest import eventually

App = Callable[[Scope, Receive, Send], Any]


@asynccontextmanager
async def served(
    app: App, path: str = "/", *, authorization: str = "none", **options: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection after its upgrade, frames by hand."""
    port = ports.free()
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=port,
        log_level="critical",
        lifespan="off",
        ws_max_size=2**20,
        **socket_server.OPTIONS,
        **options,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve())
    await eventually(lambda: server.started)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
        f"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: {authorization}\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        server.should_exit = True
        await asyncio.wait_for(serving, 10)


def masked(data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


async def test_what_is_sent_after_the_end_is_told_as_a_client_that_left() -> None:
    """An app that is told so ends quietly; anything else would be a fault of its own."""
    found: list[BaseException] = []
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1012})
        try:
            await send({"type": "websocket.send", "text": "too late"})
        except Exception as error:
            found.append(error)
        ended.set()

    async with served(app):
        await asyncio.wait_for(ended.wait(), 5)
    assert [isinstance(error, OSError) for error in found] == [True]


async def test_a_message_in_pieces_beyond_number_ends_its_socket() -> None:
    """Empty ones count against no size, and each is kept until the last has come."""
    got: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while not got or got[-1]["type"] != "websocket.disconnect":
            got.append(await receive())

    async with served(app) as (reader, writer):
        many = [masked(b"a", Opcode.TEXT, fin=False), *[masked(b"b", Opcode.CONT, fin=False)] * 1000, masked(b"c", Opcode.CONT)]
        writer.write(b"".join(many))
        await eventually(lambda: got)
        assert got[0]["text"] == "a" + "b" * 1000 + "c"
        writer.write(masked(b"", fin=False))
        piece = masked(b"", Opcode.CONT, fin=False)
        for _ in range(0, 2 * MOST_FRAGMENTS, 1000):
            writer.write(piece * 1000)
        told = await asyncio.wait_for(reader.read(), 10)
        assert int.from_bytes(told[2:4], "big") == 1009
        await eventually(lambda: got[-1]["type"] == "websocket.disconnect")


async def test_a_client_that_neither_answers_nor_takes_is_let_go() -> None:
    """What it does not take would keep its connection, and with it all that its socket has, for ever."""
    got: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "x" * 16_000_000})
        got.append(await receive())

    async with served(app, ws_ping_interval=0.2, ws_ping_timeout=0.2) as (_, writer):
        cast(asyncio.Transport, writer.transport).pause_reading()
        await eventually(lambda: got)
        assert got[0]["type"] == "websocket.disconnect"
