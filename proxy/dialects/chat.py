"""The Chat Completions protocol: what is read of a request, what may be changed in it, how its stream is passed on. Pure.

Accounts that speak it get the client's bytes, with their usage asked for. ChatGPT sign-in accounts do not speak it: for them the
request is translated to Responses (`chat_translation`), and what they answer back (`chat_events`, `chat_completion`).
"""

import json
import re
import time
import uuid
from typing import Any

import msgspec

from proxy import metering
from proxy.dialects import chat_completion, chat_events, chat_meter, chat_translation, chat_words, fields
from proxy.dialects.chat_events import Chunks
from proxy.dialects.chat_meter import ChatMeter, WholeMeter
from proxy.dialects.chat_words import Asked
from proxy.dialects.fields import REMOVED, Fields
from proxy.dialects.inspection import Coded, Inspection, model_of, typed
from proxy.dialects.wire import Wire
from proxy.errors import InvalidJson, openai_shape
from proxy.sse import Event, Want
from routing.snapshots import CHATGPT, COMPATIBLE, OPENAI

NAME = "chat"
PATH = "/chat/completions"
SIGN_IN_PATH = "/codex/responses"
KINDS = frozenset({CHATGPT, OPENAI, COMPATIBLE})
NATIVE_KINDS = KINDS - {CHATGPT}
HEARTBEAT = b": ping\n\n"
"""A comment: every chunk would have to be one of an answer."""
OPENING_BYTES = 2048
_MOST_ANSWERS = 128

refusal = openai_shape


def inspect(body: bytes, *, coded: Coded | None = None) -> Inspection:
    """Reads a request body. Raises InvalidJson (also for a field of ours with the wrong kind of value), ModelMissing."""
    found = fields.scan(body)
    model = model_of(found)
    asks_for_usage(found)
    return Inspection(
        fields=found,
        model=model,
        stream=typed(found, "stream", bool) or False,
        # Completions that OpenAI stores go on nowhere: no later request needs the account that made them.
        store=False,
        service_tier=typed(found, "service_tier", str),
        reasoning_effort=_effort(found),
        prompt_cache_key=typed(found, "prompt_cache_key", str),
        previous_response_id=None,
        max_output_tokens=_most_output(found),
        opening=_opening(found),
        coded=coded,
        kinds=None if chat_translation.is_possible(found) else NATIVE_KINDS,
    )


def asks_for_usage(found: Fields) -> bool:
    """Does the client want to see the usage of its stream? Raises InvalidJson."""
    raw = found.raw("stream_options")
    if raw is None or not raw.startswith(b"{"):
        return False
    options = fields.scan(raw)
    try:
        return typed(options, "include_usage", bool) or False
    except InvalidJson as error:
        raise InvalidJson(error.message, param="stream_options.include_usage") from error


def _effort(found: Fields) -> str | None:
    """`reasoning_effort`; or `reasoning.effort`, as gateways spell it. A key may be denied it: it is as little to be there twice as
    a field of the body, nor in both spellings with two values."""
    effort = typed(found, "reasoning_effort", str)
    raw = found.raw("reasoning")
    if raw is None or not raw.startswith(b"{"):
        return effort
    other = fields.scan(raw).value("effort")
    if not isinstance(other, str):
        return effort
    if effort is not None and effort != other:
        raise InvalidJson("The request asks for two reasoning efforts.", param="reasoning_effort")
    return other


def _most_output(found: Fields) -> int | None:
    """The most tokens that all answers together may have."""
    bounds = [typed(found, name, int) for name in ("max_completion_tokens", "max_tokens")]
    answers = typed(found, "n", int) or 1
    most = max((bound for bound in bounds if bound is not None), default=None)
    return None if most is None else most * max(1, min(answers, _MOST_ANSWERS))


def _opening(found: Fields) -> bytes:
    """How a conversation begins that names itself nowhere: up to what the user said first, which later requests repeat."""
    raw = (found.raw("messages") or b"")[:OPENING_BYTES]
    text = raw.decode(errors="ignore")
    decoder, at = json.JSONDecoder(), 1
    try:
        while at < len(text):
            while text[at] in " \t\r\n,":
                at += 1
            message, at = decoder.raw_decode(text, at)
            if isinstance(message, dict) and message.get("role") == "user":
                return text[:at].encode()
    except (ValueError, IndexError, RecursionError):
        # Cut off within a message: the beginning of a long one tells conversations apart by itself.
        pass
    return raw


def wire(inspection: Inspection, *, model: str, kind: str) -> Wire:
    """Raises NotServed, InvalidJson for what cannot be translated for a sign-in account."""
    return SignInWire(inspection, model=model) if kind == CHATGPT else ChatWire(inspection, model=model)


# ------------------------------------------------------------------------------------------------- accounts that speak it


class ChatWire(Wire):
    """Chat Completions to Chat Completions: bytes pass as they are, but for the usage of a client that did not ask for it."""

    def __init__(self, inspection: Inspection, *, model: str) -> None:
        found = inspection.fields
        is_usage_added = inspection.stream and not asks_for_usage(found)
        changes: dict[str, object] = {} if model == inspection.model else {"model": model}
        if is_usage_added:
            changes["stream_options"] = _with_usage(found.raw("stream_options"))
        super().__init__(
            path=PATH,
            body=fields.edit(found, changes) if changes else inspection.body,
            is_streamed=inspection.stream,
            meter=ChatMeter(choices=max(1, typed(found, "n", int) or 1)),
        )
        self.is_translated = is_usage_added

    def want(self, name: str) -> Want:
        return Want.WHOLE

    def want_to_fold(self, name: str) -> Want:
        return Want.WHOLE

    def translated(self, events: list[Event]) -> bytes:
        return b"".join([_passed(event) for event in events])

    def fold(self, events: list[Event]) -> bytes:
        raise ValueError("a stream that was not asked for")

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        return chat_words.error_chunk(code, message)


def _with_usage(raw: bytes | None) -> msgspec.Raw:
    """`stream_options` with the usage asked for; every other option stays as it is spelt."""
    if raw is None or not raw.startswith(b"{"):
        return msgspec.Raw(b'{"include_usage":true}')
    return msgspec.Raw(fields.edit(fields.scan(raw), {"include_usage": True}))


def _passed(event: Event) -> bytes:
    """An event for a client that did not ask for usage: OpenAI then sends neither the frame with the usage alone nor the
    `"usage":null` of all others."""
    data = event.data
    if data is None:
        return b""
    if b'"usage"' in data:
        passed = _without_null_usage(data)
        if passed is data:
            chunk = chat_meter.read(data)
            if chunk is not None and chat_meter.is_usage_alone(chunk):
                return b""
        data = passed
    name = b"event: error\n" if event.name == "error" and b'"type"' not in data else b""
    return name + b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


def _without_null_usage(data: bytes) -> bytes:
    """The chunk without a `usage` that is null; nested ones are not ours. Fast, because nearly every chunk of a stream has one."""
    found = _NULL_USAGE.search(data)
    if found is None:
        return data
    try:
        if data.count(b'"usage"') == 1 and _usage.decode(data).usage is None:
            return data[: found.start()] + data[found.end() :]
        chunk = fields.scan(data)
    except (msgspec.DecodeError, RecursionError, InvalidJson):
        # Half a surrogate pair in a delta, say. It is the client's to read, as it came.
        return data
    return fields.edit(chunk, {"usage": REMOVED}) if chunk.raw("usage") == b"null" else data


class _Usage(msgspec.Struct):
    usage: Any = msgspec.UNSET


_usage = msgspec.json.Decoder(_Usage)
_NULL_USAGE = re.compile(rb',\s*"usage"\s*:\s*null|(?<=\{)\s*"usage"\s*:\s*null\s*,')


# ------------------------------------------------------------------------------------------------------ sign-in accounts


class SignInWire(Wire):
    """Chat Completions to Responses and back."""

    is_translated = True

    def __init__(self, inspection: Inspection, *, model: str) -> None:
        super().__init__(
            path=SIGN_IN_PATH,
            body=chat_translation.request(inspection, model=model),
            is_streamed=True,
            meter=WholeMeter(),
        )
        self._asked = Asked(
            model=inspection.model,
            with_usage=asks_for_usage(inspection.fields),
            is_legacy=chat_translation.is_legacy(inspection.fields),
            answer_id=f"chatcmpl-{uuid.uuid4().hex}",
            created_at=int(time.time()),
        )
        self._chunks = Chunks(self._asked)

    def want(self, name: str) -> Want:
        return chat_events.want(name)

    def want_to_fold(self, name: str) -> Want:
        return metering.want_to_fold(name)

    def translated(self, events: list[Event]) -> bytes:
        return self._chunks.translated(events)

    def fold(self, events: list[Event]) -> bytes:
        return chat_completion.fold(events, self._asked)

    def whole(self, body: bytes) -> bytes:
        """The upstream should have streamed. A response that it sent whole is read all the same."""
        response = chat_words.loaded(body)
        status = metering.TERMINAL.get(f"response.{response.get('status')}", "ok")
        try:
            return chat_completion.completion(response, [], self._asked, status=status)
        except ValueError:
            return body

    def failed(self, *, code: str, message: str, response_id: str, model: str, created_at: int, sequence_number: int) -> bytes:
        return self._chunks.failed(code=code, message=message)
