"""Every stored secret under the newest key of ENCRYPTION_KEYS, so that an old key can be dropped.

In pages, each row by compare-and-set: a token that is renewed meanwhile is not overwritten, and what was interrupted goes on where
it stopped, because a row that is done is left alone.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allauth.mfa.models import Authenticator
from django.conf import settings
from django.db.models import Model, QuerySet

from accounts import mfa_adapter
from config.sealing import Broken
from routing import flows, sealing
from routing.errors import SealBroken
from routing.models import PoolAccount, SignInFlow

M = TypeVar("M", bound=Model)

PAGE = 500

# Which columns of which tables hold a ciphertext; a new one must be added here (a test looks for others).
SEALED: list[tuple[type[Model], tuple[str, ...]]] = [
    (PoolAccount, ("access_token", "refresh_token")),
    (SignInFlow, (flows.FIELD,)),
]


@dataclass(slots=True)
class Rotation:
    """What a run found: rows re-encrypted, rows that were under the newest key already, rows that changed meanwhile (run again),
    rows that no configured key opens. `keys`: by key id, how many secrets are under it now."""

    newest: str
    resealed: int = 0
    current: int = 0
    moved: int = 0
    broken: list[str] = field(default_factory=list)
    keys: Counter[str] = field(default_factory=Counter)

    @property
    def droppable(self) -> list[str]:
        """Configured keys that nothing is under any more."""
        return [key_id for key_id in settings.ENCRYPTION_KEYS if key_id != self.newest and not self.keys[key_id]]


def register(model: type[Model], fields: tuple[str, ...]) -> None:
    """Another app's table: rows with a `uuid`, their columns sealed by `config.sealing` under the columns' names."""
    SEALED.append((model, fields))


def rotate(*, page: int = PAGE) -> Rotation:
    """Re-encrypts what is under an older key. Safe to repeat, to interrupt, and beside running processes.

    In the scope of everything. A process that still runs with the old list seals with its own first key, so all of them are
    restarted before the last run: `keys` says when an old one is free.
    """
    found = Rotation(newest=sealing.newest())
    for model, fields in SEALED:
        for row in _pages(model._default_manager.all(), page):
            _reseal(row, model, fields, found)
        for name in fields:
            for text in model._default_manager.exclude(**{name: ""}).values_list(name, flat=True).iterator(chunk_size=page):
                found.keys[text.partition(":")[0]] += 1
    _reseal_factors(found, page)
    return found


def _reseal_factors(found: Rotation, page: int) -> None:
    """What people's second factors hold: texts within JSON, in a table that is allauth's."""
    rows: QuerySet[Any] = Authenticator.objects.all()
    for row in _pages(rows, page):
        try:
            data = mfa_adapter.resealed(row.data, newest=found.newest)
        except Broken as error:
            found.broken.append(f"second factor {row.pk}: {error.message}")
            continue
        if data is None:
            found.current += bool(mfa_adapter.sealed_in(row.data))
        elif rows.filter(pk=row.pk, data=row.data).update(data=data):
            found.resealed += 1
        else:
            found.moved += 1
    for data in rows.values_list("data", flat=True).iterator(chunk_size=page):
        found.keys.update(text.partition(":")[0] for text in mfa_adapter.sealed_in(data).values())


def _pages(rows: QuerySet[M], page: int) -> Iterator[M]:
    """Rows by id, a page a query, so that none is held open and none is read twice."""
    last = 0
    while True:
        found = list(rows.filter(pk__gt=last).order_by("pk")[:page])
        yield from found
        if len(found) < page:
            return
        last = found[-1].pk


def _reseal(row: Model, model: type[Model], fields: tuple[str, ...], found: Rotation) -> None:
    row_id = row.uuid  # type: ignore[attr-defined]
    old = {name: getattr(row, name) for name in fields}
    stale = {name: text for name, text in old.items() if text and text.partition(":")[0] != found.newest}
    if not stale:
        found.current += 1
        return
    try:
        new = {
            name: sealing.seal(sealing.unseal(text, account=row_id, field=name), account=row_id, field=name)
            for name, text in stale.items()
        }
    except SealBroken as error:
        found.broken.append(f"{model._meta.model_name} {row_id}: {error.message}")
        return
    if model._default_manager.filter(pk=row.pk, **old).update(**new):
        found.resealed += 1
    else:
        found.moved += 1
