"""Which URLs of tenants may be called: never an address inside the operator's own networks, unless they allowed it.

A name is judged by every address it has; who calls it connects to one that was judged, for a name may have another address a
moment later. Base URLs of accounts and URLs of webhooks keep to one rule.
"""

import ipaddress
import socket
from typing import ClassVar, TypeAlias
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.translation import gettext as _

from config.errors import DomainError

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
"""All that is given out of IPv6; the rest is of a link, a site or a machine, or means nothing."""
NAT64 = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 as IPv6-only networks reach it (RFC 6052)."""
INSIDE = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32"))
"""Of nobody on the internet, whatever their numbers say: protocols' own and Oracle's metadata, Azure's WireServer."""


class Refused(DomainError):
    """A URL that must not be called."""

    code: ClassVar[str] = "address_refused"
    status: ClassVar[int] = 400


def judged(url: str, *, name: str, marks: str = "?#\\\x7f") -> list[Address]:
    """The addresses that the URL's host has now, each judged. `name` begins the sentence of a refusal: `A base URL`.

    `marks`: what the URL must not hold beside blanks. May take as long as a name server does. Raises Refused (N72).
    """
    if not url.isascii() or any(mark <= " " or mark in marks for mark in url):
        shown = [mark for mark in marks if mark in "?#"]
        raise Refused(
            _("%(name)s has no blanks, no %(marks)s, and no letters beyond ASCII: a host's name is spelt xn--.")
            % {"name": name, "marks": _(" or ").join(shown)}
            if shown
            else _("%(name)s has no blanks, and no letters beyond ASCII: a host's name is spelt xn--.") % {"name": name}
        )
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise Refused(_("%(name)s's host or port is none.") % {"name": name}) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(_("%(name)s begins with https:// or http:// and names a host.") % {"name": name})
    if parts.username or parts.password:
        raise Refused(_("%(name)s holds no user and no password.") % {"name": name})
    allowed = [ipaddress.ip_network(network) for network in settings.UPSTREAM_ALLOWED_NETWORKS]
    addresses = _addresses(parts.hostname, port)
    for found in addresses:
        if any(found in network for network in allowed if network.version == found.version):
            continue
        if not is_public(found):
            raise Refused(
                _("%(host)s is an address inside a private network. An operator can allow it in UPSTREAM_ALLOWED_NETWORKS.")
                % {"host": parts.hostname}
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
        raise Refused(_("The host %(host)s cannot be found.") % {"host": host}) from None
    found: list[Address] = []
    for info in infos:
        address = ipaddress.ip_address(str(info[4][0]).partition("%")[0])
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        found.append(mapped or address)
    return found
