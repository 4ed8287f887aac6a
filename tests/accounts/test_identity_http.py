"""Calls of identity providers: how many of one host are waited for, how long, and what is in no traceback."""

import gzip
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accounts import identity_http
from accounts.errors import ProviderUnreachable


@pytest.fixture(autouse=True)
def _this_machine_is_allowed(settings: Any) -> None:
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def silent() -> Any:
    """A host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def refusal(url: str) -> str:
    with pytest.raises(ProviderUnreachable) as refused:
        identity_http.fetch(url, name="The token endpoint", form={"client_secret": "hidden"})
    assert refused.value.__cause__ is None
    assert refused.value.__context__ is None or refused.value.__suppress_context__
    return refused.value.message


def test_an_answer_that_drips_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes in time, and the whole never does."""
    monkeypatch.setattr(identity_http, "TOTAL_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            peer, _ = server.accept()
            with peer:
                try:
                    for _ in range(200):
                        peer.sendall(b"H")
                        time.sleep(0.05)
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        started = time.monotonic()
        assert refusal(f"http://127.0.0.1:{server.getsockname()[1]}/") != ""
        assert time.monotonic() - started < 3
        thread.join()


def test_a_slow_host_holds_so_many_threads_and_no_more(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_http, "TOTAL_SECONDS", 1.5)
    monkeypatch.setattr(identity_http, "WAIT_SECONDS", 0.1)
    count = identity_http.MOST_AT_ONCE + 3
    with ThreadPoolExecutor(count) as pool:
        told = list(pool.map(refusal, [silent] * count))
    assert told.count("The token endpoint is slow, and too many are waiting for it already.") == 3
    assert told.count("The token endpoint gave no answer within 1.5 seconds.") == identity_http.MOST_AT_ONCE
    # The turns are given back.
    assert refusal(silent) == "The token endpoint gave no answer within 1.5 seconds."


def answering(body: bytes, *headers: str) -> str:
    """What is told of a host that answers one call with this body."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                head = "\r\n".join(("HTTP/1.1 200 OK", f"content-length: {len(body)}", "connection: close", *headers))
                peer.sendall(head.encode() + b"\r\n\r\n" + body)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            return refusal(f"http://127.0.0.1:{server.getsockname()[1]}/")
        finally:
            thread.join()


def test_an_answer_is_not_unpacked() -> None:
    """A few bytes of a coding that nobody asked for would unpack to all the memory there is."""
    packed = gzip.compress(json.dumps({"issuer": "x"}).encode())
    assert answering(packed, "content-encoding: gzip") == "The token endpoint answered in a coding that was not asked for."


@pytest.mark.parametrize("body", [b'{"issuer": "a\\u0000b"}', b'{"keys": [{"\\ud800": 1}]}', b'["\\udfff"]'])
def test_text_that_neither_the_database_nor_a_page_takes_is_told(body: bytes) -> None:
    """It would be a fault of ours where it is kept or shown."""
    told = "The token endpoint answered with text that cannot be kept: a NUL, or half a surrogate pair."
    assert answering(body) == told
