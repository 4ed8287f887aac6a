"""Which base URLs an account may have: never an address inside the operator's own networks, unless they allowed it."""

import ipaddress
import socket
from urllib.parse import urlsplit

from django.conf import settings

from routing.errors import AddressRefused


def check(base_url: str) -> str:
    """The URL without a trailing slash. Raises AddressRefused (N72).

    Every address that the host has now must be public, or in UPSTREAM_ALLOWED_NETWORKS. The operator's own
    UPSTREAM_OPENAI_URL is trusted.
    """
    address = base_url.strip().rstrip("/")
    if address == settings.UPSTREAM_OPENAI_URL.rstrip("/"):
        return address
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
    for found in _addresses(parts.hostname, port):
        if any(found in network for network in allowed if network.version == found.version):
            continue
        if not found.is_global or found.is_multicast:
            raise AddressRefused(
                f"{parts.hostname} is an address inside a private network. An operator can allow it in UPSTREAM_ALLOWED_NETWORKS."
            )
    return address


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
