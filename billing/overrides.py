"""An organization's own prices, dated: while one holds it goes before the card's.

A usage record's `rate_id` names the row it was priced with: the card's row by its id, an override by minus its id. So one column of
the append-only log names both, and a name read back is never the other's.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from billing import cardfile, credits, ratecards, snapshots, timelines
from billing.errors import BillingError, OverrideRefused
from billing.models import Rate, RateAlias, RateOverride
from billing.pricing import MOST_RATE, MOST_THOUSANDTHS
from billing.timelines import whole_second
from config import scope, snapshot


@dataclass(frozen=True, slots=True)
class Terms:
    """A price: micro-credits per million tokens, multipliers in thousandths. No `cache_write`: those tokens cost as input.

    `fast_thousandths` and the long-context terms that are None are the card's at the override's start, copied then.
    """

    input: int
    cached_input: int
    output: int
    cache_write: int | None = None
    fast_thousandths: int | None = None
    long_context_threshold: int | None = None
    long_context_input_thousandths: int | None = None
    long_context_output_thousandths: int | None = None


def set_override(
    organization: Organization,
    model: str,
    terms: Terms,
    *,
    now: datetime,
    valid_from: datetime | None = None,
    valid_to: datetime | None = None,
    reason: str = "",
    by: User | None = None,
) -> RateOverride:
    """The organization's price of `model` in [valid_from, valid_to), from now on if no start is given.

    What held until then ends there; the same again changes nothing. The organization's next request is priced by it, an earlier one
    never. `model` is a name of the card, or a model of the organization's own, or "fallback". Raises OverrideRefused.
    """
    start = whole_second(now if valid_from is None else valid_from)
    _check(model, terms)
    if start < whole_second(now):
        raise OverrideRefused(
            _("%(at)s UTC is past: requests of then keep the price that they had.") % {"at": f"{start:%Y-%m-%d %H:%M:%S}"}
        )
    if valid_to is not None and valid_to <= start:
        raise OverrideRefused(_("The override would end before it begins."))
    with scope.organization(organization.pk), transaction.atomic():
        # The organization's row lock first: two changes at once come one after the other. The rates' lock keeps aliases away.
        snapshot.bump(organization.pk)
        ratecards.lock()
        for alias in RateAlias.objects.filter(alias=model):
            if cardfile.overlap(alias.valid_from, alias.valid_to, start, valid_to):
                raise OverrideRefused(
                    _("%(alias)s is an alias of %(model)s: set the price of that.") % {"alias": model, "model": alias.model},
                    model=model,
                )
        rows = list(RateOverride.objects.filter(organization=organization, model=model).order_by("valid_from"))
        values = _values(model, terms, start)
        standing = _standing(rows, start)
        if standing is not None and (ratecards.terms_of(standing), standing.valid_to) == (tuple(values.values()), valid_to):
            return standing
        if valid_from is None:
            start = timelines.next_free(rows, start)
        try:
            ending, end = timelines.fit(rows, start, valid_to, may_shorten=True)
        except timelines.Overlap as error:
            raise OverrideRefused(
                _("%(model)s has an override from %(at)s UTC already; end that one first.")
                % {"model": model, "at": f"{error.row.valid_from:%Y-%m-%d %H:%M:%S}"},
                model=model,
            ) from error
        if ending is not None:
            ending.valid_to = start
            ending.save(update_fields=["valid_to"])
        made = RateOverride.objects.create(
            organization=organization,
            model=model,
            valid_from=start,
            valid_to=end,
            reason=reason[:200],
            created_by=by,
            **values,
        )
        _audit(made, "override.set", by)
    return made


def end(override: RateOverride, *, now: datetime, by: User | None = None) -> None:
    """The card's price holds again from now on; one that has not begun is taken out. Ending it again changes nothing."""
    moment = whole_second(now)
    with scope.organization(override.organization_id), transaction.atomic():
        snapshot.bump(override.organization_id)
        row = RateOverride.objects.filter(pk=override.pk).select_related("organization").first()
        if row is None or (row.valid_to is not None and row.valid_to <= moment):
            return
        row.valid_to = timelines.ending(row, now)
        if row.valid_to is None:
            row.delete()
        else:
            row.save(update_fields=["valid_to"])
        _audit(row, "override.ended", by)


def _standing(rows: list[RateOverride], at: datetime) -> RateOverride | None:
    return next((row for row in rows if row.valid_from <= at and (row.valid_to is None or at < row.valid_to)), None)


def _check(model: str, terms: Terms) -> None:
    if not cardfile.is_name(model) or "*" in model:
        raise OverrideRefused(_("%(name)r cannot be a model's name.") % {"name": model[:120]})
    prices = (terms.input, terms.cached_input, terms.output, terms.cache_write or 0)
    if not all(0 <= price <= MOST_RATE for price in prices):
        raise OverrideRefused(
            _("A price is between 0 and %(most)s credits per million tokens.") % {"most": credits.text(MOST_RATE)}
        )
    if terms.cached_input > max(terms.input, terms.cache_write or 0):
        raise OverrideRefused(_("Cached input would be dearer than input."))
    multipliers = (terms.fast_thousandths, terms.long_context_input_thousandths, terms.long_context_output_thousandths)
    if not all(one is None or 0 <= one <= MOST_THOUSANDTHS for one in multipliers):
        raise OverrideRefused(_("A multiplier is between 0 and %(most)s.") % {"most": MOST_THOUSANDTHS // 1000})
    if terms.long_context_threshold is not None and not 0 <= terms.long_context_threshold < 2**31:
        raise OverrideRefused(_("The long-context threshold is not a number of input tokens."))


def _values(model: str, terms: Terms, start: datetime) -> dict[str, int | None]:
    """The columns, in the order of `ratecards.TERMS`; what the terms leave open is the card's at `start`, else nothing special."""
    rates = snapshots.load_rates()
    name = rates.base_name(model, start)
    try:
        card: Any = None if name is None else rates.rate_for(name, start)
    except BillingError:
        card = None
    plain = {"fast_thousandths": 1000, "long_context_input_thousandths": 1000, "long_context_output_thousandths": 1000}
    values: dict[str, int | None] = {}
    for column in ratecards.TERMS:
        said = getattr(terms, column)
        is_open = said is None and column not in ("cache_write",)
        values[column] = (plain.get(column) if card is None else getattr(card, column)) if is_open else said
    return values


def _audit(row: RateOverride, action: str, by: User | None) -> None:
    said = dict(zip(ratecards.TERMS, ratecards.terms_of(row), strict=True))
    interval = {"valid_from": row.valid_from.isoformat(), "valid_to": row.valid_to and row.valid_to.isoformat()}
    audit.record(
        row.organization,
        actor=by,
        action=action,
        object_type="rateoverride",
        object_id=str(row.uuid),
        data={"model": row.model, **interval, **said, "reason": row.reason},
    )


# ------------------------------------------------------------------------------------------------- naming a priced row


def rate_id_of(override: RateOverride) -> int:
    """What usage records call it."""
    return -override.pk


def row_of(rate_id: int) -> Rate | RateOverride | None:
    """The row that a usage record names; None if it is not there, or not in scope."""
    if rate_id < 0:
        return RateOverride.objects.filter(pk=-rate_id).first()
    return Rate.objects.filter(pk=rate_id).first()


def reference(rate_id: int | None) -> str:
    """The name for people and CSV: `rate-12`, `override-3`; empty for usage that nothing priced."""
    if rate_id is None:
        return ""
    return f"override-{-rate_id}" if rate_id < 0 else f"rate-{rate_id}"
