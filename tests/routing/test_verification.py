"""An address of a tenant's own is asked once, and whatever it sends is bounded."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from routing import verification
from routing.errors import CredentialRefused


@contextmanager
def endless(head: bytes, part: bytes) -> Iterator[tuple[str, list[int]]]:
    """A server whose answers never end; its URL, and how many bytes it could send to each who asked."""
    taken: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65_536)
                count = 0
                try:
                    peer.sendall(head)
                    # Enough to be noticed, and an end for a reader that has none.
                    while count < 64 << 20:
                        peer.sendall(part)
                        count += len(part)
                except OSError:
                    pass
                taken.append(count)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1", taken
        thread.join(10)


@pytest.mark.parametrize(("status", "is_taken"), [(200, True), (404, True), (401, False)])
def test_an_answer_without_end_is_not_waited_for(settings: Any, status: int, is_taken: bool) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n" % status
    with endless(head, b"[" * 65_536) as (url, taken):
        began = time.monotonic()
        call: Callable[[], None] = lambda: verification.api_key("sk-1", url, kind="openai_compatible")  # noqa: E731
        if is_taken:
            call()
        else:
            with pytest.raises(CredentialRefused, match=f"status {status}"):
                call()
        assert time.monotonic() - began < 10
    # What the system holds between two sockets of one machine, and no more.
    assert taken[0] < 32 << 20


def test_the_upstreams_own_word_for_a_refusal_is_told(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    body = b'{"error":{"code":"invalid_api_key","message":"Incorrect API key provided: sk-1"}}'
    head = b"HTTP/1.1 401 X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    with endless(head + body, b" " * 65_536) as (url, _), pytest.raises(CredentialRefused) as caught:
        verification.api_key("sk-1", url, kind="openai_compatible")
    assert caught.value.message == "The upstream refuses it (invalid_api_key)."
