"""Django's PostgreSQL backend, which tells each connection whose rows it may see before the next statement."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg.pq import TransactionStatus

from config import patience, scope
from config.database import pool as database_pool

MOST_RESTARTS = 3
"""So many times the server may go away while one connection is fetched."""


class DatabaseWrapper(base.DatabaseWrapper):
    """Keeps the session settings of `config.scope` and `config.patience` in step with the context that a statement runs in.

    A connection fresh from the pool may still hold another's setting, so it is set before the first statement; a rollback may
    take it back, so it is set again after one.
    """

    _applied: tuple[str, int | None] | None = None

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        self._applied = None
        made = super().get_new_connection(conn_params)
        for _ in range(MOST_RESTARTS):
            if self.pool is None or database_pool.answers(made):
                break
            database_pool.discard_with_all(self.pool, made)
            made = super().get_new_connection(conn_params)
        return made

    def create_cursor(self, name: str | None = None) -> Any:
        self._apply()
        return super().create_cursor(name)

    def _set_autocommit(self, autocommit: bool) -> None:
        if not autocommit:
            # Before the transaction begins: it may choose its isolation level only before its first statement.
            self._apply()
        super()._set_autocommit(autocommit)  # type: ignore[misc]  # django-stubs leave it out

    def _commit(self) -> None:
        # The server answers the COMMIT of a transaction that failed by a rollback, and without an error.
        is_lost = self.connection is not None and self.connection.info.transaction_status == TransactionStatus.INERROR
        super()._commit()  # type: ignore[misc]
        if is_lost:
            self._applied = None

    def _rollback(self) -> None:
        self._applied = None
        super()._rollback()  # type: ignore[misc]

    def _savepoint_rollback(self, sid: str) -> None:
        super()._savepoint_rollback(sid)  # type: ignore[misc]
        self._applied = None

    def _apply(self) -> None:
        wanted = scope.current(), patience.current()
        if wanted == self._applied or self.connection is None:
            return
        if self.connection.info.transaction_status == TransactionStatus.INERROR:
            # Only a rollback comes through now.
            self._applied = None
            return
        self._applied = None
        # One round trip. The scope is digits, a star or nothing.
        limits = "RESET statement_timeout; RESET max_parallel_workers_per_gather"
        if wanted[1] is not None:
            limits = f"SET statement_timeout = {wanted[1]}; SET max_parallel_workers_per_gather = 0"
        self.connection.execute(f"SELECT set_config('{scope.SETTING}', '{wanted[0]}', false); {limits}")
        self._applied = wanted
