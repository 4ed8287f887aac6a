"""Which base URLs an account may have: never an address inside the operator's own networks, unless they allowed it.

A name is judged by every address it has; who calls it connects to one that was judged (`pinned`), for a name may have another
address a moment later.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from django.conf import settings

from routing.errors import AddressRefused


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


def pinned(base_url: str) -> str | None:
    """The address to connect to, so that the host is not looked up again; None for the install's own. Raises AddressRefused."""
    return None if is_operators(base_url) else str(_judged(base_url)[0])


def _judged(address: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    parts = urlsplit(address)
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise AddressRefused("The base URL's port is not a number.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressRefused("A base URL begins with https:// or http:// and names a host.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise AddressRefused("A base URL holds no user, password, query or fragment.")
    allowed = [ipaddress.ip_network(network) for network in settings.UPSTREAM_ALLOWED_NETWORKS]
    addresses = _addresses(parts.hostname, port)
    for found in addresses:
        if any(found in network for network in allowed if network.version == found.version):
            continue
        if not found.is_global or found.is_multicast:
            raise AddressRefused(
                f"{parts.hostname} is an address inside a private network. An operator can allow it in UPSTREAM_ALLOWED_NETWORKS."
            )
    return addresses


def _addresses(host: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressRefused(f"The host {host} cannot be found.") from None
    found = []
    for info in infos:
        address = ipaddress.ip_address(str(info[4][0]).partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        found.append(mapped or address)
    return found
