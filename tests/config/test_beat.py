"""Of several beat processes only the one with the lock sends."""

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery
from django.conf import settings

from config import beat
from config import redis as weir_redis


@pytest.fixture
def prefix() -> str:
    return f"test-beat-{uuid4().hex}:"


@pytest.fixture
def scheduler(tmp_path: Path, prefix: str) -> Iterator[Callable[[], beat.LockedScheduler]]:
    """Makes schedulers of one app, with one task that is always due."""
    weir_redis.sync_client().delete(beat.LOCK)
    app = Celery("beats", broker=settings.CELERY_BROKER_URL, set_as_current=False)
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    app.conf.beat_schedule = {"always": {"task": "nothing", "schedule": 0.0}}
    made: list[beat.LockedScheduler] = []

    def make() -> beat.LockedScheduler:
        made.append(beat.LockedScheduler(app=app, schedule_filename=str(tmp_path / f"schedule-{len(made)}")))
        return made[-1]

    yield make
    for one in made:
        one.close()
    app.close()
    client = weir_redis.sync_client()
    client.delete(beat.LOCK, *client.keys(f"{prefix}*"))


def sent(prefix: str) -> int:
    return int(weir_redis.sync_client().llen(f"{prefix}celery"))


def test_the_second_beat_sends_nothing_until_the_first_is_gone(scheduler: Callable[[], beat.LockedScheduler], prefix: str) -> None:
    first, second = scheduler(), scheduler()
    first.tick()
    assert sent(prefix) == 1
    assert second.tick() == beat.LOOK_SECONDS
    assert sent(prefix) == 1
    first.close()
    second.tick()
    assert sent(prefix) == 2


def test_a_holder_renews_its_lock(scheduler: Callable[[], beat.LockedScheduler]) -> None:
    first = scheduler()
    first.tick()
    client = weir_redis.sync_client()
    client.expire(beat.LOCK, 2)
    first.tick()
    assert client.ttl(beat.LOCK) == beat.LOCK_SECONDS


def test_a_lock_that_was_lost_is_taken_again_only_if_it_is_free(scheduler: Callable[[], beat.LockedScheduler], prefix: str) -> None:
    first = scheduler()
    first.tick()
    client = weir_redis.sync_client()
    client.set(beat.LOCK, "another's")
    assert first.tick() == beat.LOOK_SECONDS
    assert sent(prefix) == 1
    assert client.get(beat.LOCK) == b"another's"
    client.delete(beat.LOCK)
    first.tick()
    assert sent(prefix) == 2
