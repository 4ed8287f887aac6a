"""Secrets made once for an embedded stack and kept in one 0600 file of its data folder."""

import base64
import json
import os
import secrets
from pathlib import Path

FILE = "secrets.json"


def make() -> dict[str, str]:
    return {
        "SECRET_KEY": secrets.token_urlsafe(48),
        "ENCRYPTION_KEYS": "k1:" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "KEY_PEPPERS": "p1:" + secrets.token_hex(32),
        "POSTGRES_PASSWORD": secrets.token_urlsafe(24),
        "DATABASE_PASSWORD": secrets.token_urlsafe(24),
        "REDIS_PASSWORD": secrets.token_urlsafe(24),
    }


def write_private(path: Path, text: str) -> None:
    """Writes a 0600 file in one step: a reader sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as handle:
        handle.write(text)
    temporary.replace(path)


def load_or_make(var: Path) -> dict[str, str]:
    """The folder's secrets; made at the first call."""
    path = var / FILE
    if not path.exists():
        write_private(path, json.dumps(make(), indent=1))
    return dict(json.loads(path.read_text()))
