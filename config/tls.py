"""The certificate authorities that calls to the outside trust."""

import ssl
from functools import cache

import httpx


@cache
def authorities(*, trusts_env: bool) -> ssl.SSLContext:
    """For `verify=` of a client, read once: each reading takes more CPU than the call. `trusts_env`: SSL_CERT_FILE and
    SSL_CERT_DIR are looked at, as httpx does by its `trust_env`."""
    return httpx.create_ssl_context(trust_env=trusts_env)
