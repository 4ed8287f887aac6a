"""The scripted upstream's WebSocket, by an ordinary client: chains, warm-ups, refusals, and the ways it breaks off."""

import json
import time
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.upstream import ScriptedUpstream

CODEX = "/backend-api/codex/responses"
KEY = "sk-test-upstream-socket"


def opened(upstream: ScriptedUpstream, auth: dict[str, Any] | None = None) -> ClientConnection:
    headers = {"authorization": f"Bearer {KEY}"}
    path = "/v1/responses"
    if auth is not None:
        path = CODEX
        headers = {
            "authorization": f"Bearer {auth['tokens']['access_token']}",
            "chatgpt-account-id": auth["tokens"]["account_id"],
        }
    url = upstream.url.replace("http", "ws", 1) + path
    return connect(url, additional_headers=headers, compression=None, proxy=None, ping_interval=None)


def ask(socket: ClientConnection, text: Any = "hello", **fields: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "model": "gpt-5.4", "input": text, "store": False, **fields}))


def until_end(socket: ClientConnection) -> list[dict[str, Any]]:
    """The frames of one answer."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] not in ("response.completed", "response.failed", "response.incomplete", "error"):
        found.append(json.loads(socket.recv(timeout=5)))
    return found


def test_a_turn_follows_its_warm_up_on_the_same_connection_only(upstream: ScriptedUpstream) -> None:
    auth = upstream.mint(short_percent=41)
    with opened(upstream, auth) as socket:
        ask(socket, generate=False)
        created, completed = until_end(socket)[-2:]
        assert (created["type"], completed["type"]) == ("response.created", "response.completed")
        warm = completed["response"]
        assert (warm["id"], warm["usage"]["total_tokens"]) == (created["response"]["id"], 0)
        ask(socket, "hi there", previous_response_id=warm["id"])
        limits, *events = until_end(socket)
        assert limits["type"] == "codex.rate_limits"
        assert limits["rate_limits"]["primary"]["used_percent"] == 41
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "You said: hi there"
        assert events[-1]["response"]["usage"]["input_tokens"] > 0
    with opened(upstream, auth) as socket:
        ask(socket, previous_response_id=warm["id"])
        [error] = until_end(socket)
    assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
    account = auth["tokens"]["account_id"]
    upgrade, first, second, again, third = upstream.received(account=account)
    assert (upgrade.method, upgrade.status, upgrade.path) == ("GET", 101, CODEX)
    assert [row.method for row in (first, second, third)] == ["WEBSOCKET"] * 3
    assert first.json["generate"] is False
    assert {upgrade.socket, first.socket, second.socket} != {again.socket} == {third.socket}
    assert third.status == 400


def test_refusals_come_as_error_frames_and_leave_the_socket_open(upstream: ScriptedUpstream) -> None:
    with opened(upstream) as socket:
        upstream.script({"error": "429_rate"}, {"error": "429_plain"}, token=KEY)
        ask(socket)
        [error] = until_end(socket)
        assert (error["status"], error["error"]["code"], error["headers"]["retry-after"]) == (429, "rate_limit_exceeded", "2")
        ask(socket)
        [error] = until_end(socket)
        assert error["error"]["message"] == "Too many requests"
        socket.send(b"\x00")
        assert until_end(socket)[0]["error"]["code"] == "invalid_json"
        socket.send("{}")
        assert until_end(socket)[0]["error"]["code"] == "invalid_type"
        ask(socket)
        assert until_end(socket)[-1]["type"] == "response.completed"


def test_a_full_account_is_refused_by_a_frame(upstream: ScriptedUpstream) -> None:
    with opened(upstream, upstream.mint(short_percent=100)) as socket:
        ask(socket)
        error = until_end(socket)[-1]
    assert (error["status"], error["error"]["type"]) == (429, "usage_limit_reached")
    assert error["error"]["resets_at"] > time.time()
    assert error["headers"]["x-codex-primary-used-percent"] == "100"


@pytest.mark.parametrize(("error", "status"), [("401", 401), ("429_usage", 429), ("503_overloaded", 503)])
def test_an_upgrade_is_refused_by_script(upstream: ScriptedUpstream, error: str, status: int) -> None:
    upstream.script({"error": error}, token=KEY, transport="upgrade")
    with pytest.raises(InvalidStatus) as caught, opened(upstream):
        pass
    assert caught.value.response.status_code == status
    assert "error" in json.loads(caught.value.response.body)


@pytest.mark.parametrize("status", [404, 426])
def test_an_upgrade_is_declined_by_script(upstream: ScriptedUpstream, status: int) -> None:
    upstream.script({"status": status}, token=KEY, transport="upgrade")
    with pytest.raises(InvalidStatus) as caught, opened(upstream):
        pass
    assert caught.value.response.status_code == status
    with opened(upstream) as socket:
        ask(socket)
        until_end(socket)


@pytest.mark.parametrize(("how", "code"), [("reset", 1006), ("close", 1006), (1009, 1009)])
def test_an_answer_breaks_off_as_the_script_says(upstream: ScriptedUpstream, how: str | int, code: int) -> None:
    upstream.script({"cut_after_events": 3, "cut_how": how}, token=KEY)
    with opened(upstream) as socket:
        ask(socket)
        for _ in range(3):
            socket.recv(timeout=5)
        with pytest.raises(ConnectionClosed) as caught:
            socket.recv(timeout=5)
    assert (caught.value.rcvd.code if caught.value.rcvd else 1006) == code
    assert upstream.received(token=KEY)[-1].state == "cut"


def test_a_deaf_upstream_answers_no_ping(upstream: ScriptedUpstream) -> None:
    upstream.script({"silence_after_events": 1, "deaf": True}, token=KEY)
    with opened(upstream) as socket:
        assert socket.ping().wait(5)
        ask(socket)
        socket.recv(timeout=5)
        assert not socket.ping().wait(0.2)
        upstream.reset()


def test_raw_frames_go_out_as_they_are(upstream: ScriptedUpstream) -> None:
    lines = ['{"type": "response.created",  "response":{"id":"r"}}', '{"type":"response.completed","response":{"id":"r"}}']
    upstream.script({"raw": "\n".join(lines)}, token=KEY)
    with opened(upstream) as socket:
        ask(socket)
        assert [socket.recv(timeout=5), socket.recv(timeout=5)] == lines
