"""What the admin's first page shows."""

from typing import Any

from django.http import HttpRequest


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Called by unfold with the page's context."""
    return context
