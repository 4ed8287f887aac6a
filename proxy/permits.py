"""May this key ask for this model, this effort, this speed? Judged by the snapshot alone, before anything is counted."""

from datetime import datetime

from billing.snapshots import RateSnapshot, SubscriptionSnapshot
from proxy.auth import Caller
from proxy.dialects.inspection import Inspection
from proxy.errors import EffortNotAllowed, FastModeNotAllowed, ModelNotAllowed


def subscription_of(caller: Caller, *, at: datetime) -> SubscriptionSnapshot | None:
    """What the key draws on at `at`: its member's own seat, else the organization's subscription; None if there is neither."""
    found: SubscriptionSnapshot | None = None
    for subscription in caller.snapshot.billing.subscriptions:
        if subscription.member_id == caller.key.member_id:
            found = subscription
            break
        if subscription.member_id is None:
            found = subscription
    return None if found is None else found.at(at)


def check(caller: Caller, inspection: Inspection, *, model: str, at: datetime) -> RateSnapshot:
    """The rate that prices `model` at `at`: what was asked for, or what an organization's rule lets serve in its place.

    Raises ModelUnknown, ModelUnpriced, ModelNotAllowed, EffortNotAllowed, FastModeNotAllowed.
    """
    rate: RateSnapshot = caller.snapshot.billing.rates.rate_for(model, at)
    subscription = subscription_of(caller, at=at)
    for allowed, whose in (
        (caller.key.allowed_models, "This key"),
        (subscription.models if subscription is not None else None, "Your plan"),
    ):
        if not is_allowed(allowed, model, caller.snapshot.billing.rates.base_name(model, at)):
            raise ModelNotAllowed(f"{whose} may not use the model {model}.", param="model")
    efforts = caller.key.allowed_efforts
    effort = inspection.reasoning_effort
    if efforts is not None and effort is not None and effort not in efforts:
        raise EffortNotAllowed(f"This key may not use the reasoning effort {effort[:40]!r}.", param="reasoning.effort")
    if inspection.is_fast:
        if not caller.key.fast_allowed:
            raise FastModeNotAllowed("This key may not use fast mode.", param="service_tier")
        if not caller.key.member_fast_allowed:
            raise FastModeNotAllowed("You may not use fast mode.", param="service_tier")
        if subscription is not None and not subscription.fast_allowed:
            raise FastModeNotAllowed("Your plan does not include fast mode.", param="service_tier")
    return rate


def is_allowed(allowed: frozenset[str] | None, *names: str | None) -> bool:
    """None allows all; a dated name is allowed where its base model is."""
    return allowed is None or any(name in allowed for name in names)
