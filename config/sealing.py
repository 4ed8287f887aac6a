"""Secrets at rest: encrypted, with the key's id in front, and bound to the row and field they belong to.

A stored text is `id:token`, `token` being Fernet (AES-128-CBC with HMAC) of a JSON object that names the row and the field; a
ciphertext copied into another row or field is refused. The first of ENCRYPTION_KEYS encrypts, all decrypt.
"""

import base64
import json
from functools import lru_cache
from typing import ClassVar
from uuid import UUID

from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings

from config.errors import DomainError


class Broken(DomainError):
    """A stored secret cannot be read, or belongs to another row."""

    code: ClassVar[str] = "seal_broken"
    status: ClassVar[int] = 500


@lru_cache(maxsize=16)
def _fernet(key: str) -> Fernet:
    """A Fernet of a setting's key: url-safe base64 of 32 bytes, with or without padding."""
    try:
        return Fernet(base64.urlsafe_b64encode(base64.urlsafe_b64decode(key + "=" * (-len(key) % 4))))
    except ValueError as error:
        raise Broken("A key of ENCRYPTION_KEYS is not 32 bytes in url-safe base64.") from error


def newest() -> str:
    """The id of the key that encrypts."""
    return next(iter(settings.ENCRYPTION_KEYS))


def seal(value: str, *, row: UUID, field: str) -> str:
    """The text to store. An empty value stays empty. `row`: its uuid."""
    if not value:
        return ""
    key_id = newest()
    key = settings.ENCRYPTION_KEYS[key_id]
    # "account": what it was first made for; the name is in every stored secret.
    plain = json.dumps({"account": str(row), "field": field, "value": value}).encode()
    return f"{key_id}:{_fernet(key).encrypt(plain).decode()}"


def unseal(text: str, *, row: UUID, field: str) -> str:
    """The secret. Raises Broken if its key is not configured, it was changed, or it belongs elsewhere."""
    if not text:
        return ""
    key_id, _, token = text.partition(":")
    key = settings.ENCRYPTION_KEYS.get(key_id)
    if key is None:
        raise Broken("A secret was encrypted with a key that ENCRYPTION_KEYS does not have.", key_id=key_id)
    try:
        plain = json.loads(_fernet(key).decrypt(token.encode()))
    except InvalidToken:
        # Without its cause: a traceback would carry the ciphertext's frames into logs.
        raise Broken("A stored secret cannot be decrypted.", key_id=key_id) from None
    if plain.get("account") != str(row) or plain.get("field") != field:
        raise Broken("A stored secret belongs to another account or field.", key_id=key_id)
    return str(plain["value"])
