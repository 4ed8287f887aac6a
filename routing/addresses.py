"""Which base URLs an account may have: by `config.addresses`, but for the operator's own upstreams.

A name is judged by every address it has; who calls it connects to one that was judged (`pinned`), for a name may have another
address a moment later.
"""

import ipaddress
from urllib.parse import urlsplit

from django.conf import settings

from config import addresses
from config.addresses import Address, is_public
from routing.errors import AddressRefused

__all__ = ["check", "is_local", "is_operators", "is_public", "judged", "pinned"]

NAME = "A base URL"


def check(base_url: str) -> str:
    """The URL without a trailing slash. Raises AddressRefused (N72).

    Every address that the host has now must be public, or in UPSTREAM_ALLOWED_NETWORKS. The operator's own upstreams of API keys
    are trusted.
    """
    address = base_url.strip().rstrip("/")
    if not is_operators(address):
        _judged(address)
    return address


def is_operators(address: str) -> bool:
    """Whether this is the install's own upstream, which is trusted wherever it is."""
    return address in (settings.UPSTREAM_OPENAI_URL.rstrip("/"), settings.UPSTREAM_ANTHROPIC_URL.rstrip("/"))


def is_local(url: str) -> bool:
    """Whether a URL is of this machine: a proxy of the environment is for hosts outside."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def judged(base_url: str) -> tuple[str, ...]:
    """The addresses that the host has now, each judged; who calls it connects to one of these and looks nothing up. May take as
    long as a name server does. Raises AddressRefused."""
    return tuple(str(address) for address in _judged(base_url))


def pinned(base_url: str) -> str | None:
    """The address to connect to, so that the host is not looked up again; None for the install's own. Raises AddressRefused."""
    return None if is_operators(base_url) else str(_judged(base_url)[0])


def _judged(address: str) -> list[Address]:
    try:
        return addresses.judged(address, name=NAME)
    except addresses.Refused as error:
        raise AddressRefused(error.message) from None
