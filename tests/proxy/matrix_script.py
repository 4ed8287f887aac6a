"""How the scripted upstream plays a cell of the matrix, and what the client asks. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from tests.proxy.matrix import AFTER_OUTPUT, Cell, Moment, Surface
from tests.proxy.matrix_failures import HTML, Failure

MODEL = "gpt-5.5"
TEXT = "Tell me about weirs."
DELTAS = ("eightchr", "eightchr")
CUT_AT = 40
"""Bytes of an answer that is no stream."""
BEAT_SECONDS = 0.1
DELAY_SECONDS = 0.35
"""Longer than a preamble is kept back, and than the time between heartbeats."""
STALE_SECONDS = 1.2
"""A kept connection that is cut sooner than this without a word is taken for one that was closed already."""
PATHS = {
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "compact": "/v1/responses/compact",
}


def request(surface: Surface) -> bytes:
    """The body, or a WebSocket's frame."""
    body: dict[str, Any] = {"model": MODEL}
    if surface.transport == "websocket":
        body |= {"type": "response.create", "store": False}
    if surface.dialect in ("chat", "messages"):
        body["messages"] = [{"role": "user", "content": TEXT}]
    else:
        body["input"] = TEXT
    if surface.dialect == "messages":
        body["max_tokens"] = 1000
    if surface.is_live:
        body["stream"] = True
        if surface.dialect == "chat" and surface.asks_for_usage:
            body["stream_options"] = {"include_usage": True}
    return json.dumps(body).encode()


def input_tokens(surface: Surface) -> int:
    """What is estimated of it before anything was learned: a token for four bytes."""
    return -(-len(request(surface)) // 4)


def seen_tokens(cell: Cell) -> int:
    """Output tokens of what came before the end, a token for four bytes."""
    if cell.moment is Moment.CUT_BODY:
        return CUT_AT // 4
    is_counted = cell.surface.wire == "messages"
    if cell.moment in AFTER_OUTPUT:
        # Of Messages' deltas only the bytes of the whole events are read: two times sixteen with the spaces between their words.
        return 8 if is_counted else 4
    # A message's beginning counts its first token.
    return 1 if is_counted and cell.moment is Moment.SILENT_PREAMBLE else 0


def script(cell: Cell, resets_at: int) -> dict[str, Any]:
    """The answers of the account that fails."""
    return _broken(cell) if cell.failure is None else _refused(cell, cell.failure, resets_at)


def _refused(cell: Cell, failure: Failure, resets_at: int) -> dict[str, Any]:
    if cell.moment in (Moment.STATUS, Moment.UPGRADE):
        answer = {"status": failure.status, "body": failure.said(resets_at), "headers": dict(failure.headers)}
        if failure.body is HTML:
            answer["headers"]["content-type"] = "text/html"
        if failure.resets == "head":
            answer["headers"] |= _full(resets_at)
        if cell.moment is Moment.STATUS and cell.surface.wire == "socket":
            # A burst of frames is no burst of heads: what is silent for long gets a heartbeat.
            answer["delay"] = 0.0
        return answer
    if cell.moment is Moment.BODY:
        return {"status": 200, "body": failure.said(resets_at)}
    wire = cell.surface.wire
    failing = _failing(wire, failure, is_bare=cell.moment is Moment.EVENT)
    if cell.moment is Moment.EVENT:
        return {"events": [failing]}
    if cell.moment is Moment.BEAT:
        delay = {"delay": DELAY_SECONDS} if wire == "socket" else {"first_event_delay": DELAY_SECONDS}
        return {"events": [failing], **delay}
    output = _output(wire) if cell.moment is Moment.OUTPUT else []
    return {"events": [*_preamble(cell.surface), *output, failing]}


def _full(resets_at: int) -> Mapping[str, str]:
    return {
        "x-codex-primary-used-percent": "100",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": str(resets_at),
        "x-codex-secondary-used-percent": "17",
        "x-codex-secondary-window-minutes": "10080",
        "x-codex-secondary-reset-at": str(resets_at + 400_000),
    }


def _broken(cell: Cell) -> dict[str, Any]:
    wire, moment = cell.surface.wire, cell.moment
    preamble = _preamble(cell.surface)
    events = [*preamble, *_output(wire)]
    is_socket = wire == "socket"
    match moment:
        case Moment.CUT_REQUEST:
            return {"cut_before_head": True} | ({} if is_socket else {"delay": STALE_SECONDS})
        case Moment.CUT_BEAT:
            return {"events": preamble, "first_event_delay": DELAY_SECONDS, "cut_after_events": 0, "cut_how": "close"}
        case Moment.CUT_PREAMBLE:
            return {"events": preamble, "cut_after_events": len(preamble), "cut_how": 1011 if is_socket else "close"}
        case Moment.CUT_OUTPUT:
            return {"events": events, "cut_after_events": len(events), "cut_how": "close"}
        case Moment.CUT_BODY:
            return {"cut_after_bytes": CUT_AT, "cut_how": "close"}
        case Moment.END_PREAMBLE:
            return {"events": preamble}
        case Moment.END_OUTPUT:
            return {"events": events}
        case Moment.SILENT_HEAD:
            return {"silence": "head"}
        case Moment.SILENT_BODY:
            return {"silence": "body"}
        case Moment.SILENT_PREAMBLE:
            return {"events": preamble, "silence_after_events": len(preamble)}
        case Moment.SILENT_OUTPUT:
            return {"events": events, "silence_after_events": len(events)}
    raise AssertionError(moment)


# ---------------------------------------------------------------------------------------------------------------- events


def _chunk(delta: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def _preamble(surface: Surface) -> list[dict[str, Any]]:
    """What comes before any output."""
    if surface.wire == "chat":
        return [_chunk({"role": "assistant", "content": ""})]
    if surface.wire == "messages":
        usage = {"input_tokens": input_tokens(surface), "output_tokens": 1}
        head: dict[str, Any] = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [],
            "stop_reason": None,
        }
        return [{"type": "message_start", "message": {**head, "usage": usage}}, {"type": "ping"}]
    names = ("response.created", "response.in_progress")
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "status": "in_progress",
        "model": MODEL,
        "output": [],
        "usage": None,
    }
    return [{"type": name, "sequence_number": number, "response": response} for number, name in enumerate(names)]


def _output(wire: str) -> list[dict[str, Any]]:
    """Two deltas of eight bytes each."""
    if wire == "chat":
        return [_chunk({"content": delta}) for delta in DELTAS]
    if wire == "messages":
        deltas = [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}} for text in DELTAS]
        return [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, *deltas]
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    return [
        {"type": "response.output_text.delta", "sequence_number": number, **place, "delta": delta}
        for number, delta in enumerate(DELTAS, 2)
    ]


def _failing(wire: str, failure: Failure, *, is_bare: bool) -> dict[str, Any]:
    if wire == "chat":
        return {"error": failure.error(0)}
    if wire == "messages":
        return {"type": "error", "error": failure.error(0)}
    if is_bare:
        return {"type": "error", "sequence_number": 0, "code": failure.code, "message": failure.message, "param": None}
    error = {"code": failure.code, "message": failure.message}
    response: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "status": "failed",
        "model": MODEL,
        "output": [],
        "usage": None,
        "error": error,
    }
    return {"type": "response.failed", "sequence_number": 9, "response": response}
