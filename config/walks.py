"""Walks over organizations, as tasks make them: each one's part in its own scope, and its trouble its own."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import InterfaceError, OperationalError

from config import scope

logger = logging.getLogger(__name__)


@contextmanager
def apart(organization_id: int) -> Iterator[None]:
    """One organization's part of a walk. What fails in it is logged, and the others still have theirs.

    Raises what means the database itself: then the walk ends, and the next one finds everything where it is.
    """
    try:
        with scope.organization(organization_id):
            yield
    except (OperationalError, InterfaceError):
        raise
    except Exception:
        logger.exception("a part of a walk failed", extra={"organization_id": organization_id})
