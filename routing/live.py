"""The live state of a pool: one Redis hash with the fields of every account, and the keys beside it.

Fields of the hash `routing:{tag}:p<pool>:live`, `<id>` being the account's number:

    <id>:c       cooling down until, server milliseconds
    <id>:x       `until:observed:doubt`: exhausted until, unix seconds; observed, and first doubted (0: not), server milliseconds
    <id>:w       `minutes=used:resets:observed:seen:start:doubt;…`: windows by their length: percent used, unix seconds (0:
                 unknown), milliseconds; `<id>:m` at that report and at the window's first; when a fall was first seen (0: none)
    <id>:m       micro-credits metered on it, ever
    <id>:h       `total:first;minute=amount;…`: micro-credits held for turns, by the minute in which they lapse, and the first such
    <id>:v       version of the account's credential
    <id>:l       selected last, server milliseconds

Beside it `…:slots:<id>` (sorted set, request id by the end of its lease), `…:s:<session>` (`sticky.Sticky`: where the session is,
and its turns), `…:turns` (hash, mean turn of each member), and per organization `routing:{sNN}:<organization>:owner:<response>`.
Tokens are never here.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from config import redis as weir_redis
from routing import capacity
from routing.snapshots import PoolSnapshot

LUA = Path(__file__).parent / "lua"

WINDOW_VALUES = 6
UNKNOWN_RESET_BLOCKS_MS = 60_000
"""How long a window seen at 100 % blocks when it did not say when it resets."""


def script(name: str, *needs: str) -> weir_redis.Script:
    """A script behind the files of functions that it needs."""
    texts = [(LUA / f"{part}.lua").read_text(encoding="utf-8") for part in (*needs, name)]
    return weir_redis.Script(f"routing/{name}", "\n".join(texts))


def tag(pool: PoolSnapshot) -> str:
    return pool_tag(pool.pool_id, pool.organization_id)


@lru_cache(maxsize=4096)
def pool_tag(pool_id: int, organization_id: int | None) -> str:
    """An organization's pool shares the slot of the organization's counters; a shared pool has its own."""
    return weir_redis.shard(organization_id) if organization_id is not None else f"{{p{pool_id}}}"


def live_key(pool: PoolSnapshot) -> str:
    return f"routing:{tag(pool)}:p{pool.pool_id}:live"


def pool_live_key(pool_id: int, organization_id: int | None) -> str:
    return f"routing:{pool_tag(pool_id, organization_id)}:p{pool_id}:live"


def slots_key(pool: PoolSnapshot, account_id: int) -> str:
    return f"routing:{tag(pool)}:p{pool.pool_id}:slots:{account_id}"


def session_key(pool: PoolSnapshot, session: str) -> str:
    return f"routing:{tag(pool)}:p{pool.pool_id}:s:{session}"


def turns_key(pool: PoolSnapshot) -> str:
    return f"routing:{tag(pool)}:p{pool.pool_id}:turns"


def owner_key(organization_id: int, response_id: str) -> str:
    """Owners are known per organization, whichever key or member continues. The id is hashed: a client chose its length."""
    digest = hashlib.blake2b(response_id.encode(), digest_size=16).hexdigest()
    return f"routing:{weir_redis.shard(organization_id)}:{organization_id}:owner:{digest}"


class Window(msgspec.Struct, frozen=True, gc=False):
    """An upstream window as last observed. `resets_at` unix seconds, 0 when unknown.

    `seen` and `start`: micro-credits metered on the account, ever, at that report and at the window's first.
    """

    minutes: int
    used_percent: float
    resets_at: int
    observed_ms: int
    seen: int = 0
    start: int = 0

    def name(self) -> str:
        """Its length, for people: `5h`, `week`."""
        if self.minutes == 10_080:
            return "week"
        units = ((1440, "d"), (60, "h"), (1, "min"))
        size, unit = next((size, unit) for size, unit in units if self.minutes % size == 0)
        return f"{self.minutes // size}{unit}"

    def is_over(self, now_ms: int) -> bool:
        """Its reset has passed; or, where that is not known, so much time that it says nothing any more."""
        if self.resets_at:
            return self.resets_at * 1000 <= now_ms
        lasts = UNKNOWN_RESET_BLOCKS_MS if self.used_percent >= 100 else self.minutes * 60_000
        return self.observed_ms + lasts <= now_ms

    def used_at(self, now_ms: int) -> float:
        """The fraction used as reported, 0..1 and above; 0 once it is over."""
        return 0.0 if self.is_over(now_ms) else self.used_percent / 100.0

    def estimate(self, metered: int, credits: float, now_ms: int) -> float:
        """The fraction used by now, of a window of `credits`: what was reported, and what we metered since."""
        if self.is_over(now_ms):
            return 0.0
        own, since = self.seen - self.start, metered - self.seen
        return capacity.estimated_use(
            self.used_percent / 100.0, own / 1e6 if own > 0 else 0.0, since / 1e6 if since > 0 else 0.0, credits
        )

    def ends_ms(self) -> int:
        """When it lets requests through again, if it is full."""
        return self.resets_at * 1000 if self.resets_at else self.observed_ms + UNKNOWN_RESET_BLOCKS_MS

    def blocks_until_ms(self, now_ms: int) -> int:
        """When it lets requests through again if it was reported full, else 0."""
        return self.ends_ms() if self.used_percent >= 100 and not self.is_over(now_ms) else 0


class AccountState(msgspec.Struct, frozen=True, gc=False):
    """One account's live fields; all zero when nothing is known. `held` and `metered` in micro-credits."""

    cooling_until_ms: int = 0
    exhausted_until: int = 0
    credential_version: int = 0
    last_ms: int = 0
    windows: Mapping[int, Window] = MappingProxyType({})
    metered: int = 0
    holds: bytes = b""

    def exhausted_until_ms(self, now_ms: int) -> int:
        """The moment at which every full window has been reset and the last 429's time has passed; 0: it is not exhausted."""
        until = self.exhausted_until * 1000 if self.exhausted_until * 1000 > now_ms else 0
        for window in self.windows.values():
            until = max(until, window.blocks_until_ms(now_ms))
        return until

    def blocked_until_ms(self, now_ms: int) -> int:
        """When it may be used again: exhausted, or cooling; 0: now."""
        return max(self.exhausted_until_ms(now_ms), self.cooling_until_ms if self.cooling_until_ms > now_ms else 0)

    def held_at(self, now_ms: int) -> int:
        """Micro-credits held for turns that run or may go on; what has lapsed does not count."""
        if not self.holds:
            return 0
        head, *slots = self.holds.split(b";")
        total, _, first = head.partition(b":")
        if int(first) * 60_000 > now_ms:
            return int(total)
        pairs = (slot.split(b"=") for slot in slots)
        return sum(int(amount) for minute, amount in pairs if int(minute) * 60_000 > now_ms)


UNKNOWN = AccountState()


class States:
    """The states of a pool's accounts, by id. An account's fields are parsed when it is asked for: most requests ask for one."""

    __slots__ = ("_fields", "_parsed")

    def __init__(self, flat: Sequence[bytes]) -> None:
        """`flat` is the reply to HGETALL."""
        pairs = iter(flat)
        self._fields = dict(zip(pairs, pairs, strict=True))
        self._parsed: dict[int, AccountState] = {}

    def get(self, account_id: int, default: AccountState = UNKNOWN, /) -> AccountState:
        found = self._parsed.get(account_id)
        if found is None:
            found = self._parsed[account_id] = self._parse(account_id) if self._fields else default
        return found

    def _parse(self, account_id: int) -> AccountState:
        prefix = str(account_id).encode()
        take = self._fields.get
        exhausted = take(prefix + b":x")
        return AccountState(
            cooling_until_ms=int(take(prefix + b":c", 0)),
            exhausted_until=int(exhausted.split(b":")[0]) if exhausted else 0,
            credential_version=int(take(prefix + b":v", 0)),
            last_ms=int(take(prefix + b":l", 0)),
            windows=_windows(take(prefix + b":w")),
            metered=int(take(prefix + b":m", 0)),
            holds=take(prefix + b":h", b""),
        )


def _windows(value: bytes | None) -> Mapping[int, Window]:
    if not value:
        return UNKNOWN.windows
    found = {}
    for part in value.split(b";"):
        length, _, rest = part.partition(b"=")
        values = rest.split(b":")
        if len(values) == WINDOW_VALUES:
            minutes = int(length)
            used, resets, observed, seen, start, _ = values
            found[minutes] = Window(minutes, float(used), int(resets), int(observed), int(seen), int(start))
    return found


def state_of(key: str, account_id: int) -> AccountState:
    """One account's state under a pool's live key. Sync. Raises RedisUnavailable."""
    names = [f"{account_id}:{kind}" for kind in "cxwvlmh"]
    ask: Callable[..., Any] = weir_redis.sync_client().hmget
    with weir_redis.translated():
        values = ask(key, names)
    flat: list[bytes] = []
    for name, value in zip(names, values, strict=True):
        if value is not None:
            flat += [name.encode(), value]
    return States(flat).get(account_id)


def publish_version(pool_id: int, organization_id: int | None, account_id: int, version: int) -> None:
    """Tells every process that the account's credential moved. Sync. Raises RedisUnavailable."""
    key = pool_live_key(pool_id, organization_id)
    with weir_redis.translated():
        weir_redis.sync_client().hset(key, f"{account_id}:v", str(version))


def forget_troubles(pool_id: int, organization_id: int | None, account_ids: Iterable[int], *, kinds: str = "cxw") -> int:
    """Ends cooldowns (c), exhaustion (x) and what is known of windows (w), so that accounts are tried again.

    Returns how many accounts had any of it. Sync. Raises RedisUnavailable.
    """
    key = pool_live_key(pool_id, organization_id)
    client = weir_redis.sync_client()
    wanted = set(account_ids)
    cleared: set[int] = set()
    names: list[str] = []
    with weir_redis.translated():
        for found in client.hkeys(key):
            name = found.decode() if isinstance(found, bytes) else found
            account, _, kind = name.partition(":")
            if int(account) in wanted and kind[0] in kinds:
                names.append(name)
                cleared.add(int(account))
        if names:
            client.hdel(key, *names)
    return len(cleared)
