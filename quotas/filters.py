"""Filters: requests that are counted apart, from when their filter exists; enforced once what went before has been added.

A filter's records are charged by every admission whose snapshot knows it. What was used before is added from the log by `fill`,
when no hold that was admitted without it can end any more; until then its limits are shown as starting, and refuse nothing. Rolling
plans have a filter each too, of the requests that draw on them (`charging`).
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec
from django.db import transaction
from django.db.models import Count
from django.utils.translation import gettext as _
from redis import Redis as SyncRedis

from accounts import audit
from accounts.models import Organization, User
from billing.events import decode_body
from billing.models import Subscription
from config import scope, snapshot
from config.clock import utc_now
from config.redis import sync_client, translated
from config.snapshot import Snapshot
from quotas import adjusting, charging, copies, drain, engine, logbook, rebuild, records
from quotas.errors import LimitsError
from quotas.models import ModelFilter, UsageDrain
from quotas.snapshots import FilterSnapshot

logger = logging.getLogger(__name__)

MOST_FILTERS = 16
"""Of one organization: a request that matches a filter costs four more records."""
MOST_MODELS = 50
UNUSED = timedelta(minutes=10)
"""A filter that no limit looks at is kept so long: its limit may be on its way."""
DRAINS = 20


# ------------------------------------------------------------------------------------------------------ which there are


def ensure(organization: Organization, models: Sequence[str], *, by: User | None, now: datetime) -> ModelFilter:
    """The filter of exactly these models; made if there is none. In the caller's transaction, after its `snapshot.bump`.

    Models are named as the rate card names them, or by what stands for those names. Raises LimitsError.
    """
    rates = snapshot.load(organization.pk).billing.rates
    names = set()
    for name in models:
        known = rates.base_name(name.strip(), now)
        if known is None:
            raise LimitsError(_("There is no model %(name)r on the rate card.") % {"name": name.strip()[:80]})
        names.add(known)
    if not names:
        raise LimitsError(_("Which models? A limit of some models names them."))
    if len(names) > MOST_MODELS:
        raise LimitsError(_("At most %(most_models)s models in one limit.") % {"most_models": MOST_MODELS})
    wanted = sorted(names)
    own = ModelFilter.objects.filter(organization=organization, source="")
    for found in own:
        if sorted(found.model_names) == wanted:
            return found
    if own.count() >= MOST_FILTERS:
        raise LimitsError(
            _("At most %(most_filters)s different sets of models may have limits. Use one that is there.")
            % {"most_filters": MOST_FILTERS}
        )
    return _make(organization, name=", ".join(wanted)[:80], models=wanted, by=by)


def _make(
    organization: Organization, *, name: str, models: Sequence[str] = (), source: str = "", window: str = "", by: User | None
) -> ModelFilter:
    """Admissions of the organization's newest version on count into it: the caller has moved the version."""
    version = Organization.objects.values_list("config_version", flat=True).get(pk=organization.pk)
    made = ModelFilter.objects.create(
        organization=organization,
        name=name,
        model_names=list(models),
        source=source,
        window=window,
        active_from_version=version,
    )
    _audit(made, "filter.made", by)
    return made


def _audit(row: ModelFilter, action: str, by: User | None = None) -> None:
    audit.record(
        row.organization,
        actor=by,
        action=action,
        object_type="filter",
        object_id=str(row.uuid),
        data={"name": row.name, "models": list(row.model_names), "source": row.source, "window": row.window},
    )


def keep(organization_id: int, *, now: datetime) -> None:
    """Makes the filters that rolling plans need, and drops those that nothing needs: counters begin anew when one comes back."""
    wanted = set()
    active = Subscription.objects.filter(organization_id=organization_id).active().select_related("plan")
    for one in active:
        if one.plan.quota_strategy in charging.ROLLING_STRATEGIES:
            source = "o" if one.member_id is None else f"m{one.member_id}"
            wanted.add((source, charging.PLAN_WINDOWS[one.plan.reset_period]))
    rows = list(ModelFilter.objects.filter(organization_id=organization_id).annotate(uses=Count("limits")))
    have = {(row.source, row.window) for row in rows if row.source}
    unused = [row for row in rows if not row.source and not row.uses and row.created_at < now - UNUSED]
    unused += [row for row in rows if row.source and (row.source, row.window) not in wanted]
    if wanted <= have and not unused:
        return
    with transaction.atomic():
        snapshot.bump(organization_id)
        organization = Organization.objects.get(pk=organization_id)
        for row in ModelFilter.objects.filter(pk__in=[row.pk for row in unused], limits=None).select_related("organization"):
            _audit(row, "filter.dropped")
            row.delete()
        for source, window in sorted(wanted - have):
            _make(organization, name=f"plan of {source}", source=source, window=window, by=None)


# -------------------------------------------------------------------------------------------------------------- filling


def fill(organization_id: int, *, now: datetime | None = None, now_ms: int | None = None) -> list[int]:
    """Adds from the log what filters lack, and activates them; the ids of those. Nothing where somebody repairs already.

    Also gives records that are counted by the second what their log lacks. `now`, `now_ms` in tests. Raises RedisUnavailable.
    """
    redis = sync_client()
    with scope.organization(organization_id), adjusting.sole_repairer(organization_id) as is_ours:
        if not is_ours:
            return []
        loaded = snapshot.load(organization_id)
        waiting = [one for one in loaded.quotas.filters if not one.is_filled]
        logged = charging.logged(loaded)
        if not waiting and not logged:
            return []
        answer = engine.PUBLISH.run(redis, engine.keys(organization_id), ("", loaded.version, "", 0))
        if answer[0] == b"COLD" and not rebuild.rebuild(organization_id, now_ms=now_ms):
            return []
        # From here on every admission counts into the filters: only holds that are there already may lack them.
        holds = _holds(redis, organization_id)
        ready = [one for one in waiting if not any(_lacks(loaded, hold, one) for hold in holds)]
        _watch(redis, organization_id, logged)
        empty = [name for name in logged if not _has_mark(redis, organization_id, name)]
        if not ready and not empty:
            return []
        copy = copies.take(redis, organization_id, now_ms=now_ms)
        if copy is None or not _is_drained(redis, organization_id, copy.cut):
            return []
        names_of_log = frozenset(empty)
        deltas = logbook.missing(loaded, copy, ready, names_of_log)
        repair_id = f"fl-{uuid.uuid4().hex[:20]}"
        if deltas and adjusting.adjust(organization_id, copy.epoch, repair_id, deltas, now_ms=now_ms) == "LOST":
            return []
        with translated():
            for name in empty:
                redis.hset(engine.counters_key(organization_id), f"l:{name}", 1)
        return _activate(organization_id, ready, now=now or utc_now())


def _activate(organization_id: int, ready: Iterable[FilterSnapshot], *, now: datetime) -> list[int]:
    """Their limits are enforced from the next request on."""
    ids = [one.filter_id for one in ready]
    if not ids:
        return []
    with transaction.atomic():
        snapshot.bump(organization_id)
        for row in ModelFilter.objects.select_related("organization").filter(pk__in=ids, filled_at=None):
            row.filled_at = now
            row.save(update_fields=["filled_at"])
            _audit(row, "filter.active")
    logger.info("filters are enforced", extra={"organization_id": organization_id, "filters": ids})
    return ids


def _holds(redis: "SyncRedis", organization_id: int) -> list[list[Any]]:
    """Holds that live or may still be amended, as values."""
    with translated():
        ids = cast("list[bytes]", redis.zrange(engine.leases_key(organization_id), 0, -1))
        raw: list[bytes | None] = []
        for start in range(0, len(ids), 1000):
            fields = [f"h:{one.decode()}" for one in ids[start : start + 1000]]
            raw += cast(Any, redis.hmget(engine.counters_key(organization_id), fields))
    holds = [records.unpack(one) for one in raw if one is not None]
    return [hold for hold in holds if hold[0] in ("L", "O") and len(hold) >= 20]


def _lacks(loaded: Snapshot, hold: list[Any], one: FilterSnapshot) -> bool:
    """May the hold's end belong to the filter, and not reach its records?"""
    names = hold[19:]
    if one.source:
        return hold[5] == one.source and charging.plan_record(one) not in names
    if charging.filtered("o", one.filter_id) in names:
        return False
    try:
        model = decode_body(hold[13].encode("utf-8", "surrogateescape")).model_asked
    except msgspec.MsgspecError:
        # An orphan's body went with its event.
        return True
    return one in charging.matching(loaded, model, hold[1])


def _is_drained(redis: "SyncRedis", organization_id: int, cut: copies.StreamId) -> bool:
    """Does the log hold everything up to the cut? Drains what nobody else does."""
    last = "{}-{}".format(*cut)
    for _attempt in range(DRAINS):
        drained = UsageDrain.objects.filter(organization_id=organization_id).values_list("drained_id", flat=True).first()
        if copies.order(drained or "0-0") >= cut:
            return True
        with translated():
            left = redis.xrange(engine.stream_key(organization_id), "-", last, count=1)
        if not left:
            # What was trimmed was written.
            return True
        if not drain.drain(redis, organization_id):
            return False
    return False


# ----------------------------------------------------------------------------------------------------- logs of seconds


def _has_mark(redis: "SyncRedis", organization_id: int, name: str) -> bool:
    """Was the log of this record filled since the counters were made?"""
    with translated():
        return bool(redis.hexists(engine.counters_key(organization_id), f"l:{name}"))


def _watch(redis: "SyncRedis", organization_id: int, logged: Iterable[str]) -> None:
    """Tells of logs that are full: their windows are counted by buckets as far as the log does not know, so never too little."""
    for name in logged:
        with translated():
            count: int = cast(Any, redis.zlexcount(engine.log_key(organization_id), f"[{name}|s", f"({name}|t"))
        if count >= engine.MOST_LOGGED:
            logger.error(
                "a log of seconds is full: its limit is counted by buckets",
                extra={"organization_id": organization_id, "record": name, "seconds": count},
            )


def due() -> list[int]:
    """The organizations that `keep` and `fill` may have something to do for. In the scope of everything."""
    rolling = Subscription.objects.active().filter(plan__quota_strategy__in=charging.ROLLING_STRATEGIES)
    ids = set(rolling.values_list("organization_id", flat=True)) | set(
        ModelFilter.objects.values_list("organization_id", flat=True)
    )
    ids |= set(Organization.objects.filter(limits__strategy="sliding_log").values_list("pk", flat=True))
    return sorted(ids)
