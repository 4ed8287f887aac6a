"""System checks that name a wrong setting at start. Values are never printed."""

from collections.abc import Sequence
from typing import Any

from cryptography.fernet import Fernet
from django.conf import settings
from django.core.checks import Error, Tags, register
from django.db import connections


@register
def check_settings(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[Error]:
    """Settings that parse one by one but do not fit together or cannot work."""
    problems: list[Error] = []
    for identifier, key in settings.ENCRYPTION_KEYS.items():
        try:
            Fernet(key)
        except ValueError:
            problems.append(
                Error(
                    f"ENCRYPTION_KEYS: the key with id {identifier!r} is not a Fernet key.",
                    hint="A Fernet key is 32 random bytes in url-safe base64.",
                    id="weir.E001",
                )
            )
    for identifier, pepper in settings.KEY_PEPPERS.items():
        if len(pepper) < 32:
            problems.append(
                Error(
                    f"KEY_PEPPERS: the pepper with id {identifier!r} has fewer than 32 characters.",
                    hint="Use 32 random bytes in hex or base64.",
                    id="weir.E002",
                )
            )
        if pepper == settings.SECRET_KEY:
            problems.append(Error("KEY_PEPPERS must not hold SECRET_KEY.", id="weir.E003"))
    if len(settings.SECRET_KEY) < 32:
        problems.append(Error("SECRET_KEY has fewer than 32 characters.", id="weir.E004"))
    if settings.HOLD_RENEW_SECONDS * 2 > settings.HOLD_DEADLINE_SECONDS:
        problems.append(
            Error(
                "HOLD_RENEW_SECONDS must be at most half of HOLD_DEADLINE_SECONDS.",
                hint="One late renewal must not orphan a running stream.",
                id="weir.E005",
            )
        )
    return problems


@register(Tags.database)
def check_database_role(app_configs: Sequence[Any] | None, databases: Sequence[str] | None = None, **kwargs: Any) -> list[Error]:
    """Row level security holds only for a role that cannot bypass it."""
    problems: list[Error] = []
    for alias in databases or ():
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user")
            is_super, bypasses = cursor.fetchone()
        if is_super or bypasses:
            problems.append(
                Error(
                    "DATABASE_URL names a role that bypasses row level security.",
                    hint="Use a role with NOSUPERUSER NOBYPASSRLS that owns the database.",
                    id="weir.E006",
                )
            )
    return problems
