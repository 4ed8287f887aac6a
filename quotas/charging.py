"""Which records a request is counted in: told at its admission, and again from its row in the log.

A request counts in the records of its organization, team, member and key, and in the same four of every filter that its model
matches. The model of a request is the one it was asked for, by the aliases that held when it was admitted: what decides before
anything is sent, and what the log can tell for ever. What an upstream says it served changes the price, not the filter.

A plan whose quota is a rolling limit too has a record of its own, for the requests that draw on it. Its credits are what the
plan paid of them, nothing that purchased credits or an invoice paid.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from config.snapshot import Snapshot
from quotas import records
from quotas.snapshots import FilterSnapshot

PLAN_WINDOWS = {"weekly": "7d", "monthly": "30d"}
"""The rolling window of a plan's length, by its reset period."""
ROLLING_STRATEGIES = ("sliding_window", "sliding_log")
_KINDS = {"7d": records.SEVEN_DAYS, "30d": records.THIRTY_DAYS}


def base_names(team_id: int | None, member_id: int, key_id: int) -> tuple[str, ...]:
    """`o` first."""
    team = () if team_id is None else (f"t{team_id}",)
    return ("o", *team, f"m{member_id}", f"k{key_id}")


def filtered(name: str, filter_id: int) -> str:
    """A record's part that a filter counts."""
    return f"{name}~f{filter_id}"


def model_of(snapshot: Snapshot, asked: str, second: int) -> str:
    """The model that filters look at: the rate card's name for what was asked, by the aliases of that second."""
    return snapshot.billing.rates.base_name(asked, datetime.fromtimestamp(second, UTC)) or asked


def moments(snapshot: Snapshot, since: int) -> list[int]:
    """The seconds after `since` at which names of models begin or cease to mean a model, ascending."""
    rates = snapshot.billing.rates
    dated = [row for names in (rates.aliases, rates.rows, rates.overrides) for rows in names.values() for row in rows]
    # The first whole second of it: requests are admitted in whole ones.
    ends = {math.ceil(moment.timestamp()) for row in dated for moment in (row.valid_from, row.valid_to) if moment is not None}
    return sorted(end for end in ends if end > since)


def matching(snapshot: Snapshot, asked: str | None, second: int) -> tuple[FilterSnapshot, ...]:
    """The filters of models that a request matches; all of them for None, as pages ask."""
    filters = tuple(one for one in snapshot.quotas.filters if not one.source)
    if not filters or asked is None:
        return filters
    model = model_of(snapshot, asked, second)
    return tuple(one for one in filters if model in one.models)


def names(base: Sequence[str], filters: Sequence[FilterSnapshot]) -> tuple[str, ...]:
    """All records of a request but the plan's own."""
    return (*base, *(filtered(name, one.filter_id) for one in filters for name in base))


def plan_filter(snapshot: Snapshot, source: str) -> FilterSnapshot | None:
    """The newest filter of the requests that draw on a source."""
    return next((one for one in reversed(snapshot.quotas.filters) if one.source == source), None)


def plan_record(one: FilterSnapshot) -> str:
    """`o~s3w4`: the source, the filter, and the kind of its window, which the scripts read."""
    return f"{one.source}~s{one.filter_id}w{_KINDS[one.window]}"


def plan_code(one: FilterSnapshot) -> int:
    return records.code(_KINDS[one.window])


def is_rolling(subscription: Any) -> bool:
    return subscription.quota_strategy in ROLLING_STRATEGIES


def logged(snapshot: Snapshot) -> frozenset[str]:
    """The records that need a log: of limits, and plans, that count by the second."""
    found = set()
    for limit in snapshot.quotas.limits:
        if limit.is_exact:
            base = {"organization": "o", "team": "t", "member": "m", "key": "k"}[limit.scope]
            name = base if limit.target_id is None else f"{base}{limit.target_id}"
            found.add(name if limit.filter_id is None else filtered(name, limit.filter_id))
    for subscription in snapshot.billing.subscriptions:
        source = "o" if subscription.member_id is None else f"m{subscription.member_id}"
        one = plan_filter(snapshot, source)
        if one is not None and subscription.quota_strategy == "sliding_log":
            found.add(plan_record(one))
    return frozenset(found)
