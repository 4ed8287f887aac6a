"""What of an upstream's URL says where to connect, and what to ask for there. Pure."""

from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit


class Origin(NamedTuple):
    scheme: str
    host: str
    port: int

    @property
    def authority(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        standard = {"http": 80, "https": 443}[self.scheme]
        return (host if self.port == standard else f"{host}:{self.port}").encode()


@lru_cache(maxsize=1024)
def split(url: str) -> tuple[Origin, bytes]:
    """Origin and request target of an absolute http(s) URL. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("an upstream URL must be absolute, with http or https")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    encoded = target.encode("ascii")
    if any(byte <= 0x20 or byte == 0x7F for byte in encoded):
        raise ValueError("an upstream URL must not hold blanks or control characters")
    return Origin(parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}[parts.scheme]), encoded
