"""What settings and first steps ask of routing and tell it, which quotas does not know: `config.pool_door` hands it in."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from accounts.models import Organization, User


@dataclass(frozen=True, slots=True)
class PoolDoor:
    """Functions of routing, under the names that they have here.

    `accept_terms(organization, accepted, by, now)` raises what `routing.terms.demand` raises. `sign_ins`: how many are in the
    organization's pools. `has_account(organization, plan)`: in a pool of its own, or in one that the plan (a slug, "" for none)
    offers. `names(organization, kind, uuids)`: of kind "pool" and "pool_account", by uuid. `set_fallbacks` raises FallbackRefused.
    """

    terms: str
    accept_terms: Callable[[Organization, bool, User | None, datetime], None]
    withdraw_terms: Callable[[Organization, User | None], None]
    sign_ins: Callable[[Organization], int]
    has_account: Callable[[Organization, str], bool]
    names: Callable[[Organization, str, Iterable[UUID]], Mapping[str, str]]
    fallbacks: Callable[[Organization], Mapping[str, Sequence[str]]]
    set_fallbacks: Callable[[Organization, str, Sequence[str], User | None], Sequence[str]]


_door: list[PoolDoor] = []


def register(door: PoolDoor) -> None:
    """Called when the apps are ready."""
    _door[:] = [door]


def routing() -> PoolDoor:
    return _door[0]
