"""The request's body, within its bound."""

from collections.abc import Mapping

from proxy.asgi import Receive
from proxy.errors import InvalidEncoding, PayloadTooLarge


class ClientGone(Exception):
    """The client left before its request was whole; nobody is there to be answered."""


async def read_body(receive: Receive, headers: Mapping[str, str], *, limit: int) -> bytes:
    """The whole body, at most `limit` bytes. Raises PayloadTooLarge, InvalidEncoding, ClientGone."""
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise InvalidEncoding(f"Request bodies in {encoding[:20]!r} are not taken here. Send it without content-encoding.")
    if _declared(headers) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        part: bytes = message.get("body", b"")
        if part:
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _declared(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than {limit} bytes.")
