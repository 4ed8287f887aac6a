"""ASGI's shapes, and whole answers on it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from proxy.errors import Answer

Scope: TypeAlias = Mapping[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def headers_of(scope: Scope) -> dict[str, str]:
    """Names in lower case; of a name that comes twice the last value, which is what upstreams see last too."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def send_answer(send: Send, answer: Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
