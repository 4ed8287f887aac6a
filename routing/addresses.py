"""Which base URLs an account may have: never an address inside the operator's own networks, unless they allowed it.

A name is judged by every address it has; who calls it connects to one that was judged (`pinned`), for a name may have another
address a moment later.
"""

import ipaddress
import socket
from typing import TypeAlias
from urllib.parse import urlsplit

from django.conf import settings

from routing.errors import AddressRefused

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All that is given out of IPv6; the rest is of a link, a site or a machine, or means nothing."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 as IPv6-only networks reach it (RFC 6052)."""
INSIDE = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))
"""Of nobody on the internet, whatever their numbers say: protocols' own and Oracle's metadata, Azure's WireServer."""


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
    if not address.isascii() or any(mark <= " " or mark in "?#\\\x7f" for mark in address):
        raise AddressRefused("A base URL has no blanks, no ? or #, and no letters beyond ASCII: a host's name is spelt xn--.")
    parts = urlsplit(address)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise AddressRefused("The base URL's port is not a number.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefused("A base URL begins with https:// or http:// and names a host.")
    if parts.username or parts.password:
        raise AddressRefused("A base URL holds no user and no password.")
    allowed = [ipaddress.ip_network(network) for network in settings.UPSTREAM_ALLOWED_NETWORKS]
    addresses = _addresses(parts.hostname, port)
    for found in addresses:
        if any(found in network for network in allowed if network.version == found.version):
            continue
        if not is_public(found):
            raise AddressRefused(
                f"{parts.hostname} is an address inside a private network. An operator can allow it in UPSTREAM_ALLOWED_NETWORKS."
            )
    return addresses


def is_public(address: Address) -> bool:
    """Whether the address is one of the internet's, whoever is in the same network; also one that only wraps another."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in network for network in INSIDE)


def _addresses(host: str, port: int) -> list[Address]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressRefused(f"The host {host} cannot be found.") from None
    found: list[Address] = []
    for info in infos:
        address = ipaddress.ip_address(str(info[4][0]).partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        found.append(mapped or address)
    return found
