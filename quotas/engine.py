"""The engine's door: the Lua scripts, the keys they touch, and the numbers they may be given.

The top of each file in `quotas/lua/` says what it takes and answers. All keys of an organization carry its shard's tag, and
every script takes the same eight.
"""

import re
from functools import cache
from pathlib import Path

from django.conf import settings

from config.redis import SHARDS, Script, shard

LUA = Path(__file__).parent / "lua"

MOST = 2**53 // 8
"""The largest amount a script takes: sums of amounts stay exact in Lua's doubles."""
UNLIMITED = 10**15
MOST_LOGGED = 100_000
"""Seconds that a log keeps of a record (as in admit.lua)."""
KEEP_MS = 900_000
"""How long an ended hold stays as a tombstone."""
ABOUT_BYTES = 512

_NEEDS = re.compile(r"^-- needs: ([a-z ]+)\n")


def _source(name: str) -> str:
    """A script with the parts it needs before it. The test settings' clock offset is compiled in, nowhere else."""
    text = (LUA / f"{name}.lua").read_text(encoding="utf-8")
    needs = _NEEDS.match(text)
    parts = [(LUA / f"{part}.lua").read_text(encoding="utf-8") for part in needs.group(1).split()] if needs else []
    source = "".join([*parts, text])
    key = getattr(settings, "QUOTAS_CLOCK_OFFSET_KEY", None)
    if key:
        source = source.replace("--@offset", f"now = now + tonumber(call('GET', '{key}') or 0)")
    return source


ADMIT = Script("quotas.admit", _source("admit"))
RENEW = Script("quotas.renew", _source("renew"))
SETTLE = Script("quotas.settle", _source("settle"))
SWEEP = Script("quotas.sweep", _source("sweep"))
PUBLISH = Script("quotas.publish", _source("publish"))
REBUILD = Script("quotas.rebuild", _source("rebuild"))
PEEK = Script("quotas.peek", _source("peek"))
TIDY = Script("quotas.tidy", _source("tidy"))
ADJUST = Script("quotas.adjust", _source("adjust"))
FORGET = Script("quotas.forget", _source("forget"))


def counters_key(organization_id: int) -> str:
    """The hash that holds everything but leases and events."""
    return f"quotas:{shard(organization_id)}:{organization_id}:q"


def leases_key(organization_id: int) -> str:
    """Sorted set: hold id -> end of its lease or tombstone, in ms."""
    return f"quotas:{shard(organization_id)}:{organization_id}:l"


def stream_key(organization_id: int) -> str:
    """The stream of usage events."""
    return f"quotas:{shard(organization_id)}:{organization_id}:u"


def staging_key(organization_id: int) -> str:
    """The hash a rebuild fills before it becomes the counters."""
    return f"quotas:{shard(organization_id)}:{organization_id}:n"


def log_key(organization_id: int) -> str:
    """Sorted set, by name: the cells of seconds that records with a log have; absent where no limit counts by the second."""
    return f"quotas:{shard(organization_id)}:{organization_id}:z"


def staged_log_key(organization_id: int) -> str:
    """What becomes the log's names when a rebuild ends."""
    return f"quotas:{shard(organization_id)}:{organization_id}:y"


def dirty_key(number: int) -> str:
    """Set: organizations of a shard whose stream has entries."""
    return f"quotas:{shard(number)}:dirty"


def leased_key(number: int) -> str:
    """Set: organizations of a shard that have leases."""
    return f"quotas:{shard(number)}:leased"


def shards() -> range:
    return range(SHARDS)


@cache
def keys(organization_id: int) -> tuple[str, ...]:
    """KEYS of every script."""
    return (
        counters_key(organization_id),
        leases_key(organization_id),
        stream_key(organization_id),
        staging_key(organization_id),
        dirty_key(organization_id),
        leased_key(organization_id),
        log_key(organization_id),
        staged_log_key(organization_id),
    )
