"""Many clients at once, each with one answer: event streams and WebSockets, as coding agents hold them open."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect

from bench.load import WrongAnswer
from bench.wire import MODEL

BODY_BYTES = 32 * 1024
"""Of each request: about what instructions and tools of a coding agent take before anything is said."""
AT_ONCE = 100
"""So many are opened at the same time."""
SECONDS = 60.0
"""The longest that a client waits for a step."""


class Client(Protocol):
    """One client of a gateway on `port`. Each step raises WrongAnswer, OSError, TimeoutError."""

    def __init__(self, port: int, key: str, name: str) -> None: ...

    async def begin(self, text: str) -> None:
        """Asks, and returns once the answer's first output is here."""

    async def finish(self) -> None:
        """Returns once the answer is whole."""

    async def close(self) -> None: ...


def _fields(text: str, session: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "instructions": "w" * (BODY_BYTES - 300),
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}],
        "stream": True,
        "store": False,
        "max_output_tokens": 400,
        "prompt_cache_key": session,
    }


class Stream:
    """POST, and an event stream."""

    def __init__(self, port: int, key: str, name: str) -> None:
        self._port, self._key, self._name = port, key, name
        self._tail = b""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def begin(self, text: str) -> None:
        body = json.dumps(_fields(text, self._name)).encode()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        head = (
            "POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\naccept: text/event-stream\r\n"
            f"authorization: Bearer {self._key}\r\nsession_id: {self._name}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        await self._read_until(b"event: response.output_text.delta\n")
        if not self._tail.startswith(b"HTTP/1.1 200"):
            raise WrongAnswer(self._tail.decode(errors="replace"))

    async def finish(self) -> None:
        await self._read_until(b"\r\n0\r\n\r\n")
        if b"event: response.completed\n" not in self._tail:
            raise WrongAnswer("the answer has no terminal event")

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    async def _read_until(self, mark: bytes) -> None:
        assert self._reader is not None
        while mark not in self._tail:
            data = await asyncio.wait_for(self._reader.read(65536), SECONDS)
            if not data:
                raise WrongAnswer(f"the connection ended within an answer: {self._tail.decode(errors='replace')}")
            self._tail = (self._tail + data)[-8192:]


class Socket:
    """A WebSocket, and one turn on it."""

    def __init__(self, port: int, key: str, name: str) -> None:
        self._port, self._key, self._name = port, key, name
        self._connection: ClientConnection | None = None

    async def begin(self, text: str) -> None:
        self._connection = await connect(
            f"ws://127.0.0.1:{self._port}/v1/responses",
            additional_headers={"authorization": f"Bearer {self._key}", "session_id": self._name},
            compression=None,
            proxy=None,
            open_timeout=SECONDS,
            # It is not read while it waits.
            max_queue=None,
        )
        await self._connection.send(json.dumps({"type": "response.create", **_fields(text, self._name)}))
        await self._read_until("response.output_text.delta")

    async def finish(self) -> None:
        await self._read_until("response.completed")

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _read_until(self, kind: str) -> None:
        assert self._connection is not None
        while True:
            frame = await asyncio.wait_for(self._connection.recv(), SECONDS)
            found = json.loads(frame)["type"]
            if found == kind:
                return
            if found in ("error", "response.failed", "response.completed"):
                raise WrongAnswer(str(frame)[:2000])


async def each(work: Callable[[Client], Awaitable[None]], clients: Iterable[Client], *, at_once: int = AT_ONCE) -> None:
    """`work` for all of them, `at_once` at the same time. Raises the first error as it is."""
    free = asyncio.Semaphore(at_once)

    async def one(client: Client) -> None:
        async with free:
            await work(client)

    tasks = [asyncio.create_task(one(client)) for client in clients]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
