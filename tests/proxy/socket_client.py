"""A client's WebSocket to the gateway in tests: frames as JSON, and how they may look."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.flows.tenants import MODEL, Tenant
from tests.proxy.conftest import Gateway

CODEX = "/backend-api/codex/responses"
ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


def create(text: Any = "Tell me about weirs.", **fields: Any) -> str:
    """A frame as Codex sends it: nothing is stored."""
    return json.dumps({"type": "response.create", "model": MODEL, "stream": True, "store": False, "input": text, **fields})


class Client:
    """An open socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, text: Any = "Tell me about weirs.", **fields: Any) -> None:
        await self.connection.send(create(text, **fields))

    async def frame(self) -> dict[str, Any]:
        value = json.loads(await self.connection.recv())
        assert isinstance(value, dict)
        return value

    async def answer(self) -> list[dict[str, Any]]:
        """The frames of one answer, without heartbeats."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["type"] not in ENDS:
            frame = await self.frame()
            if frame["type"] != "keepalive":
                found.append(frame)
        return found

    async def turn(self, text: Any = "Tell me about weirs.", **fields: Any) -> dict[str, Any]:
        """The last frame of the answer."""
        await self.send(text, **fields)
        return (await self.answer())[-1]

    async def refused(self, text: Any = "Tell me about weirs.", **fields: Any) -> dict[str, Any]:
        """The error frame that is the whole answer."""
        await self.send(text, **fields)
        [frame] = await self.answer()
        assert frame["type"] == "error"
        return frame


@asynccontextmanager
async def opened(gateway: Gateway, tenant: Tenant, path: str = CODEX, **headers: str) -> AsyncIterator[Client]:
    url = gateway.url.replace("http", "ws", 1) + path
    given = {"authorization": tenant.headers["authorization"], **headers}
    async with connect(url, additional_headers=given, proxy=None, compression=None, max_size=2**26) as connection:
        yield Client(connection)


def id_of(frame: dict[str, Any]) -> str:
    """The id of a completed response."""
    assert frame["type"] == "response.completed", frame
    found = frame["response"]["id"]
    assert isinstance(found, str)
    return found


def text_of(frame: dict[str, Any]) -> str:
    text = frame["response"]["output"][0]["content"][0]["text"]
    assert isinstance(text, str)
    return text
