"""The last word of a run: every secret that was made in it is searched for in everything that was written, by every worker.

Named so that pytest collects it last. A key may stand in the one answer that issues it; tests that read that answer do not
record it.
"""

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from django.db import connection

from config import scope
from tests import factories, plugin, secrets
from tests.flows import tenants
from tests.flows.conftest import Stack
from tests.flows.tenants import Tenant, body, in_thread

pytestmark = pytest.mark.stack


def databases() -> list[str]:
    """This worker's, and that of each other one that has made something."""
    own = connection.settings_dict["NAME"]
    this = os.environ.get(plugin.WORKER)
    if this is None:
        return [own]
    stem = own.removesuffix(this)
    assert stem != own
    return [stem + worker for worker, seen in secrets.everything().items() if seen.secrets or worker == this]


def database_dump(name: str) -> Iterator[tuple[str, bytes]]:
    """Every row of every table as text, a table at a time."""
    place = connection.settings_dict
    with psycopg.connect(
        host=place["HOST"], port=place["PORT"], user=place["USER"], password=place["PASSWORD"], dbname=name
    ) as searched, searched.cursor() as cursor:  # fmt: skip
        cursor.execute("SELECT set_config(%s, %s, false)", [scope.SETTING, scope.EVERYTHING])
        cursor.execute("SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace")
        tables = [name for (name,) in cursor.fetchall()]
        assert len(tables) > 40
        for table in tables:
            cursor.execute(f'SELECT t::text FROM "{table}" AS t'.encode())
            yield f"table {table} of {name}", "\n".join(row for (row,) in cursor.fetchall()).encode()


def redis_dump(url: str) -> Iterator[tuple[str, bytes]]:
    """Every key with its whole value, queues of Celery and the channel layer included."""
    client: Any = redis.Redis.from_url(url)
    for key in client.scan_iter():
        kind = client.type(key)
        value: object = b""
        if kind == b"string":
            value = client.get(key)
        elif kind == b"hash":
            value = client.hgetall(key)
        elif kind == b"list":
            value = client.lrange(key, 0, -1)
        elif kind == b"set":
            value = client.smembers(key)
        elif kind == b"zset":
            value = client.zrange(key, 0, -1)
        elif kind == b"stream":
            value = client.xrange(key)
        yield f"redis {key!r}", key + repr(value).encode()


def logs(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*.log")):
        yield f"log {path.name}", path.read_bytes()


@pytest.mark.last
async def test_no_secret_of_this_run_is_anywhere_but_where_it_is_shown_once(stack: Stack, tenant: Tenant, eventually: Any) -> None:
    sign_in = await in_thread(tenants.make, account="chatgpt", upstream=stack.upstream)
    await in_thread(factories.member, sign_in.organization, password=factories.password())
    async with stack.client() as client:
        served = await client.post(f"{stack.url}/v1/responses", headers=sign_in.headers, content=body())
        assert served.status_code == 200
        served = await client.post(f"{stack.url}/v1/responses", headers=tenant.headers, content=body())
        assert served.status_code == 200
        wrong = {**tenant.headers, "authorization": tenant.headers["authorization"][:-1] + "x"}
        assert (await client.post(f"{stack.url}/v1/responses", headers=wrong, content=body())).status_code == 401
    await eventually(tenant.log)
    await in_thread(publish_every_task)
    found = await search(stack)
    assert not found, "\n".join(found)


def publish_every_task() -> None:
    """Puts a message of each task into the broker; no worker runs here, so they stay there to be searched."""
    for task in tasks():
        arguments = [1 for _ in inspect.signature(task.run).parameters]
        task.apply_async(arguments)


def tasks() -> list[Any]:
    from config.celery import app

    app.loader.import_default_modules()
    return [task for name, task in app.tasks.items() if name.split(".")[0] in ("accounts", "billing", "routing", "quotas")]


async def search(stack: Stack) -> list[str]:
    seen = secrets.everything()
    made = tuple(secret for one in seen.values() for secret in one.secrets.values())
    assert len({secret.kind for secret in made}) >= 7, "the factories registered nothing: the search would find nothing either"
    assert stack.logs in [folder for one in seen.values() for folder in one.logs]
    places: list[tuple[str, bytes]] = []
    for name in databases():
        places += await in_thread(lambda name=name: list(database_dump(name)))
    for url in plugin.valkeys():
        places += await in_thread(lambda url=url: list(redis_dump(url)))
    for one in seen.values():
        places += [written for folder in one.logs for written in logs(folder)]
        places += [(f"answer to {where}", content) for where, content in one.answers]
    assert {where.split()[0] for where, _ in places} >= {"table", "redis", "log", "answer"}
    assert any(b"refresh_due_tokens" in content for where, content in places if where.startswith("redis")), "no Celery payload"
    finder = secrets.Finder(made)
    return [f"{kind} in {where}" for where, content in places for kind in finder.kinds_in(content)]


def test_the_search_finds_a_planted_secret(tmp_path: Path) -> None:
    """The search itself: raw, URL-encoded and base64 at every alignment."""
    import base64
    import urllib.parse

    secret = secrets.Secret("planted", "s3cret/with+odd=characters-0123456789")
    spaced = secrets.Secret("spaced", "a pass phrase: with (other) characters")
    finder = secrets.Finder((secret, spaced))
    assert finder.kinds_in(b"before a pass phrase: with (other) characters after") == ["spaced"]
    for shift in range(3):
        for planted in (
            b"x" * shift + secret.value.encode(),
            base64.b64encode(b"x" * shift + secret.value.encode() + b"tail"),
            base64.urlsafe_b64encode(b"x" * shift + secret.value.encode() + b"tail"),
            urllib.parse.quote(secret.value, safe="").encode(),
        ):
            assert any(needle in planted for needle in secrets.spellings(secret)), planted
            for around in (b"%b", b"x%b", b'{"a": "%b"}', b"/path/%b?q=1", b"%%22%b%%22"):
                assert set(finder.kinds_in(around % planted)) == {"planted"}, planted
    assert finder.kinds_in(b"nothing of the kind, but/a+long-run_of.characters=that%could~hold0one") == []


def test_celery_is_given_ids_only() -> None:
    """No task takes an argument by which a secret could travel: all are called with ids or nothing."""
    assert tasks()
    for task in tasks():
        for parameter in inspect.signature(task.run).parameters.values():
            assert parameter.annotation in (int, list[int]), f"{task.name} takes {parameter}"
