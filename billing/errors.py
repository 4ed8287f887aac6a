"""Billing's exception tree.

DomainError
└─ BillingError
   ├─ ImplausibleUsage     the upstream reports a usage that cannot be
   ├─ ModelUnknown         no rate row has this name at that time
   ├─ ModelUnpriced        a row has it, without rates
   ├─ RateCardRefused      a rate card file is wrong, or would change what is past
   ├─ PlanUnknown          no plan has this slug
   ├─ PlanNotActivatable   the plan has no quota yet
   ├─ AlreadySubscribed    the organization or member has an active subscription
   ├─ ReferenceReused      a reference of the ledger stands for something else
   ├─ CreditsRefused       an amount of credits that cannot be moved
   │  └─ NotEnoughCredits  more would be taken back than is left
   ├─ OperatorsOnly        an owner or member would give or take credits
   └─ PaymentRefused       a payment names what is not there, or is told of in two ways
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


class ReferenceReused(BillingError):
    """Facts: reference. Nothing was posted."""

    code: ClassVar[str] = "reference_reused"
    status: ClassVar[int] = 409


class CreditsRefused(BillingError):
    """Zero, the wrong sign, or more than counters can hold. Nothing was moved."""

    code: ClassVar[str] = "credits_refused"


class NotEnoughCredits(CreditsRefused):
    """Facts: left, asked (decimal text). What was drawn is not taken back."""

    code: ClassVar[str] = "not_enough_credits"
    status: ClassVar[int] = 409


class OperatorsOnly(BillingError):
    """Credits are money: owners see them, operators move them."""

    code: ClassVar[str] = "operators_only"
    status: ClassVar[int] = 403


class PaymentRefused(BillingError):
    """Facts: payment_id. Nothing was marked or granted."""

    code: ClassVar[str] = "payment_refused"
    status: ClassVar[int] = 409
