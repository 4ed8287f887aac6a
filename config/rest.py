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
        # Django's own 404 and 403 have no words; what DRF made of them has.
        said = response.data.get("detail") if isinstance(response.data, dict) else None
        code = getattr(said, "code", None) or getattr(error, "default_code", "error")
        message = str(said or getattr(error, "detail", error))
        response.data = {"error": {"code": code, "message": message, "detail": response.data}}
    return response
