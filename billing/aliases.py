"""Other names of models, dated: what is asked by an alias is asked of, and priced as, the model that it stands for then."""

from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import User
from billing import cardfile, ratecards, snapshots, timelines
from billing.errors import AliasRefused
from billing.models import Rate, RateAlias, RateOverride
from billing.timelines import whole_second
from config import scope


def add(
    alias: str,
    model: str,
    *,
    now: datetime,
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
    by: User | None = None,
    reason: str = "",
) -> RateAlias:
    """`alias` stands for `model` in [valid_from, valid_to), from now on if no start is given; every organization hears of it.

    What it stood for until then ends there. The same again changes nothing. Raises AliasRefused: an alias stands for a model that
    has a rate, exactly or by its date suffix, never for another alias, never where a rate of its own name is; the past keeps its
    names.
    """
    start = whole_second(now if valid_from is None else valid_from)
    _check_names(alias, model)
    if start < whole_second(now):
        raise AliasRefused(
            _("%(at)s UTC is past: what was asked then keeps the name and the price that it had.")
            % {"at": f"{start:%Y-%m-%d %H:%M:%S}"}
        )
    if valid_to is not None and valid_to <= start:
        raise AliasRefused(_("The alias would end before it begins."))
    # Everybody's overrides: a name that has a price of its own somewhere cannot mean another model.
    with scope.everything(), transaction.atomic():
        ratecards.lock()
        rows = list(RateAlias.objects.filter(alias=alias))
        standing = next((row for row in rows if row.valid_from <= start and (row.valid_to is None or start < row.valid_to)), None)
        if standing is not None and (standing.model, standing.valid_to) == (model, valid_to):
            return standing
        if valid_from is None:
            start = timelines.next_free(rows, start)
        _check_free(alias, model, start, valid_to)
        try:
            ending, end = timelines.fit(rows, start, valid_to, may_shorten=True)
        except timelines.Overlap as error:
            raise AliasRefused(
                _("%(alias)s has a row from %(at)s UTC already.")
                % {"alias": alias, "at": f"{error.row.valid_from:%Y-%m-%d %H:%M:%S}"}
            ) from error
        if ending is not None:
            ending.valid_to = start
            ending.save(update_fields=["valid_to"])
        made = RateAlias.objects.create(
            alias=alias, model=model, valid_from=start, valid_to=end, source={"reason": reason} if reason else {}
        )
        _tell(made, "alias.added", by)
    return made


def end(alias: RateAlias, *, now: datetime, by: User | None = None) -> None:
    """The name stands for nothing from now on; one that has not begun is taken out. Ending it again changes nothing."""
    moment = whole_second(now)
    with scope.everything(), transaction.atomic():
        ratecards.lock()
        row = RateAlias.objects.filter(pk=alias.pk).first()
        if row is None or (row.valid_to is not None and row.valid_to <= moment):
            return
        row.valid_to = timelines.ending(row, now)
        if row.valid_to is None:
            row.delete()
        else:
            row.save(update_fields=["valid_to"])
        _tell(row, "alias.ended", by)


def _check_names(alias: str, model: str) -> None:
    for name in (alias, model):
        if not cardfile.is_name(name) or "*" in name or name == snapshots.FALLBACK_MODEL:
            raise AliasRefused(_("%(name)r cannot be a model's name here.") % {"name": name[:120]})
    if alias == model:
        raise AliasRefused(_("%(alias)s would stand for itself.") % {"alias": alias})


def _check_free(alias: str, model: str, start: datetime, end: datetime | None) -> None:
    for row in (*Rate.objects.filter(model=alias), *RateOverride.objects.filter(model=alias)):
        if cardfile.overlap(row.valid_from, row.valid_to, start, end):
            raise AliasRefused(
                _("%(alias)s has a rate under its own name, so it cannot stand for another model.") % {"alias": alias}
            )
    for other in RateAlias.objects.filter(alias=model):
        if cardfile.overlap(other.valid_from, other.valid_to, start, end):
            raise AliasRefused(_("%(model)s is an alias itself; an alias stands for a model.") % {"model": model})
    rates = snapshots.load_rates()
    if rates.base_name(model, start) is None and not RateOverride.objects.filter(model=model).exists():
        raise AliasRefused(_("%(model)s is on no rate card, so nothing could be priced as it.") % {"model": model})


def _tell(row: RateAlias, action: str, by: User | None) -> None:
    ratecards.bump_everyone()
    audit.record(
        None,
        actor=by,
        action=action,
        object_type="ratealias",
        # Which is shorter than a name may be; the whole of it is in the data.
        object_id=row.alias[:64],
        data={
            "alias": row.alias,
            "model": row.model,
            "valid_from": row.valid_from.isoformat(),
            "valid_to": row.valid_to and row.valid_to.isoformat(),
        },
    )
