"""Model fallbacks: which models serve an organization's requests for another one when its pool cannot carry them.

A rule is explicit and its order is the list's: a fallback's own fallbacks are not followed, so a request tries a known few. Each
is checked and priced as the model that serves (`proxy.exchange`).
"""

from collections.abc import Mapping, Sequence

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from config import snapshot
from routing.errors import FallbackRefused
from routing.models import ModelFallback

MOST_FALLBACKS = 5
"""Each one that is tried is an admission of its own."""
MOST_MODELS = 200
LONGEST_NAME = 120


def of(organization: Organization) -> dict[str, list[str]]:
    """The organization's rules: fallbacks in order, by the model asked for, sorted."""
    found: dict[str, list[str]] = {}
    rows = ModelFallback.objects.filter(organization=organization).order_by("model", "position")
    for model, fallback in rows.values_list("model", "fallback"):
        found.setdefault(model, []).append(fallback)
    return found


def load(organization_id: int) -> Mapping[str, tuple[str, ...]]:
    """The same for the request path; one query."""
    found: dict[str, tuple[str, ...]] = {}
    rows = ModelFallback.objects.filter(organization_id=organization_id).order_by("model", "position")
    for model, fallback in rows.values_list("model", "fallback"):
        found[model] = (*found.get(model, ()), fallback)
    return found


def set_fallbacks(organization: Organization, model: str, chain: Sequence[str], *, by: User | None) -> list[str]:
    """Lets these models, in this order, serve requests for `model`; an empty chain takes the rule away. Returns the chain.

    Holds on the next request. Whether the models have a price is not asked: one without is passed over. Raises FallbackRefused.
    """
    model = _checked(model)
    wanted = [_checked(name) for name in chain]
    if model in wanted:
        raise FallbackRefused(_("A model is no fallback for itself."))
    if len(set(wanted)) != len(wanted):
        raise FallbackRefused(_("A fallback is named twice."))
    if len(wanted) > MOST_FALLBACKS:
        raise FallbackRefused(_("A model has at most %(most_fallbacks)s fallbacks.") % {"most_fallbacks": MOST_FALLBACKS})
    with transaction.atomic():
        snapshot.bump(organization.pk)
        rows = ModelFallback.objects.filter(organization=organization)
        others = rows.exclude(model=model).values("model").distinct().count()
        if wanted and others >= MOST_MODELS:
            raise FallbackRefused(
                _("An organization has fallbacks for at most %(most_models)s models.") % {"most_models": MOST_MODELS}
            )
        before = list(rows.filter(model=model).order_by("position").values_list("fallback", flat=True))
        rows.filter(model=model).delete()
        ModelFallback.objects.bulk_create(
            ModelFallback(organization=organization, model=model, fallback=name, position=position)
            for position, name in enumerate(wanted, start=1)
        )
        if wanted != before:
            audit.record(
                organization,
                actor=by,
                action="fallback.set" if wanted else "fallback.removed",
                object_type="model_fallback",
                # Which is shorter than a name may be; the whole of it is in the data.
                object_id=model[:64],
                data={"model": model, "before": before, "after": wanted},
            )
    return wanted


def _checked(name: str) -> str:
    name = name.strip()
    if not name or len(name.encode()) > LONGEST_NAME or not name.isprintable():
        raise FallbackRefused(_("A model's name has 1 to %(longest_name)s printable characters.") % {"longest_name": LONGEST_NAME})
    return name
