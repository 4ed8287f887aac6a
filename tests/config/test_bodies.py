"""Bodies are bounded before Django stores them: by what is announced, and by what comes."""

import asyncio
from typing import Any

import pytest

from billing import webhooks
from config import asgi

MOST = 5 * 1024 * 1024


async def post(path: str, chunks: list[bytes], *, length: int | None = None) -> tuple[int, int]:
    """The status of the answer, and how many chunks were taken."""
    left = list(chunks)
    sent: list[Any] = []
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 9),
    }

    async def receive() -> Any:
        if not left:
            # The client waits for its answer.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    await asgi.application(scope, receive, send)
    assert [message["type"] for message in sent].count("http.response.start") == 1
    return sent[0]["status"], len(chunks) - len(left)


@pytest.mark.parametrize(("path", "most"), [("/webhooks/payments/nobody/", webhooks.MOST_BYTES), ("/o/nobody/key", MOST)])
@pytest.mark.django_db(transaction=True)
async def test_a_larger_body_is_refused_before_it_is_stored(path: str, most: int) -> None:
    """L5: the bound is known, and says so; not a byte more is read than it takes to know."""
    half = b"x" * (most // 2)
    assert await post(path, [half] * 9, length=most + 1) == (413, 0)
    assert await post(path, [half] * 9) == (413, 3)
    status, taken = await post(path, [half, half], length=most)
    assert (status != 413, taken) == (True, 2)
