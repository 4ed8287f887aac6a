"""Drives the engine's scripts with a clock of its own and reads back what they keep. Used by the tests of this folder only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from config.redis import sync_client
from quotas import engine, records
from quotas.records import Question, RecordView, Terms

T = 1_800_000_000
DAY = 740_000
ONE = (RecordView("o"),)


def text(value: Any) -> Any:
    """Replies with bytes as text, tickets (which are not UTF-8) left alone."""
    if isinstance(value, list):
        return [text(item) for item in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def five_hours(amount: int, metric: int = records.CREDITS, name: str = "o") -> RecordView:
    return RecordView(name, (records.code(records.FIVE_HOURS),), (Question(metric, 1, amount),))


@dataclass
class Probe:
    """One organization's counters. Times in seconds (fractions allowed); answers without the time."""

    organization: int = 42
    redis: Redis = field(default_factory=sync_client)
    tickets: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys = engine.keys(self.organization)

    def wipe(self) -> None:
        self.redis.delete(*self.keys)

    def warm(self, *, epoch: int = 1, version: int = 1, granted: int = 0, mark: int = 0) -> None:
        self.wipe()
        self.redis.hset(self.keys[0], "$", records.pack([epoch, version, mark, 0, 0, granted, 1 if granted else 0]))

    def run(self, script: Any, *args: Any) -> list[Any]:
        answer = script.run(self.redis, self.keys, args)
        assert isinstance(answer[1], int)
        return [text(answer[0]), *answer[2:]]

    def view(
        self,
        of: Sequence[RecordView] = ONE,
        *,
        version: int = 1,
        day: int = DAY,
        since: int = 0,
        until: int = T + 10_000_000,
        period: int = T - 1000,
        source: str = "o",
        fund: int | None = None,
        quota: int = engine.UNLIMITED,
        allowed: bool = False,
        cap: int = 0,
    ) -> bytes:
        return records.pack_view(
            version=version,
            day=day,
            valid_from=since,
            valid_until=until,
            period_start=period,
            source=source,
            fund_start=period if fund is None else fund,
            terms=Terms(quota, allowed, cap),
            records=of,
        )

    def admit(
        self,
        request: str,
        at: float,
        view: bytes,
        need: int = 0,
        tokens: int = 0,
        *,
        hold: int | None = None,
        hold_t: int | None = None,
        observed: tuple[int, int] = (0, 0),
        lease: float = 30,
        about: bytes = b"{}",
    ) -> list[Any]:
        answer = self.run(
            engine.ADMIT,
            ms(at),
            request,
            need,
            need if hold is None else hold,
            tokens,
            tokens if hold_t is None else hold_t,
            *observed,
            ms(lease),
            about,
            view,
        )
        if answer[0] in ("OK", "DUP"):
            self.tickets[request] = answer[1]
            return ["OK", answer[2]] if answer[0] == "OK" else ["DUP", text(answer[2])]
        return [text(item) for item in answer]

    def renew(self, request: str, at: float, c: int = 0, t: int = 0, *, ack: float, lease: float = 30) -> list[Any]:
        ticket = self.tickets.get(request, b"")
        return [text(item) for item in self.run(engine.RENEW, ms(at), request, c, t, ms(lease), ms(ack), ticket)]

    def settle(
        self,
        request: str,
        at: float,
        c: int = 0,
        t: int = 0,
        *,
        state: str = "S",
        ack: float | None = None,
        terms: tuple[int, int, int] | None = None,
        body: bytes = b"{}",
        ticket: bytes | None = None,
    ) -> list[Any]:
        given = self.tickets.get(request, b"") if ticket is None else ticket
        when = "" if ack is None else ms(ack)
        answer = self.run(engine.SETTLE, ms(at), request, state, c, t, when, given, body, *(terms or ("", "", "")))
        return [text(item) for item in answer]

    def release(self, request: str, at: float, *, ack: float | None = None) -> list[Any]:
        return self.settle(request, at, state="R", ack=ack)

    def sweep(self, at: float, n: int = 50) -> list[Any]:
        return self.run(engine.SWEEP, ms(at), n)

    def publish(self, at: float, version: int | str = "", grants: int | str = "", granted: int = 0) -> list[Any]:
        return self.run(engine.PUBLISH, ms(at), version, grants, granted)

    def peek(self, at: float, view: bytes) -> list[Any]:
        return self.run(engine.PEEK, ms(at), view)

    # -- what is kept

    def field(self, name: str) -> list[Any] | None:
        raw = self.redis.hget(self.keys[0], name)
        return None if raw is None else records.unpack(raw)  # type: ignore[arg-type]

    def meta(self) -> list[Any]:
        found = self.field("$")
        assert found is not None
        return found

    def funding(self, source: str = "o", *, previous: bool = False) -> dict[str, int]:
        values = self.field(f"{'p' if previous else 'f'}:{source}")
        assert values is not None
        names = ("start", "quota", "allowed", "cap", "used", "held", "reserved", "purchased", "overage", "overdraft")
        return dict(zip(names, values, strict=True))

    def record(self, name: str = "o") -> "Counted":
        values = self.field(name)
        assert values is not None
        windows = records.unpack(values[14].encode("utf-8", "surrogateescape"))
        opened = values[4:7]
        used = {0: tuple(a + b for a, b in zip(windows[:3], opened, strict=True))}
        for p in range(3, len(windows), 4):
            used[windows[p]] = tuple(a + b for a, b in zip(windows[p + 1 : p + 4], opened, strict=True))
        return Counted(values[0], values[7], values[8], used)

    def cell(self, name: str) -> str | None:
        raw = self.redis.hget(self.keys[0], name)
        return None if raw is None else raw.decode()  # type: ignore[union-attr]

    def events(self) -> list[records.Event]:
        entries: Any = self.redis.xrange(self.keys[2])
        return [records.read_event(stream_id, fields) for stream_id, fields in entries]

    def hold_ids(self) -> set[str]:
        return {f.decode()[2:] for f in self.redis.hkeys(self.keys[0]) if f.startswith(b"h:")}  # type: ignore[union-attr]

    def lease_ids(self) -> set[str]:
        return {i.decode() for i in self.redis.zrange(self.keys[1], 0, -1)}  # type: ignore[union-attr]

    def dump(self) -> dict[bytes, bytes]:
        return dict(self.redis.hgetall(self.keys[0]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Counted:
    live: int
    held_c: int
    held_t: int
    used: dict[int, tuple[int, ...]]
    """Credits, tokens, requests by window code; 0 is the plan period."""


def ms(seconds: float) -> int:
    return round(seconds * 1000)
