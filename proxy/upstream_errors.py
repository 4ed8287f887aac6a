"""An upstream's own words about a failed request, as a client can read them. Pure."""

import json

from config.json_bounds import has_too_many
from proxy.errors import JSON_TYPE, Answer, Shape, openai_shape
from proxy.upstream import Response


def type_of(response: Response, body: bytes) -> tuple[bytes, bytes]:
    value = response.headers.get("content-type")
    return JSON_TYPE if value is None or body.lstrip().startswith(b"{") else (b"content-type", value.encode("latin-1"))


def is_stream(answer: Answer) -> bool:
    """Can the body be sent as events of a stream that has begun?"""
    return all(value.startswith(b"text/event-stream") for name, value in answer.headers if name == b"content-type")


def with_envelope(body: bytes, *, shape: Shape = openai_shape, status: int = 400) -> bytes:
    """An upstream's `{"detail": ...}` as the error that SDKs of the dialect read; every other body as it is."""
    if has_too_many(body):
        return body
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(value, dict) or "error" in value or "detail" not in value:
        return body
    detail = value["detail"]
    code = detail.get("code") if isinstance(detail, dict) else None
    message = detail if isinstance(detail, str) else json.dumps(detail)
    envelope = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return json.dumps(shape(envelope, status)).encode()


def error_of(data: bytes) -> tuple[str, str]:
    """Code and message of a failing event."""
    try:
        value = {} if has_too_many(data) else json.loads(data)
    except (ValueError, RecursionError):
        value = {}
    found = value if isinstance(value, dict) else {}
    for holder in (found.get("response"), found):
        if isinstance(holder, dict) and isinstance(holder.get("error"), dict):
            found = holder["error"]
            break
    return str(found.get("code") or "server_error")[:80], str(found.get("message") or "The upstream failed.")[:2000]
