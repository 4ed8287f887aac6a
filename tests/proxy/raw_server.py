"""A raw socket server for the upstream client's tests: each connection is handed to a script that writes bytes as it likes."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Script = Callable[["Peer"], Awaitable[None]]


@dataclass
class Peer:
    """One accepted connection. `number` counts from 1."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: "RawServer"

    async def request(self) -> tuple[bytes, bytes]:
        """The next request's head and body; head is empty at the connection's end."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b"", b""
        length = re.search(rb"content-length: (\d+)", head)
        body = await self.reader.readexactly(int(length.group(1))) if length else b""
        self.server.requests.append((head, body))
        return head, body

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class RawServer:
    url: str = ""
    requests: list[tuple[bytes, bytes]] = field(default_factory=list)
    connections: int = 0
    ended: int = 0


@asynccontextmanager
async def serve(script: Script, *, tls: object = None) -> AsyncIterator[RawServer]:
    state = RawServer()
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        state.connections += 1
        try:
            await script(Peer(state.connections, reader, writer, state))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            state.ended += 1
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)  # type: ignore[arg-type]
    port = server.sockets[0].getsockname()[1]
    state.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield state
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


def answer(body: bytes, *, head: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + coded + b"0\r\n\r\n"
