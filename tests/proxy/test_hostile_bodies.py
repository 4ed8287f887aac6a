"""Bodies made to hold up everybody else: reading one costs no more than a few walks over its bytes.

CPU time and not the clock's, so that a busy machine changes little; each took ten times its bound before.
"""

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from proxy import anchors, metering, sse, upstream_errors
from proxy.dialects import chat, chat_meter, chat_words, messages, responses
from proxy.dialects.messages_meter import MessagesMeter
from proxy.errors import BadAnswer, InvalidJson
from proxy.metering import Meter
from proxy.sse import Event
from routing import failures, observations

SIZE = 3 << 20
LISTS = b"[" + b"[]," * (SIZE // 3) + b"1]"
OBJECTS = b"[" + b"{}," * (SIZE // 3) + b"{}]"
MOST_SECONDS = 0.3


def cheaply(call: Callable[[], Any]) -> Any:
    """What `call` gives, or the refusal that it raises; it must not take long."""
    gc.collect()
    began = time.process_time()
    try:
        found = call()
    except (InvalidJson, ValueError, BadAnswer) as error:
        found = error
    assert time.process_time() - began < MOST_SECONDS
    return found


# ----------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    "said",
    [
        b'[{"type":"compaction","encrypted_content":"x"},' + OBJECTS[1:],
        b'[{"type":"compaction","id":' + LISTS + b"}]",
    ],
    ids=["items", "id"],
)
def test_items_beyond_number_name_nothing(said: bytes) -> None:
    found = responses.inspect(b'{"model":"gpt-5.5","input":' + said + b"}")
    assert cheaply(lambda: anchors.anchors_of(found, {})) == ()


@pytest.mark.parametrize(
    "said",
    [b'{"file_id":"file-1"},' * (SIZE // 21), b'{"file_ids":[' + b'"file-1",' * 1500 + b'"file-1"]},'],
    ids=["one by one", "lists"],
)
def test_a_file_named_a_hundred_thousand_times_is_one(said: bytes) -> None:
    many = said * max(1, SIZE // len(said))
    found = responses.inspect(b'{"model":"gpt-5.5","input":[' + many + b"1]}")
    [anchor] = cheaply(lambda: anchors.anchors_of(found, {}))
    assert anchor.id == "file-1"


@pytest.mark.parametrize(
    ("read", "name"),
    [
        (lambda: anchors.anchors_of(responses.inspect(b'{"model":"gpt-5.5","conversation":' + LISTS + b"}"), {}), "conversation"),
        (lambda: responses.inspect(b'{"model":"gpt-5.5","reasoning":{"effort":' + LISTS + b"}}"), "effort"),
        (lambda: messages.inspect(b'{"model":"claude","output_config":{"effort":' + LISTS + b"}}"), "effort"),
        (lambda: chat.inspect(b'{"model":"gpt-5.5","reasoning":{"effort":' + LISTS + b"}}"), "effort"),
        (lambda: _translated(b'"messages":[{"role":"user","content":"hi"}],"tools":' + OBJECTS), "tools"),
        (lambda: _translated(b'"messages":' + LISTS), "messages"),
    ],
)
def test_a_field_with_values_beyond_number_is_refused(read: Callable[[], object], name: str) -> None:
    refused = cheaply(read)
    assert isinstance(refused, InvalidJson)
    assert refused.facts["param"] == name


def _translated(field: bytes) -> object:
    return chat.wire(chat.inspect(b'{"model":"gpt-5.5",' + field + b"}"), model="gpt-5.5", kind="chatgpt")


@pytest.mark.parametrize("user", ['{"session_id":' + "[1]," * (SIZE // 4), "session_abcdefgh" * (SIZE // 16) + "!"])
def test_a_users_id_of_megabytes_names_no_session(user: str) -> None:
    body = json.dumps({"model": "claude", "metadata": {"user_id": user}}).encode()
    assert cheaply(lambda: messages.inspect(body)).prompt_cache_key is None


# ------------------------------------------------------------------------------------------------------------ answers

HALF = b'{"id":"resp_1","x":"\\ud800","status":"completed","usage":{"input_tokens":1,"output_tokens":1},"output":'
"""Half a surrogate pair is read by the lenient reader only."""


COUNTED = {"input_tokens": 1, "output_tokens": 1}


@pytest.mark.parametrize("body", [HALF + LISTS + b"}", HALF.replace(b"\\ud800", b"") + LISTS + b"}"])
def test_of_an_answer_beyond_number_only_its_cost_is_read(body: bytes) -> None:
    """Probabilities of a few thousand tokens are as many; what such an answer cost must not be guessed."""
    meter = Meter()
    cheaply(lambda: meter.see_response(body))
    assert (meter.usage, meter.status, meter.response_id) == (COUNTED, "ok", "resp_1")
    meter, event = Meter(), b'{"type":"response.completed","response":' + body + b"}"
    cheaply(lambda: meter.see(Event("response.completed", len(event), 0, event)))
    assert (meter.usage, meter.status, meter.response_id) == (COUNTED, "ok", "resp_1")
    chat_whole = chat_meter.ChatMeter()
    cheaply(lambda: chat_whole.see_response(body.replace(b'"output":', b'"choices":')))
    assert (chat_whole.usage, chat_whole.status, chat_whole.response_id) == (COUNTED, "ok", "resp_1")
    chunk = chat_meter.read(body.replace(b'"output":', b'"choices":'))
    assert chunk is not None
    assert not chat_meter.is_usage_alone(chunk)


@pytest.mark.parametrize("make", [Meter, MessagesMeter])
@pytest.mark.parametrize("body", [LISTS, b'{"id":"resp_1","status":"completed","usage":' + LISTS + b"}"])
def test_an_answer_beyond_number_is_not_read(make: type[Meter], body: bytes) -> None:
    meter = make()
    cheaply(lambda: meter.see_response(body))
    assert meter.usage is None
    event = b'{"type":"response.completed","response":' + body + b',"message":' + body + b"}"
    name = "response.completed" if make is Meter else "message_start"
    cheaply(lambda: meter.see(Event(name, len(event), 0, event)))
    assert meter.usage is None
    assert meter.usage_so_far is None


def test_an_answer_that_is_large_and_no_more_is_read() -> None:
    """Its usage is not lost for its length, nor for half a surrogate pair."""
    text = json.dumps("one, two, [three]. " * 200_000).encode()
    meter = Meter()
    meter.see_response(HALF + b"[" + text + b"]}")
    assert meter.usage == {"input_tokens": 1, "output_tokens": 1}


@pytest.mark.parametrize(
    "read",
    [
        lambda: anchors.made_by_answer(b'{"output":' + OBJECTS + b"}", is_stored=True),
        lambda: anchors.made_by_end(b'{"response":{"output":' + OBJECTS + b"}}", is_stored=True),
        lambda: anchors.made_by_item(b'{"item":{"type":"compaction","id":' + LISTS + b"}}"),
    ],
)
def test_an_answers_items_beyond_number_are_kept_by_nobody(read: Callable[[], object]) -> None:
    assert cheaply(read) == []


def test_errors_beyond_number_say_nothing() -> None:
    data = b'{"error":{"code":"usage_limit_reached","x":' + LISTS + b"}}"
    assert cheaply(lambda: failures.classify(429, {}, data)).kind is failures.Kind.RATE
    assert cheaply(lambda: upstream_errors.error_of(data)) == ("server_error", "The upstream failed.")
    assert cheaply(lambda: upstream_errors.with_envelope(data)) is data
    assert cheaply(lambda: observations.of_event(data, 0.0)) is None
    assert cheaply(lambda: chat_words.loaded(data)) == {}
    found = cheaply(lambda: chat_meter.read(data))
    assert (found.error, found.choices, found.usage) == (None, None, None)


def test_an_answer_of_a_million_items_is_folded_as_it_is() -> None:
    data = b'{"type":"response.completed","response":{"id":"resp_1","output":' + OBJECTS + b"}}"
    assert cheaply(lambda: responses.fold(data, [b'{"item":{}}'])) == data[data.index(b'{"id"') : -1]


@pytest.mark.parametrize("output", [b"", b',"output":null', b',"output":[]', b',"output":[ ]'])
def test_an_answer_without_items_is_folded_with_those_that_came(output: bytes) -> None:
    folded = responses.fold(b'{"response":{"id":"resp_1"' + output + b"}}", [b'{"item":{"id":"msg_1"}}'])
    assert json.loads(folded) == {"id": "resp_1", "output": [{"id": "msg_1"}]}


@pytest.mark.parametrize(
    "part",
    [b"\n", b"\r\n", b"data:[]\n", b"data:[]\r\n", b": c\n", b"x\r"],
    ids=["blank lines", "blank CRLF lines", "data", "data CRLF", "comments", "lone CRs"],
)
def test_a_stream_of_nothing_is_read_as_nothing(part: bytes) -> None:
    scanner = sse.Scanner(metering.want, largest=metering.LARGEST_EVENT_BYTES)
    chunk = part * (65_536 // len(part))

    def feed() -> list[Event]:
        found: list[Event] = []
        for _ in range(SIZE // len(chunk)):
            found += scanner.feed(chunk)[0]
        return found + scanner.feed(b"\n\n")[0]

    events = cheaply(feed)
    assert {event.name for event in events} <= {""}
    assert not any(event.data for event in events)
    [event] = scanner.feed(b'data: {"type":"response.completed"}\n\n')[0]
    assert event.name == "response.completed"
