"""Whose rows the database shows: the current organization's, all (operators, walks over organizations), or none.

Row level security decides in PostgreSQL by the setting `weir.organization`; the database backend (`config.database`) sets it on a
connection before the next statement. The role that the product runs as cannot bypass it. Each door enters a scope once: pages in
`accounts.tenancy`, the API in its authentication, tasks and the ledger process around each organization, operators in
`OperatorCommand` and the admin's middleware. What is not entered shows nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SETTING = "weir.organization"
NOTHING, EVERYTHING = "", "*"

_scope: ContextVar[str | None] = ContextVar("scope", default=None)
_fallback = NOTHING


def current() -> str:
    """An organization's id as text, EVERYTHING or NOTHING."""
    entered = _scope.get()
    return _fallback if entered is None else entered


@contextmanager
def organization(organization_id: int) -> Iterator[None]:
    """Only the rows of this organization, and those that belong to all."""
    with _entered(str(int(organization_id))):
        yield


@contextmanager
def everything() -> Iterator[None]:
    """All rows: for operators, and for look-ups that find out which organization it is (a key, a link, a person's memberships)."""
    with _entered(EVERYTHING):
        yield


@contextmanager
def nothing() -> Iterator[None]:
    """No tenant's rows, whatever the caller was in: where a request or a task begins."""
    with _entered(NOTHING):
        yield


def fall_back_to(scope: str) -> None:
    """What holds where no scope was entered. Only the tests change it, for their own queries."""
    global _fallback
    _fallback = scope


@contextmanager
def _entered(scope: str) -> Iterator[None]:
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def policies(*tables: str, column: str = "organization_id", is_shared_read: bool = False) -> str:
    """SQL that makes tables show only the scope's rows, to their owner too.

    `is_shared_read`: rows without an organization are everybody's to read, and only EVERYTHING's to write.
    """
    everything = f"(SELECT current_setting('{SETTING}', true) = '{EVERYTHING}')"
    own = f"{column} = (SELECT NULLIF(NULLIF(current_setting('{SETTING}', true), ''), '{EVERYTHING}')::bigint)"
    read = f"{everything} OR {own}" + (f" OR {column} IS NULL" if is_shared_read else "")
    return "".join(
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;\nALTER TABLE {table} FORCE ROW LEVEL SECURITY;\n"
        f"CREATE POLICY tenant ON {table} USING ({read}) WITH CHECK ({everything} OR {own});\n"
        for table in tables
    )


def without_policies(*tables: str) -> str:
    """The reverse, for migrations."""
    return "".join(
        f"DROP POLICY tenant ON {table};\nALTER TABLE {table} NO FORCE ROW LEVEL SECURITY;\n"
        f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY;\n"
        for table in tables
    )
