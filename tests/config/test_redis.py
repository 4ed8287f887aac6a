"""The request path's Redis client, against a real server and against servers that misbehave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from django.conf import settings

from config.redis import Redis, RedisUnavailable, ReplyError, Script, client, shard, subscribe, sync_client

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest_asyncio.fixture
async def redis() -> AsyncIterator[Redis]:
    connected = Redis(settings.REDIS_URL)
    yield connected
    await connected.close()


@contextlib.asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[int]:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            await handler(reader, writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)


class Relay:
    """A TCP relay to the real server, whose connections and listener a test may cut."""

    def __init__(self) -> None:
        self.writers: set[asyncio.StreamWriter] = set()
        self.server: asyncio.Server | None = None
        self.port = 0
        self.is_silent = False

    async def open(self) -> None:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """The real server's address with this relay's port: the login is the same."""
        login, at, _ = urlsplit(settings.REDIS_URL).netloc.rpartition("@")
        return f"redis://{login}{at}127.0.0.1:{self.port}/0"

    async def shut(self) -> None:
        assert self.server is not None
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        await asyncio.sleep(0.02)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(settings.REDIS_URL)
        upstream_reader, upstream_writer = await asyncio.open_connection(parts.hostname, parts.port)
        self.writers |= {writer, upstream_writer}

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, back: bool) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if not (back and self.is_silent):
                        target.write(data)
            target.close()

        await asyncio.gather(pump(reader, upstream_writer, back=False), pump(upstream_reader, writer, back=True))


@pytest_asyncio.fixture
async def relay() -> AsyncIterator[Relay]:
    opened = Relay()
    await opened.open()
    yield opened
    await opened.shut()


@pytest_asyncio.fixture
async def through(relay: Relay) -> AsyncIterator[Redis]:
    connected = Redis(relay.url, connect_timeout=0.5, reply_timeout=0.3)
    yield connected
    await connected.close()


async def test_replies_keep_their_types(redis: Redis) -> None:
    await redis.call("DEL", "test:redis:types")
    assert await redis.call("SET", "test:redis:types", "é") == b"OK"
    assert await redis.call("GET", "test:redis:types") == "é".encode()
    assert await redis.call("GET", "test:redis:none") is None
    assert await redis.call("STRLEN", "test:redis:types") == 2
    assert await redis.call("MGET", "test:redis:types", "test:redis:none") == ["é".encode(), None]
    await redis.call("DEL", "test:redis:types")


async def test_calls_of_one_tick_share_a_round_trip(redis: Redis) -> None:
    await redis.call("PING")
    before = redis.round_trips

    async def rival(i: int) -> bytes:
        answer: bytes = await redis.call("ECHO", str(i))
        return answer

    replies = await asyncio.gather(*(rival(i) for i in range(200)), redis.batch([("PING",), ("ECHO", "x")]))
    assert replies[:200] == [str(i).encode() for i in range(200)]
    assert replies[200] == [b"PONG", b"x"]
    assert redis.round_trips == before + 1


async def test_the_first_command_waits_for_the_connection_and_connecting_is_no_round_trip(redis: Redis) -> None:
    assert (redis.connects, redis.round_trips) == (0, 0)
    assert await redis.call("PING") == b"PONG"
    assert (redis.connects, redis.round_trips) == (1, 1)


async def test_an_error_reply_fails_its_own_call_only(redis: Redis) -> None:
    good, bad = redis.call("ECHO", "a"), redis.call("NOSUCHCOMMAND")
    assert await good == b"a"
    with pytest.raises(ReplyError, match="unknown command"):
        await bad


async def test_a_batch_keeps_error_replies_in_place(redis: Redis) -> None:
    first, second, third = await redis.batch([("ECHO", "a"), ("NOSUCHCOMMAND",), ("ECHO", "b")])
    assert (first, third) == (b"a", b"b")
    assert isinstance(second, ReplyError)


async def test_an_empty_batch_asks_nothing(redis: Redis) -> None:
    assert await redis.batch([]) == []
    assert redis.round_trips == 0


async def test_a_script_made_after_the_connect_is_loaded_and_repeated(redis: Redis) -> None:
    await redis.call("PING")
    script = Script("test", "return {KEYS[1], ARGV[1], 'called and batched'}")
    assert await script(redis, ["k"], ["a"]) == [b"k", b"a", b"called and batched"]
    await redis.call("SCRIPT", "FLUSH")
    assert await redis.batch([("ECHO", "x"), script.command(["k"], ["b"]), ("ECHO", "y")]) == [
        b"x",
        [b"k", b"b", b"called and batched"],
        b"y",
    ]
    await redis.call("SCRIPT", "FLUSH")
    assert script.run(sync_client(), ["k"], ["c"]) == [b"k", b"c", b"called and batched"]


async def test_scripts_are_loaded_before_the_first_command_of_a_connection(redis: Redis) -> None:
    script = Script("early", "return 'early'")
    sync_client().script_flush()
    assert await redis.call("EVALSHA", script.sha, 0) == b"early"


async def test_a_script_error_is_a_reply_error(redis: Redis) -> None:
    script = Script("wrong", "return redis.error_reply('ERR bad arguments')")
    with pytest.raises(ReplyError, match="bad arguments"):
        await script(redis, [], [])
    with pytest.raises(ReplyError, match="bad arguments"):
        script.run(sync_client(), [], [])


@pytest.mark.alone
async def test_nothing_listens_means_unavailable_at_once() -> None:
    gone = Redis("redis://:secret@127.0.0.1:1/0")
    started = asyncio.get_running_loop().time()
    with pytest.raises(RedisUnavailable) as caught:
        await gone.call("PING")
    assert asyncio.get_running_loop().time() - started < 1
    assert (caught.value.status, caught.value.code) == (503, "degraded")
    assert "secret" not in repr(gone) + repr(gone._address) + repr(caught.value)
    await gone.close()


async def test_it_comes_back_by_itself_and_tells_its_callbacks(relay: Relay, through: Redis) -> None:
    """H1: while Redis is gone every command fails; nothing is answered from thin air."""
    told = asyncio.Event()

    async def connected(_: Redis) -> None:
        told.set()

    through.on_connect(connected)
    assert await through.call("ECHO", "1") == b"1"
    await asyncio.wait_for(told.wait(), 1)
    told.clear()
    await relay.shut()
    with pytest.raises(RedisUnavailable):
        await through.call("ECHO", "2")
    await relay.open()
    await asyncio.wait_for(told.wait(), 2)
    assert await through.call("ECHO", "3") == b"3"
    assert through.connects == 2


async def test_commands_in_flight_fail_when_the_connection_breaks(relay: Relay, through: Redis) -> None:
    await through.call("PING")
    relay.is_silent = True
    waiting = asyncio.gather(through.call("ECHO", "a"), through.batch([("ECHO", "b")]), return_exceptions=True)
    await asyncio.sleep(0.02)
    for writer in list(relay.writers):
        writer.transport.abort()
    assert [type(answer) for answer in await waiting] == [RedisUnavailable, RedisUnavailable]


@pytest.mark.alone
async def test_a_silent_server_is_given_up_after_the_timeout(relay: Relay, through: Redis) -> None:
    await through.call("PING")
    relay.is_silent = True
    started = asyncio.get_running_loop().time()
    with pytest.raises(RedisUnavailable):
        await through.call("ECHO", "a")
    assert 0.25 < asyncio.get_running_loop().time() - started < 1
    relay.is_silent = False
    assert await through.call("ECHO", "b") == b"b"


async def test_a_cancelled_call_leaves_the_order_of_replies(redis: Redis) -> None:
    await redis.call("PING")
    first, second = redis.call("ECHO", "1"), redis.call("ECHO", "2")
    first.cancel()
    assert await second == b"2"
    assert await redis.call("ECHO", "3") == b"3"


@pytest.mark.parametrize("answer", [b"-LOADING Redis is loading\r\n", b"-NOAUTH Authentication required.\r\n"])
async def test_a_server_that_cannot_serve_is_unavailable(answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(answer * data.count(b"PING"))

    async with serving(handler) as port:
        loading = Redis(f"redis://127.0.0.1:{port}", connect_timeout=0.3)
        with pytest.raises(RedisUnavailable):
            await loading.call("PING")
        assert not loading.is_connected
        await loading.close()


async def test_garbage_is_not_an_answer() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serving(handler) as port:
        wrong = Redis(f"redis://127.0.0.1:{port}", connect_timeout=0.3)
        with pytest.raises(RedisUnavailable):
            await wrong.call("PING")
        await wrong.close()


async def test_the_login_is_sent_before_anything_else(tmp_path: object) -> None:
    seen = bytearray()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            seen.extend(data)
            writer.write(b"+OK\r\n" * data.count(b"*"))

    async with serving(handler) as port:
        named = Redis(f"redis://weir:p%40ss@127.0.0.1:{port}/0", connect_timeout=0.3)
        with contextlib.suppress(RedisUnavailable):
            await named.call("PING")
        await named.close()
    assert bytes(seen).startswith(b"*3\r\n$4\r\nAUTH\r\n$4\r\nweir\r\n$4\r\np@ss\r\n*1\r\n$4\r\nPING\r\n")


async def test_a_closed_client_refuses_and_the_loop_gets_a_new_one() -> None:
    first = client()
    assert client() is first
    assert await first.call("PING") == b"PONG"
    await first.close()
    with pytest.raises(RedisUnavailable):
        await first.call("PING")
    second = client()
    assert second is not first
    assert await second.call("PING") == b"PONG"
    await second.close()
    await second.close()


async def test_a_subscription_yields_messages_and_tells_of_gaps(redis: Redis) -> None:
    subscribed = asyncio.Event()
    messages = subscribe("test:redis:channel", on_gap=subscribed.set)
    following = asyncio.ensure_future(anext(messages))
    await asyncio.wait_for(subscribed.wait(), 2)
    await redis.call("PUBLISH", "test:redis:channel", "hello")
    assert await asyncio.wait_for(following, 2) == b"hello"
    subscribed.clear()
    following = asyncio.ensure_future(anext(messages))
    await redis.call("CLIENT", "KILL", "TYPE", "pubsub")
    await asyncio.wait_for(subscribed.wait(), 2)
    await redis.call("PUBLISH", "test:redis:channel", "again")
    assert await asyncio.wait_for(following, 2) == b"again"
    await messages.aclose()  # type: ignore[attr-defined]


def test_the_shard_tag_is_the_id_modulo_32() -> None:
    assert [shard(n) for n in (0, 7, 31, 32, 42)] == ["{s00}", "{s07}", "{s31}", "{s00}", "{s10}"]
