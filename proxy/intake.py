"""The request's body, within its bound and out of its coding."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from proxy.asgi import Receive
from proxy.dialects.inspection import Coded
from proxy.errors import InvalidEncoding, PayloadTooLarge
from proxy.unpacking import CODINGS, Corrupt, TooLarge, Unpacker

CODING_OVERHEAD = 128
"""What cannot be compressed grows by less than a 128th, and a little for its frame."""


class ClientGone(Exception):
    """The client left before its request was whole; nobody is there to be answered."""


@dataclass(frozen=True, slots=True)
class Body:
    """`data` is plain; `coded` the same as it came, if it came in a coding."""

    data: bytes = field(repr=False)
    coded: Coded | None = None


async def read_body(receive: Receive, headers: Mapping[str, str], *, limit: int) -> Body:
    """The whole body, of which `limit` bytes may be plain. Raises PayloadTooLarge, InvalidEncoding, ClientGone."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return Body(await _read(receive, headers, limit, limit, None))
    make = CODINGS.get(encoding)
    if make is None:
        served = "It is taken as zstd, as gzip, and without content-encoding; in one coding, not several."
        raise InvalidEncoding(f"Request bodies in {encoding[:20]!r} are not taken here. {served}")
    unpacker = make(limit)
    data = await _read(receive, headers, limit + limit // CODING_OVERHEAD + 1024, limit, unpacker)
    try:
        unpacker.end()
    except Corrupt as error:
        raise _corrupt(unpacker) from error
    return Body(unpacker.data(), Coded(unpacker.NAME, data))


async def _read(receive: Receive, headers: Mapping[str, str], most: int, limit: int, unpacker: Unpacker | None) -> bytes:
    """The bytes as they come, at most `most`; each part is unpacked before the next one is read."""
    if _declared(headers) > most:
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
            if size > most:
                raise _too_large(limit)
            parts.append(part)
            if unpacker is not None:
                try:
                    unpacker.feed(part)
                except TooLarge as error:
                    raise _too_large(limit) from error
                except Corrupt as error:
                    raise _corrupt(unpacker) from error
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _declared(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The request body is larger than {limit} bytes.")


def _corrupt(unpacker: Unpacker) -> InvalidEncoding:
    return InvalidEncoding(f"The request body is not valid {unpacker.NAME}, or ends too early.")
