"""A bound on request bodies, before Django: it writes a whole body to memory or disk before any view or check is asked."""

from collections.abc import Mapping
from typing import Any


def bounded(application: Any, most: int, *, at_prefix: Mapping[str, int]) -> Any:
    """The ASGI application, for bodies of at most `most` bytes, or of what the path's prefix says; a larger one is answered 413 as
    soon as that is known."""

    async def bound(scope: Any, receive: Any, send: Any) -> None:
        most_bytes = next((own for prefix, own in at_prefix.items() if scope["path"].startswith(prefix)), most)
        if _announced(scope) > most_bytes:
            await _refuse(send, most_bytes)
            return
        seen = 0

        async def counted() -> Any:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > most_bytes:
                    # Django has not begun to answer before it has the whole body; now it never will.
                    return {"type": "http.disconnect"}
            return message

        await application(scope, counted, send)
        if seen > most_bytes:
            await _refuse(send, most_bytes)

    return bound


def _announced(scope: Any) -> int:
    for name, value in scope["headers"]:
        # What is no number is the server's to refuse; the bytes are counted in any case.
        if name == b"content-length" and value.isdigit() and len(value) < 20:
            return int(value)
    return 0


async def _refuse(send: Any, most_bytes: int) -> None:
    body = b'{"error": {"code": "payload_too_large", "message": "A body has at most %d bytes here."}}' % most_bytes
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": body})
