"""A pass-through before the gateway: what a real client sends and is answered, request by request and frame by frame.

It changes one thing: a WebSocket client's offer to compress is not passed on, so that the frames can be read.
"""

import asyncio
import contextlib
import json
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"
TEXT, CLOSE = 1, 8
LEAVING_SECONDS = 5


@dataclass(slots=True)
class Seen:
    """One request of the client, in the order of their coming. `status` is None until it is answered.

    Of a WebSocket: `sent` and `told` are the client's JSON frames and those it got, `closed` the code that the gateway closed with.
    """

    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    status: int | None = None
    answer: dict[str, str] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list, repr=False)
    told: list[dict[str, Any]] = field(default_factory=list, repr=False)
    closed: int | None = None
    left_at: float | None = None
    noticed_at: float | None = None
    """When the gateway had closed its side, too: what comes from its upstream after that comes after the leaving."""

    def close(self, code: int) -> None:
        self.closed = code

    @property
    def is_socket(self) -> bool:
        return self.headers.get("upgrade", "").lower() == "websocket"


@dataclass(slots=True)
class Tap:
    """`url` stands for the gateway's."""

    url: str
    seen: list[Seen] = field(default_factory=list)

    @property
    def requests(self) -> list[tuple[str, int | None]]:
        """Path and status of every plain request."""
        return [(one.path, one.status) for one in self.seen if not one.is_socket]

    @property
    def sockets(self) -> list[Seen]:
        return [one for one in self.seen if one.is_socket]

    def frames(self, kind: str) -> list[dict[str, Any]]:
        """The frames of a type that clients were told, on all sockets."""
        return [frame for one in self.sockets for frame in one.told if frame.get("type") == kind]


@contextlib.asynccontextmanager
async def before(gateway: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Tap]:
    """A tap on a free port of loopback before the gateway at that URL, as https if it is given a certificate."""
    to = urlsplit(gateway)
    tap = Tap("")
    running: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        try:
            there, back = await asyncio.open_connection(to.hostname, to.port)
            await _Connection(tap, to.netloc).carry(reader, writer, there, back)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            running.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    tap.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield tap
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Connection:
    def __init__(self, tap: Tap, netloc: str) -> None:
        self._tap = tap
        self._netloc = netloc
        self._current: Seen | None = None

    async def carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, there: asyncio.StreamReader, back: asyncio.StreamWriter
    ) -> None:
        """Until either side ends; then both are closed."""
        ways = [asyncio.ensure_future(self._up(reader, back)), asyncio.ensure_future(self._down(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if self._current is not None:
                self._current.left_at = time.time()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.close()
            await self._leave(there, back)

    async def _leave(self, there: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            back.write_eof()
            async with asyncio.timeout(LEAVING_SECONDS):
                while await there.read(65536):
                    pass
            if self._current is not None:
                self._current.noticed_at = time.time()
        except (OSError, TimeoutError):
            pass
        finally:
            back.close()

    async def _up(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(HEAD_END)
            first, pairs = _parsed(head)
            method, path, _ = first.split(" ", 2)
            seen = self._current = Seen(method, path, dict(pairs))
            self._tap.seen.append(seen)
            dropped = ("host", "sec-websocket-extensions") if seen.is_socket else ("host",)
            kept = [f"{name}: {value}" for name, value in pairs if name not in dropped]
            back.write("\r\n".join([first, f"host: {self._netloc}", *kept]).encode("latin-1") + HEAD_END)
            if seen.is_socket:
                await _pass(reader, back, _frames(seen.sent.append, lambda code: None))
                return
            await self._body(seen, reader, back)

    @staticmethod
    async def _body(seen: Seen, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if "chunked" in seen.headers.get("transfer-encoding", ""):
            size = 1
            while size:
                line = await reader.readuntil(b"\r\n")
                size = int(line, 16)
                back.write(line + await reader.readexactly(size + 2))
        else:
            back.write(await reader.readexactly(int(seen.headers.get("content-length", 0))))
        await back.drain()

    async def _down(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b""
        while chunk := await there.read(65536):
            seen = self._current
            writer.write(chunk)
            await writer.drain()
            if seen is None or seen.status is not None:
                continue
            head += chunk
            if HEAD_END not in head:
                continue
            found, _, rest = head.partition(HEAD_END)
            first, pairs = _parsed(found + HEAD_END)
            seen.status, seen.answer, head = int(first.split(" ")[1]), dict(pairs), b""
            if seen.status == 101:
                await _pass(there, writer, _frames(seen.told.append, seen.close), rest)
                return


def _parsed(head: bytes) -> tuple[str, list[tuple[str, str]]]:
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return first, pairs


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reading: Callable[[bytes], None], before: bytes = b""
) -> None:
    """Bytes as they come; `before` has been passed on already. What is read is known before the other side has it."""
    reading(before)
    while chunk := await reader.read(65536):
        reading(chunk)
        writer.write(chunk)
        await writer.drain()


def _frames(on_text: Callable[[Any], None], on_close: Callable[[int], None]) -> Callable[[bytes], None]:
    """Takes a socket's bytes and tells its JSON messages and its close code (1005 for none)."""
    data = bytearray()
    message = bytearray()

    def feed(chunk: bytes) -> None:
        data.extend(chunk)
        for is_last, opcode, payload in _whole(data):
            if opcode == CLOSE:
                on_close(int.from_bytes(payload[:2], "big") or 1005)
            elif opcode in (0, TEXT):
                message.extend(payload)
                if is_last:
                    on_text(json.loads(message))
                    message.clear()

    return feed


def _whole(data: bytearray) -> Iterator[tuple[bool, int, bytes]]:
    """Takes the whole frames away from the front of `data`: (is last of its message, opcode, payload)."""
    while len(data) >= 2:
        size, at = data[1] & 127, 2
        if size >= 126:
            at = 4 if size == 126 else 10
            if len(data) < at:
                return
            (size,) = struct.unpack("!H" if at == 4 else "!Q", data[2:at])
        mask = bytes(4)
        if data[1] & 128:
            mask, at = bytes(data[at : at + 4]), at + 4
        if len(data) < at + size:
            return
        payload = (
            bytes(byte ^ mask[place & 3] for place, byte in enumerate(data[at : at + size]))
            if any(mask)
            else bytes(data[at : at + size])
        )
        first = data[0]
        del data[: at + size]
        yield bool(first & 128), first & 15, payload
