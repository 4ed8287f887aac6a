"""The one source of wall-clock time; doors call it once and hand `now` on."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Aware UTC now."""
    return datetime.now(UTC)
