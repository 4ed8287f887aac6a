"""What a rule finds: something that holds now, whether it was told already or not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from quotas.alerts.models import Alert

LINES = (100, 95, 80)
"""Percent used, the highest first; pages say 20 %, 5 % or nothing left."""

STATES = frozenset({Alert.Kind.LIMIT, Alert.Kind.QUOTA, Alert.Kind.OVERAGE, Alert.Kind.ACCOUNT})
"""Kinds that end when they do not hold any more; the others tell of something that happened."""


@dataclass(frozen=True, slots=True)
class Found:
    """`kind`, `line`, `scope` and `period` are the alert's identity (`quotas.alerts.models.Alert`).

    `is_rolling`: its window has no end, so `period` is only a slice of time as long as the window: what still stands from the
    slice before is not told again.
    """

    kind: str
    scope: str
    period: str
    line: int = 0
    team_id: int | None = None
    member_id: int | None = None
    key_id: int | None = None
    limit_uuid: UUID | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_rolling: bool = False


def line_of(used: int, limit: int) -> int:
    """The highest line that is reached, by the exact amounts; 0 for none, and for a limit that is 0: it blocks on purpose."""
    if limit <= 0:
        return 0
    return next((line for line in LINES if used * 100 >= limit * line), 0)
