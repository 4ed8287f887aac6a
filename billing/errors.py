"""Billing's exception tree.

DomainError
└─ BillingError
   ├─ ImplausibleUsage     the upstream reports a usage that cannot be
   ├─ ModelUnknown         no rate row has this name at that time
   ├─ ModelUnpriced        a row has it, without rates
   ├─ RateCardRefused      a rate card file is wrong, or would change what is past
   ├─ PlanUnknown          no plan has this slug
   ├─ PlanNotActivatable   the plan has no quota yet
   └─ AlreadySubscribed    the organization or member has an active subscription
"""

from typing import ClassVar

from config.errors import DomainError


class BillingError(DomainError):
    """Something about plans, rates or usage."""

    code: ClassVar[str] = "billing_error"


class ImplausibleUsage(BillingError):
    """Negative counts, counts that are no numbers, or numbers no model could have read."""

    code: ClassVar[str] = "implausible_usage"


class ModelUnknown(BillingError):
    """Facts: model, param."""

    code: ClassVar[str] = "model_not_found"


class ModelUnpriced(BillingError):
    """Facts: model, param. Missing is not zero: the model is refused, never free by accident."""

    code: ClassVar[str] = "model_unpriced"


class RateCardRefused(BillingError):
    """Nothing of the file was imported."""

    code: ClassVar[str] = "rate_card_refused"


class PlanUnknown(BillingError):
    """The message names the plans there are."""

    code: ClassVar[str] = "plan_unknown"


class PlanNotActivatable(BillingError):
    """Unset means not activatable, never unlimited."""

    code: ClassVar[str] = "plan_not_activatable"


class AlreadySubscribed(BillingError):
    """One active subscription per organization, one seat per member."""

    code: ClassVar[str] = "already_subscribed"
    status: ClassVar[int] = 409
