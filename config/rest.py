"""What the REST API shares: DomainError and DRF errors in one JSON shape."""

from typing import Any

from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler

from config.errors import DomainError


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """`{"error": {"code", "message", ...facts}}` with the error's status; None lets Django answer 500."""
    if isinstance(error, DomainError):
        return Response({"error": {"code": error.code, "message": error.message, **error.facts}}, status=error.status)
    response = drf_exception_handler(error, context)
    if response is not None:
        code = getattr(error, "default_code", "error")
        response.data = {"error": {"code": code, "message": str(getattr(error, "detail", error)), "detail": response.data}}
    return response
