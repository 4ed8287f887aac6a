"""Secrets of accounts at rest, by `config.sealing`: bound to the row and field they belong to."""

from uuid import UUID

from config import sealing
from config.sealing import newest
from routing.errors import SealBroken

__all__ = ["newest", "seal", "unseal"]


def seal(value: str, *, account: UUID, field: str) -> str:
    """The text to store. An empty value stays empty. `account`: the row's uuid, an account's or another's."""
    try:
        return sealing.seal(value, row=account, field=field)
    except sealing.Broken as error:
        raise SealBroken(error.message, **error.facts) from error.__cause__


def unseal(text: str, *, account: UUID, field: str) -> str:
    """The secret. Raises SealBroken if its key is not configured, it was changed, or it belongs elsewhere."""
    try:
        return sealing.unseal(text, row=account, field=field)
    except sealing.Broken as error:
        raise SealBroken(error.message, **error.facts) from error.__cause__
