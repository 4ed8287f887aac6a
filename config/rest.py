"""What the REST API shares: DomainError, DRF's errors and the database's in one JSON shape."""

from collections.abc import Iterator, Mapping
from typing import Any

from django.db import OperationalError
from psycopg.errors import QueryCanceled
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler as drf_exception_handler

from config.errors import DomainError

UNKNOWN_FIELD = "unknown_field"
RETRY_SECONDS = 5


def exception_handler(error: Exception, context: dict[str, Any]) -> Response | None:
    """`{"error": {"code", "message", ...facts}}` with the error's status; None lets Django answer 500."""
    if isinstance(error, DomainError):
        return refusal(error)
    if isinstance(error, ValidationError):
        return _wrong_fields(error)
    if isinstance(error, OperationalError):
        return _unavailable(error)
    response = drf_exception_handler(error, context)
    if response is not None:
        # Django's own 404 and 403 have no words; what DRF made of them has.
        said = response.data.get("detail") if isinstance(response.data, dict) else None
        code = getattr(said, "code", None) or getattr(error, "default_code", "error")
        response.data = {"error": {"code": code, "message": str(said or getattr(error, "detail", error))}}
    return response


def refusal(error: DomainError) -> Response:
    """A field that the domain names is told under the same name as one that the API names."""
    facts = dict(error.facts)
    if "field" in facts:
        facts["param"] = facts.pop("field")
    response = Response({"error": {**facts, "code": error.code, "message": str(error.message)}}, status=error.status)
    seconds = error.facts.get("retry_after")
    if seconds is None and error.status == 503:
        seconds = RETRY_SECONDS
    if seconds is not None:
        response["Retry-After"] = str(seconds)
    return response


def _wrong_fields(error: ValidationError) -> Response:
    """Every wrong field by its path (`limits.0.amount`); the first one makes the message. One that is unknown comes first."""
    found = sorted(_flat(error.detail), key=lambda one: one[2] != UNKNOWN_FIELD)
    path, message, code = found[0]
    facts: dict[str, Any] = {"param": path} if path else {}
    return Response(
        {
            "error": {
                "code": UNKNOWN_FIELD if code == UNKNOWN_FIELD else "invalid",
                "message": f"{path}: {message}" if path else message,
                **facts,
                "fields": {path: message for path, message, _ in found},
            }
        },
        status=400,
    )


def _flat(detail: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            here = path if name == "non_field_errors" else f"{path}.{name}" if path else str(name)
            yield from _flat(inner, here)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            is_message = not isinstance(inner, Mapping | list)
            if is_message or inner:
                yield from _flat(inner, path if is_message else f"{path}.{index}" if path else str(index))
    else:
        yield path, str(detail), getattr(detail, "code", "invalid")


def _unavailable(error: OperationalError) -> Response:
    if isinstance(error.__cause__, QueryCanceled):
        code, message = "too_much", "This asks for more than can be told at once. Ask for less, such as fewer days."
    else:
        code, message = "unavailable", "The database does not answer at the moment. Try again in a few seconds."
    response = Response({"error": {"code": code, "message": message}}, status=503)
    response["Retry-After"] = str(RETRY_SECONDS)
    return response
