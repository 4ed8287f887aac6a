"""The only reader of environment variables: typed, and loud at start.

Every setting of the README's table is one field of `VARIABLES`; a test compares the two.
"""

import base64
import ipaddress
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable: how its text becomes a value, what holds when it is unset."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    about: str
    secret: bool = False


class Required:
    """Marks a variable that has no default."""


REQUIRED = Required()


def _text(value: str) -> str:
    return value.strip()


def _words(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _positive_seconds(value: str) -> float:
    seconds = float(value)
    if not 0 < seconds < 10_000_000:
        raise ValueError("must be a number of seconds above 0")
    return seconds


def _positive_int(value: str) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError("must be a whole number above 0")
    return number


def _count(value: str) -> int:
    number = int(value)
    if number < 0:
        raise ValueError("must be a whole number, 0 or more")
    return number


def _yes_or_no(value: str) -> bool:
    try:
        return {"yes": True, "no": False}[value.lower()]
    except KeyError:
        raise ValueError("must be yes or no") from None


def _keys(value: str) -> dict[str, str]:
    """`id:key,id:key` in order, the first one is used for new secrets."""
    keys: dict[str, str] = {}
    for part in _words(value):
        identifier, separator, key = part.partition(":")
        if not separator or not identifier or not key:
            raise ValueError("must be a list of id:key, separated by commas")
        if identifier in keys:
            raise ValueError(f"names the key id {identifier!r} twice")
        keys[identifier] = key
    if not keys:
        raise ValueError("must hold at least one id:key")
    return keys


def _webhook_secrets(value: str) -> dict[str, tuple[str, ...]]:
    """`provider:secret,…`; a provider may stand there several times, while its secret is rotated. Secrets are base64."""
    secrets: dict[str, tuple[str, ...]] = {}
    for part in _words(value):
        provider, separator, secret = part.partition(":")
        key = secret.removeprefix("whsec_")
        if not separator or not provider or not key:
            raise ValueError("must be a list of provider:secret, separated by commas")
        # Too short to be a secret, or not base64: whoever signs with the text itself would never match.
        if len(base64.b64decode(key, validate=True)) < 16:
            raise ValueError("holds a secret of fewer than 16 bytes")
        secrets[provider] = (*secrets.get(provider, ()), secret)
    return secrets


def _url(*schemes: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        address = value.strip().rstrip("/")
        parts = urlsplit(address)
        if parts.scheme not in schemes:
            raise ValueError("must begin with " + " or ".join(f"{scheme}://" for scheme in schemes))
        if not parts.netloc and not parts.path:
            raise ValueError("names no host")
        return address

    return parse


def _redis_url(value: str) -> str:
    address = _url("redis", "rediss", "unix")(value)
    path = urlsplit(address).path
    if not address.startswith("unix") and path not in ("", "/", "/0"):
        raise ValueError("must name database 0 (Cluster knows no other)")
    return address


def _networks(value: str) -> list[str]:
    return [str(ipaddress.ip_network(part)) for part in _words(value)]


def _path(value: str) -> Path:
    return Path(value.strip()).expanduser().absolute()


VARIABLES: tuple[Variable, ...] = (
    Variable("DATABASE_URL", _url("postgresql", "postgres"), REQUIRED, "PostgreSQL 15 to 18; the truth", secret=True),
    Variable("REDIS_URL", _redis_url, REQUIRED, "Valkey or Redis 7.2 or newer, database 0: counters, holds, streams", secret=True),
    Variable("CELERY_BROKER_URL", _redis_url, None, "broker of the workers; default REDIS_URL", secret=True),
    Variable("CHANNEL_REDIS_URL", _redis_url, None, "channel layer of the live pages; default REDIS_URL", secret=True),
    Variable("SECRET_KEY", _text, REQUIRED, "signs sessions and links", secret=True),
    Variable(
        "ENCRYPTION_KEYS", _keys, REQUIRED, "`id:key` list of Fernet keys for account tokens, first one encrypts", secret=True
    ),
    Variable("KEY_PEPPERS", _keys, REQUIRED, "`id:key` list of peppers for gateway keys, first one digests", secret=True),
    Variable("PUBLIC_URL", _url("http", "https"), "http://127.0.0.1:8000", "address that developers paste"),
    Variable("ALLOWED_HOSTS", _words, ["127.0.0.1", "localhost", "[::1]"], "host names that pages answer to"),
    Variable("TRUSTED_PROXIES", _networks, [], "networks whose X-Forwarded-For and -Proto are believed"),
    Variable("EMAIL_URL", _text, None, "e.g. smtp+tls://user:password@host:587; unset: files in WEIR_VAR/mail", secret=True),
    Variable("DEFAULT_FROM_EMAIL", _text, "Weir <weir@localhost>", "sender of e-mail"),
    Variable(
        "UPSTREAM_CHATGPT_URL", _url("http", "https"), "https://chatgpt.com/backend-api", "ChatGPT backend of sign-in accounts"
    ),
    Variable("UPSTREAM_OPENAI_URL", _url("http", "https"), "https://api.openai.com/v1", "API of `openai` accounts"),
    Variable("UPSTREAM_ANTHROPIC_URL", _url("http", "https"), "https://api.anthropic.com/v1", "API of `anthropic` accounts"),
    Variable("UPSTREAM_AUTH_URL", _url("http", "https"), "https://auth.openai.com", "issuer that renews sign-in tokens"),
    Variable("OAUTH_CLIENT_ID", _text, "app_EMoamEEZ73f0CkXaXp7hrann", "public client of the vendor's CLI"),
    Variable("UPSTREAM_ALLOWED_NETWORKS", _networks, [], "private networks that account and webhook URLs may point to"),
    Variable("PROXY_MAX_BODY_BYTES", _positive_int, 16 * 1024 * 1024, "largest request body, decompressed"),
    Variable("UPSTREAM_CONNECT_TIMEOUT_SECONDS", _positive_seconds, 10.0, "to connect to an upstream"),
    Variable("UPSTREAM_HEADER_TIMEOUT_SECONDS", _positive_seconds, 60.0, "until an upstream's response head"),
    Variable("UPSTREAM_IDLE_TIMEOUT_SECONDS", _positive_seconds, 300.0, "between two reads of an upstream's body"),
    Variable("HEARTBEAT_SECONDS", _positive_seconds, 10.0, "silence after which a stream gets a heartbeat"),
    Variable("DISCONNECT_GRACE_SECONDS", _positive_seconds, 2.0, "for the terminal event once the client has left"),
    Variable("DRAIN_SECONDS", _positive_seconds, 30.0, "for running streams once a process is told to stop"),
    Variable("HOLD_DEADLINE_SECONDS", _positive_seconds, 30.0, "after which a hold that nobody renews is settled as orphaned"),
    Variable("HOLD_RENEW_SECONDS", _positive_seconds, 10.0, "between renewals of running holds"),
    Variable("KEY_ROTATION_GRACE_SECONDS", _positive_seconds, 86400.0, "for which a rotated key still works"),
    Variable("API_REQUESTS_PER_MINUTE", _count, 600, "calls of `/api/v1/` that one token may make; 0: as many as it likes"),
    Variable(
        "USAGE_RETENTION_MONTHS", _positive_int, None, "whole months for which the usage log is kept; unset: for ever; sums stay"
    ),
    Variable(
        "PAYMENT_WEBHOOK_SECRETS",
        _webhook_secrets,
        {},
        "`provider:secret` list, secrets as the provider shows them (`whsec_` and base64); two of one provider while it is rotated",
        secret=True,
    ),
    Variable("ADMIN_SECOND_FACTOR", _yes_or_no, False, "`yes`: operators need a second factor for the operators' pages"),
    Variable("WEIR_VAR", _path, None, "data folder; default chosen by demo, up and test"),
)


@dataclass(frozen=True, slots=True)
class Environment:
    """The values read, by name; attribute access fails loudly for a name that is not declared."""

    values: Mapping[str, Any] = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Parse every declared variable. An empty text counts as unset.

    Raises ImproperlyConfigured that names each wrong variable and what is wrong, and never its value.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            if variable.default is REQUIRED:
                problems.append(f"{variable.name} is not set ({variable.about})")
            values[variable.name] = variable.default
            continue
        try:
            values[variable.name] = variable.parse(text)
        except ValueError as error:
            reason = "is not valid" if variable.secret and variable.parse is not _keys else str(error)
            problems.append(f"{variable.name}: {reason} ({variable.about})")
    if problems:
        raise ImproperlyConfigured("Wrong settings:\n  " + "\n  ".join(problems))
    return Environment(values)
