"""The upstream client against sockets that split, stall, reset, close and lie."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.errors import BadAnswer, ConnectFailed, Cut, HeadersLate, IdleTooLong, UpstreamError
from proxy.origins import split
from proxy.upstream import Client, Request
from tests.proxy.raw_server import Peer, RawServer, answer, chunked, serve


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    made = Client(connect_seconds=1, header_seconds=0.3, idle_seconds=0.3)
    yield made
    await made.close()


def post(server: RawServer, body: bytes = b"{}") -> Request:
    return Request("POST", f"{server.url}/v1/responses?a=b", [(b"x-one", b"1")], body)


async def fetch(client: Client, request: Request) -> tuple[int, bytes]:
    async with client.open(request) as response:
        return response.status, b"".join([chunk async for chunk in response])


async def eventually(condition: object, seconds: float = 20) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():  # type: ignore[operator]
        assert asyncio.get_running_loop().time() < deadline, "did not come true"
        await asyncio.sleep(0.005)


async def test_sends_the_request_as_given_and_reads_a_body_of_known_length(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"hello", head=b"X-Answer: Yes\r\nx-answer: again\r\n"))

    async with serve(script) as server:
        async with client.open(post(server, b'{"a":1}')) as response:
            assert response.status == 200
            assert response.headers["x-answer"] == "again"
            assert response.raw_headers == [(b"x-answer", b"Yes"), (b"x-answer", b"again"), (b"content-length", b"5")]
            assert [chunk async for chunk in response] == [b"hello"]
        authority = server.url.removeprefix("http://").encode()
        assert server.requests == [
            (
                b"POST /v1/responses?a=b HTTP/1.1\r\nhost: " + authority + b"\r\nx-one: 1\r\ncontent-length: 7\r\n\r\n",
                b'{"a":1}',
            )
        ]


async def test_a_response_split_at_every_byte_reads_the_same(client: Client) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + chunked(b"data: \xed\x95\x9c", b"\n\n", b"end")

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            for position in range(len(data)):
                await peer.send(data[position : position + 1])
                await asyncio.sleep(0)

    async with serve(script) as server:
        for _ in range(3):
            assert await fetch(client, post(server)) == (200, b"data: \xed\x95\x9c\n\nend")
        assert server.connections == 1


async def test_chunks_of_one_read_come_as_one(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(chunked(*[b"x" * 10] * 20))

    async with serve(script) as server, client.open(post(server)) as response:
        chunks = [chunk async for chunk in response]
        assert b"".join(chunks) == b"x" * 200
        assert len(chunks) <= 2


async def test_a_chunk_is_handed_on_when_it_comes_not_when_the_body_ends(client: Client) -> None:
    go_on = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await go_on.wait()
        await peer.send(b"6\r\nsecond\r\n0\r\n\r\n")

    async with serve(script) as server, client.open(post(server)) as response:
        assert await anext(response) == b"first"
        go_on.set()
        assert await anext(response) == b"second"
        with pytest.raises(StopAsyncIteration):
            await anext(response)


async def test_a_body_that_ends_with_the_connection_is_whole(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"all of it")
        await eventually(lambda: client.connections == 0)
        assert client.idle_connections == 0


async def test_a_hundred_requests_share_one_connection(client: Client) -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(chunked(b"ok"))

    async with serve(script) as server:
        for _ in range(100):
            assert await fetch(client, post(server)) == (200, b"ok")
        assert (server.connections, client.connects, len(server.requests)) == (1, 1, 100)


async def test_concurrent_requests_get_connections_of_their_own_and_keep_them(client: Client) -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await asyncio.sleep(0.02)
            await peer.send(answer(b"ok"))

    async with serve(script) as server:
        for _ in range(2):
            assert await asyncio.gather(*[fetch(client, post(server)) for _ in range(10)]) == [(200, b"ok")] * 10
        assert server.connections == 10
        assert client.idle_connections == 10


async def test_connection_close_is_honoured(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"bye", head=b"connection: close\r\n"))
        await peer.reader.read()

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"bye")
        assert client.idle_connections == 0
        assert await fetch(client, post(server)) == (200, b"bye")
        assert server.connections == 2


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_a_cut_inside_the_body_comes_after_the_bytes_before_it(client: Client, how: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\npartial\r\n")
        await asyncio.sleep(0.03)
        if how == "reset":
            peer.reset()

    async with serve(script) as server, client.open(post(server)) as response:
        assert await anext(response) == b"partial"
        with pytest.raises(Cut) as caught:
            await anext(response)
        assert caught.value.written is True
    assert client.idle_connections == 0


async def test_a_short_body_of_known_length_is_a_cut(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")

    async with serve(script) as server:
        with pytest.raises(Cut):
            await fetch(client, post(server))


async def test_nothing_listens(client: Client) -> None:
    async with serve(lambda peer: asyncio.sleep(0)) as server:
        pass
    with pytest.raises(ConnectFailed) as caught:
        await fetch(client, post(server))
    assert caught.value.written is False


async def test_a_peer_that_never_answers_is_late(client: Client) -> None:
    """N22: the header timeout is ours, and the connection does not come back."""

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.reader.read()

    async with serve(script) as server:
        with pytest.raises(HeadersLate) as caught:
            await fetch(client, post(server))
        assert caught.value.written is True
        await eventually(lambda: server.ended == 1)
        assert client.connections == 0


async def test_silence_inside_the_body_ends_it(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await peer.reader.read()

    async with serve(script) as server, client.open(post(server)) as response:
        assert await anext(response) == b"a"
        with pytest.raises(IdleTooLong):
            await anext(response)


async def test_a_slow_consumer_is_not_an_idle_upstream(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await asyncio.sleep(0.6)
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")

    async with serve(script) as server, client.open(post(server)) as response:
        assert await anext(response) == b"a"
        await asyncio.sleep(0.55)
        assert await anext(response) == b"b"


async def test_reading_stops_while_the_consumer_is_slow(client: Client) -> None:
    sent = 0
    total = 64 * 1024 * 1024

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        block = b"z" * 65536
        for _ in range(total // len(block)):
            await peer.send(block)
            sent += len(block)

    async with serve(script) as server, client.open(post(server)) as response:
        await anext(response)
        await asyncio.sleep(0.2)
        stuck_at = sent
        assert stuck_at < total / 2
        await asyncio.sleep(0.1)
        assert sent == stuck_at
        size = 0
        async for chunk in response:
            size += len(chunk)
            assert len(chunk) <= 65536
        assert size + 65536 >= total


async def test_a_stale_kept_connection_is_replaced_without_a_word(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"one"))
        if peer.number == 1:
            await peer.request()
            peer.reset()

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"one")
        assert await fetch(client, post(server)) == (200, b"one")
        assert server.connections == 2


async def test_a_kept_connection_that_the_peer_has_closed_is_not_used(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"one"))

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"one")
        await eventually(lambda: client.connections == 0)
        assert await fetch(client, post(server)) == (200, b"one")
        assert len(server.requests) == 2


async def test_a_kept_connection_that_answered_a_byte_is_not_tried_again(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"one"))
        await peer.request()
        await peer.send(b"HTTP/1.1 2")
        await asyncio.sleep(0.02)
        peer.reset()

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"one")
        with pytest.raises(Cut):
            await fetch(client, post(server))
        assert len(server.requests) == 2


async def test_a_fresh_connection_that_is_reset_is_not_tried_again(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        peer.reset()

    async with serve(script) as server:
        with pytest.raises(Cut) as caught:
            await fetch(client, post(server))
        assert caught.value.written is True
        assert len(server.requests) == 1


async def test_leaving_early_closes_the_connection(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await peer.reader.read()

    async with serve(script) as server:
        async with client.open(post(server)) as response:
            await anext(response)
        await eventually(lambda: server.ended == 1)
        assert client.connections == 0


@pytest.mark.parametrize("moment", ["before the head", "inside the body"])
async def test_cancellation_closes_the_connection(client: Client, moment: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if moment == "inside the body":
            await peer.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n")
        await peer.reader.read()

    async with serve(script) as server:
        task = asyncio.create_task(fetch(client, post(server)))
        await eventually(lambda: len(server.requests) == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: server.ended == 1)
        assert client.connections == 0


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 000 None\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 099 Less\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 600 More\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 999 Most\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x-big: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_named_so(client: Client, data: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(data)
        await peer.reader.read()

    async with serve(script) as server:
        with pytest.raises(BadAnswer):
            await fetch(client, post(server))
        assert client.idle_connections == 0


async def test_a_second_response_that_nobody_asked_for_ends_the_connection(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"one") + answer(b"smuggled"))
        await peer.reader.read()

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"one")
        assert client.idle_connections == 0
        assert await fetch(client, post(server)) == (200, b"one")
        assert server.connections == 2


async def test_bytes_on_an_unused_connection_end_it(client: Client) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer(b"one"))
        await asyncio.sleep(0.02)
        await peer.send(answer(b"smuggled"))
        await peer.reader.read()

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (200, b"one")
        assert client.idle_connections == 1
        await eventually(lambda: client.connections == 0)


async def test_a_body_without_content_is_complete(client: Client) -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(b"HTTP/1.1 204 No Content\r\n\r\n")

    async with serve(script) as server:
        assert await fetch(client, post(server)) == (204, b"")
        assert await fetch(client, post(server)) == (204, b"")
        assert server.connections == 1


@pytest.mark.parametrize("header", [(b"x-a", b"1\r\nx-b: 2"), (b"x-a\r\nx-b", b"1"), (b"x-a", b"1\n"), (b"x:a", b"1")])
async def test_a_header_cannot_smuggle_another(client: Client, header: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="line break"):
        Request("POST", "http://127.0.0.1/", [header]).encode()


def test_urls_become_origins() -> None:
    assert split("https://api.example/v1/x?y=1") == (("https", "api.example", 443), b"/v1/x?y=1")
    assert split("http://[::1]:8080")[0].authority == b"[::1]:8080"
    assert split("http://h:80/")[0].authority == b"h"
    for wrong in ("ftp://h/", "/v1/responses", "http:///x", "http://h/a b"):
        with pytest.raises(ValueError, match="URL"):
            split(wrong)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, not for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    _write_certificate(certificate, key)
    return certificate, key


def _write_certificate(certificate: Path, key: Path) -> None:
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


async def test_tls_verifies_the_chain_and_the_name(certificate: tuple[Path, Path]) -> None:
    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(chunked(b"secret ", b"answer"))

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certificate))
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    timeouts: dict[str, Any] = {"connect_seconds": 1.0, "header_seconds": 1.0, "idle_seconds": 1.0}
    async with serve(script, tls=context) as server:
        by_name = RawServer(url=server.url.replace("127.0.0.1", "localhost"))
        good = Client(tls=trusting, **timeouts)
        assert await fetch(good, post(by_name)) == (200, b"secret answer")
        assert await fetch(good, post(by_name)) == (200, b"secret answer")
        assert good.connects == 1
        for client, request in ((good, post(server)), (Client(**timeouts), post(by_name))):
            with pytest.raises(UpstreamError) as caught:
                await fetch(client, request)
            assert isinstance(caught.value, ConnectFailed)
            await client.close()
        assert len(server.requests) == 2


def test_the_client_works_on_uvloop_too() -> None:
    import uvloop

    async def script(peer: Peer) -> None:
        while (await peer.request())[0]:
            await peer.send(chunked(b"a" * 200_000, b"b"))

    async def run() -> None:
        client = Client(connect_seconds=1, header_seconds=1, idle_seconds=1)
        async with serve(script) as server:
            for _ in range(5):
                assert await fetch(client, post(server)) == (200, b"a" * 200_000 + b"b")
            assert server.connections == 1
            await client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
