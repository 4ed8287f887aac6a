"""How the pool comes back after PostgreSQL was away. What psycopg's pool does by itself is too slow for a request that waits.

It pauses twice as long after each connection that turns out to be dead, and it tries to open a new one ever more seldom: four that
died with the server, or an outage of ten seconds, and a request fails although the server is back.
"""

from typing import Any

from psycopg import Connection, Error
from psycopg_pool import ConnectionPool

RETRY_SECONDS = 1.0
"""Between two attempts to connect while somebody waits."""


def options() -> dict[str, Any]:
    """For the pool of a process, as Django's setting takes them. It connects at the first query."""
    return {
        "min_size": 0,
        "max_size": 10,
        "timeout": 10,
        # Given up after the second attempt, and begun anew by `keep_trying`: the pauses never grow.
        "reconnect_timeout": RETRY_SECONDS,
        "reconnect_failed": keep_trying,
    }


def keep_trying(pool: "ConnectionPool[Any]") -> None:
    """Called when the pool gives up an attempt: begins another one if somebody waits. Else who comes next begins it."""
    if pool.get_stats()["requests_waiting"]:
        pool.check()


def answers(connection: "Connection[Any]") -> bool:
    """Whether the server still knows this connection; one round trip."""
    try:
        ConnectionPool.check_connection(connection)
    except Error:
        return False
    return True


def discard_with_all(pool: "ConnectionPool[Any]", connection: "Connection[Any]") -> None:
    """A connection was dead: those that lie in the pool died with it. New ones are opened in their place."""
    pool.putconn(connection)
    pool.drain()
