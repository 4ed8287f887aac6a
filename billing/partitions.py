"""Monthly partitions of the usage log, by UTC month of `admitted_at`: made ahead, so that no row waits for one.

What has no partition of its own goes to the default one; when its month is made later, its rows move there.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import connection, transaction

from config import scope

TABLE = "billing_usagerecord"
DEFAULT = f"{TABLE}_default"

# Two callers at once (a migration, the task) would both see a partition missing.
_LOCK = 0x77656972
# The table's comment: it lives and dies with the rows it speaks of, and changes in the transaction that drops them.
_COMPLETE = "complete since "


@dataclass(frozen=True, slots=True)
class Month:
    """The table of one UTC month, [start, end)."""

    table: str
    start: datetime
    end: datetime


def make_partitions(now: datetime, months_ahead: int = 3, months_back: int = 2) -> list[str]:
    """Makes what is missing for the months around `now`; the names of the tables made. Safe to repeat and to race."""
    made = []
    # Whose rows they are does not matter when rows are moved.
    with scope.everything(), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        for offset in range(-months_back, months_ahead + 1):
            start, end = month(now, offset), month(now, offset + 1)
            if end <= complete_since():
                # Retention dropped it; what still comes for it is little, and the default partition takes that.
                continue
            name = f"{TABLE}_{start:%Y_%m}"
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
            if cursor.fetchone()[0]:
                continue
            cursor.execute(f"SELECT EXISTS (SELECT FROM {DEFAULT} WHERE admitted_at >= %s AND admitted_at < %s)", [start, end])  # noqa: S608
            if cursor.fetchone()[0]:
                _make_by_moving(name, start, end)
            else:
                _make(name, start, end)
            made.append(name)
    return made


def months() -> list[Month]:
    """Every month that has a table, the oldest first."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass", [TABLE])
        names = [name for (name,) in cursor.fetchall() if name != DEFAULT]
    found = []
    for name in names:
        start = datetime.strptime(name.removeprefix(f"{TABLE}_"), "%Y_%m").replace(tzinfo=UTC)
        found.append(Month(name, start, month(start, 1)))
    return sorted(found, key=lambda one: one.start)


def sort_out_default(until: datetime) -> None:
    """Gives months before `until` whose rows lie in the default partition a table of their own, so that they can be dropped."""
    with scope.everything(), connection.cursor() as cursor:
        cursor.execute(
            f"SELECT DISTINCT date_trunc('month', admitted_at, 'UTC') FROM {DEFAULT} WHERE admitted_at < %s",  # noqa: S608
            [until],
        )
        for (start,) in cursor.fetchall():
            make_partitions(start, months_ahead=0, months_back=0)


def replace(start: datetime, table: str) -> None:
    """Puts a table of the log's columns, filled apart, in the place of the month's, whose rows it takes over. Its constraints are
    checked and its indexes made here, which is much quicker than row by row."""
    old = f"{TABLE}_{start:%Y_%m}"
    with scope.everything(), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        cursor.execute(f"ALTER TABLE {TABLE} DETACH PARTITION {old}")
        cursor.execute(f"INSERT INTO {table} SELECT * FROM {old}")  # noqa: S608
        cursor.execute(f"DROP TABLE {old}")
        cursor.execute(f"ALTER TABLE {table} RENAME TO {old}")
        bounds = f"FROM ('{start.isoformat()}') TO ('{month(start, 1).isoformat()}')"
        cursor.execute(f"ALTER TABLE {TABLE} ATTACH PARTITION {old} FOR VALUES {bounds}")
        cursor.execute(f"ALTER TABLE {old} RESET (autovacuum_enabled)")
        _guard(old)


def drop(one: Month) -> None:
    """Drops the month's table and remembers from when on the log is complete, in the caller's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        cursor.execute(f"ALTER TABLE {TABLE} DETACH PARTITION {one.table}")
        cursor.execute(f"DROP TABLE {one.table}")
        if one.end > complete_since():
            cursor.execute(f"COMMENT ON TABLE {TABLE} IS '{_COMPLETE}{one.end.isoformat()}'")


def complete_since() -> datetime:
    """From when on the log still holds all that was written: retention says here what it dropped."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT obj_description(%s::regclass, 'pg_class')", [TABLE])
        (said,) = cursor.fetchone()
    if not said or not said.startswith(_COMPLETE):
        return datetime(1970, 1, 1, tzinfo=UTC)
    return datetime.fromisoformat(said.removeprefix(_COMPLETE))


def month(now: datetime, offset: int) -> datetime:
    """The start of the UTC month that is `offset` months after `now`'s."""
    utc = now.astimezone(UTC)
    years, month = divmod(utc.month - 1 + offset, 12)
    return datetime(utc.year + years, month + 1, 1, tzinfo=UTC)


def _make(name: str, start: datetime, end: datetime) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} PARTITION OF {TABLE} FOR VALUES FROM ('{start.isoformat()}') TO ('{end.isoformat()}')")
    _guard(name)


def _make_by_moving(name: str, start: datetime, end: datetime) -> None:
    """The default partition holds rows of the month; rows are never deleted, so it is detached, copied and dropped whole."""
    old = f"{DEFAULT}_old"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {TABLE} DETACH PARTITION {DEFAULT}")
        cursor.execute(f"ALTER TABLE {DEFAULT} RENAME TO {old}")
        _make(name, start, end)
        make_default()
        cursor.execute(f"INSERT INTO {TABLE} SELECT * FROM {old}")  # noqa: S608
        cursor.execute(f"DROP TABLE {old}")


def make_default() -> None:
    """The partition for what no other takes."""
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {DEFAULT} PARTITION OF {TABLE} DEFAULT")
    _guard(DEFAULT)


def _guard(name: str) -> None:
    """Row triggers are inherited by partitions; the guard against TRUNCATE and row level security are not."""
    protect_all()
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TRIGGER usage_never_truncated BEFORE TRUNCATE ON {name} "
            "FOR EACH STATEMENT EXECUTE FUNCTION billing_append_only()"
        )


def protect_all() -> None:
    """Row level security on every partition that there is: what is asked of one directly must not go round the parent's."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid "
            "WHERE inhparent = %s::regclass AND NOT relrowsecurity",
            [TABLE],
        )
        names = [name for (name,) in cursor.fetchall()]
        for name in names:
            cursor.execute(scope.policies(name))
