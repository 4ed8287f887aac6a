"""How long one database statement may take: pages give up after a while, tasks and commands do not.

A page that asks for too much must not take the database down for everybody (H5): neither for long, nor with more than one of its
cores. Many pages are read at a time, and on a busy server one process sums a month sooner than three do. The database backend
(`config.database`) sets both on a connection before the next statement, as it does with `config.scope`; the middleware enters it
for every page.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

PAGE_SECONDS = 5.0
"""For every statement of a page, the admin or the API. A month's report takes a tenth of it at ten million requests."""

_limit: ContextVar[int | None] = ContextVar("patience", default=None)


def current() -> int | None:
    """Milliseconds; None: the server's own setting."""
    return _limit.get()


@contextmanager
def statements_within(seconds: float) -> Iterator[None]:
    """A statement that takes longer is cancelled: django.db.OperationalError, caused by psycopg's QueryCanceled."""
    token = _limit.set(round(seconds * 1000))
    try:
        yield
    finally:
        _limit.reset(token)


@contextmanager
def unlimited() -> Iterator[None]:
    """Statements take what they take, also in a page: for what one does while others wait, such as new counters."""
    token = _limit.set(None)
    try:
        yield
    finally:
        _limit.reset(token)
