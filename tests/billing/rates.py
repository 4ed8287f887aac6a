"""Rate R of the case catalogue, and how to vary it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from billing.snapshots import RateSnapshot

R = RateSnapshot(
    rate_id=1,
    model="m",
    valid_from=datetime(2026, 4, 2, tzinfo=UTC),
    valid_to=None,
    input=60_000_000,
    cached_input=6_000_000,
    cache_write=75_000_000,
    output=300_000_000,
    fast_thousandths=2000,
)
"""Input 60, cached input 6, output 300, cache write 75 credits per million tokens; fast x2."""


def rate(**changes: Any) -> RateSnapshot:
    return replace(R, **changes)
