"""The OpenAI SDK for Python, driven in the form of node_sdk.py: the same operations, the same results."""

from typing import Any

import openai


def run(*operations: dict[str, Any], base_url: str, key: str, retries: int = 0) -> list[dict[str, Any]]:
    """What each operation came to, in order: its result, or {"error": {"name", "status", "code", "type", "message"}}. Blocks."""
    with openai.OpenAI(base_url=base_url, api_key=key, max_retries=retries) as client:
        return [_done(client, one) for one in operations]


def _done(client: openai.OpenAI, operation: dict[str, Any]) -> dict[str, Any]:
    options = operation.get("options", {})
    # The SDK for Node counts in milliseconds.
    if "timeout" in options:
        client = client.with_options(timeout=options["timeout"] / 1000)
    try:
        return _OPERATIONS[operation["name"]](client, operation.get("params", {}))
    except openai.APIError as error:
        status = error.status_code if isinstance(error, openai.APIStatusError) else None
        told = {"status": status, "code": error.code, "type": error.type, "message": error.message}
        return {"error": {"name": type(error).__name__, **told}}


def _create(client: openai.OpenAI, params: dict[str, Any]) -> dict[str, Any]:
    found = client.responses.create(**params)
    given = found.to_dict()
    return {"text": found.output_text, "status": found.status, "usage": given["usage"], "output": given["output"]}


def _stream(client: openai.OpenAI, params: dict[str, Any]) -> dict[str, Any]:
    with client.responses.create(**params, stream=True) as stream:
        return _told(stream)


def _abandon(client: openai.OpenAI, params: dict[str, Any]) -> dict[str, Any]:
    stream = client.responses.create(**params, stream=True)
    next(event for event in stream if event.type == "response.output_text.delta")
    stream.close()
    return {}


def _models(client: openai.OpenAI, _: dict[str, Any]) -> dict[str, Any]:
    return {"ids": [model.id for model in client.models.list()]}


def _socket(client: openai.OpenAI, params: dict[str, Any]) -> dict[str, Any]:
    with client.responses.connect() as socket:
        socket.response.create(**params)
        return _told(socket)


def _told(events: Any) -> dict[str, Any]:
    """Up to what ends an answer: its terminal event, or an error."""
    kinds: list[str] = []
    text, usage = "", None
    for event in events:
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.completed":
            usage = event.response.usage.to_dict()
        if event.type in ("response.completed", "response.failed", "error"):
            break
    return {"kinds": kinds, "text": text, "usage": usage}


_OPERATIONS = {"create": _create, "stream": _stream, "abandon": _abandon, "models": _models, "socket": _socket}
