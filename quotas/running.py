"""Requests that run now: what Redis knows of their holds. Reads; changes nothing. Never a prompt, never a secret."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from billing.events import decode_body
from billing.overview import Whose
from config.redis import RedisUnavailable, sync_client, translated
from quotas import admission, engine, rebuild, records

MOST = 500
"""So many leases are looked at; an organization with more running requests sees the ones renewed last."""


@dataclass(frozen=True, slots=True)
class Running:
    """One running request. `held`: micro-credits that its estimate holds."""

    request_id: str
    began: datetime
    held: int
    member_id: int
    key_id: int
    team_id: int | None
    model: str


def of(organization_id: int) -> list[Running]:
    """The newest first. Two round trips. Sync, no SQL. Raises RedisUnavailable."""
    redis: Any = sync_client()
    with translated():
        now_ms = rebuild.server_ms(redis)
        # Ended holds stay as tombstones with later ends: a live lease never ends later than this.
        latest = now_ms + admission.lease_ms()
        names = redis.zrevrangebyscore(engine.leases_key(organization_id), latest, now_ms, start=0, num=MOST)
        if not names:
            return []
        found = redis.hmget(engine.counters_key(organization_id), [b"h:" + name for name in names])
    rows = [_read(name.decode(), raw) for name, raw in zip(names, cast("list[bytes | None]", found), strict=True) if raw]
    return sorted((row for row in rows if row is not None), key=lambda row: (row.began, row.request_id), reverse=True)


def shown(whose: Whose) -> Sequence[Running]:
    """Those in the reach, for a page; none while Redis does not answer, which the page says elsewhere."""
    try:
        return seen(of(whose.organization.pk), whose)
    except RedisUnavailable:
        return []


def seen(rows: Iterable[Running], whose: Whose) -> Sequence[Running]:
    """Those in the reach."""
    if whose.member_id is not None:
        return [row for row in rows if row.member_id == whose.member_id]
    return [row for row in rows if whose.team_id is None or row.team_id == whose.team_id]


def _read(request_id: str, raw: bytes) -> Running | None:
    """None for one that has ended, and for what is no hold."""
    values = records.unpack(raw)
    if values[0] != "L":
        return None
    try:
        about = decode_body(str(values[13]).encode("utf-8", "surrogateescape"))
    except msgspec.MsgspecError:
        return None
    return Running(
        request_id=request_id,
        began=datetime.fromtimestamp(int(values[1]), UTC),
        held=int(values[9]),
        member_id=about.member_id,
        key_id=about.key_id,
        team_id=about.team_id,
        model=about.model_asked,
    )
