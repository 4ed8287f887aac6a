"""Billing's exception tree.

DomainError
└─ BillingError
   ├─ ImplausibleUsage     the upstream reports a usage that cannot be
   ├─ ModelUnknown         no rate row has this name at that time
   ├─ ModelUnpriced        a row has it, without rates
   ├─ RateCardRefused      a rate card file is wrong, or would change what is past
   │  └─ RatesMoved        the rates are no longer what the shown difference was made against
   ├─ AliasRefused         another name of a model that cannot be
   ├─ OverrideRefused      a price of an organization's own that cannot be
   ├─ PlanUnknown          no plan has this slug
   ├─ PlanNotActivatable   the plan has no quota yet
   ├─ PlanRefused          a plan cannot be like that
   ├─ AlreadySubscribed    the organization or member has an active subscription
   ├─ ChangeRefused        a change of plan that cannot be made
   │  └─ ChangeMoved       it is no longer what its preview said
   ├─ InvoiceUnknown       no invoice has this number
   ├─ CreditNoteRefused    more than the invoice's total would be taken back
   ├─ ReferenceReused      a reference of the ledger stands for something else
   ├─ CreditsRefused       an amount of credits that cannot be moved
   │  └─ NotEnoughCredits  more would be taken back than is left
   ├─ OperatorsOnly        an owner or member would give or take credits
   ├─ MonthlyRefused       a monthly export that cannot be set up like that
   ├─ RangeInvalid         a time that no report can be made of
   ├─ GroupingUnknown      nothing is summed so
   │  └─ GroupingForbidden not for this role
   └─ PaymentRefused       a payment names what is not there, or is told of in two ways
      ├─ SignatureRefused
      ├─ EventRefused
      └─ OrganizationUnknown
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


class RatesMoved(RateCardRefused):
    """Look at the new difference, then confirm that."""

    code: ClassVar[str] = "rates_moved"
    status: ClassVar[int] = 409


class AliasRefused(BillingError):
    """It would name nothing, itself, or another alias; stand where a rate stands; or rename what is past."""

    code: ClassVar[str] = "alias_refused"


class OverrideRefused(BillingError):
    """It is incomplete or out of bounds, would reprice what is past, or lies over another one."""

    code: ClassVar[str] = "override_refused"


class PlanUnknown(BillingError):
    """The message names the plans there are."""

    code: ClassVar[str] = "plan_unknown"


class PlanRefused(BillingError):
    """Nothing was changed."""

    code: ClassVar[str] = "plan_refused"


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


class ChangeRefused(BillingError):
    """The subscription has ended, is on this plan already, or the plans have two currencies. Nothing was changed."""

    code: ClassVar[str] = "change_refused"
    status: ClassVar[int] = 409


class ChangeMoved(ChangeRefused):
    """Look at the new preview, then confirm that."""

    code: ClassVar[str] = "change_moved"


class InvoiceUnknown(BillingError):
    code: ClassVar[str] = "invoice_unknown"
    status: ClassVar[int] = 404


class CreditNoteRefused(BillingError):
    """Facts: left (decimal text). No note was issued."""

    code: ClassVar[str] = "credit_note_refused"
    status: ClassVar[int] = 409


class RangeInvalid(BillingError):
    """The message names what is wrong with it."""

    code: ClassVar[str] = "range_invalid"


class GroupingUnknown(BillingError):
    """Facts: by."""

    code: ClassVar[str] = "grouping_unknown"


class GroupingForbidden(GroupingUnknown):
    code: ClassVar[str] = "grouping_forbidden"
    status: ClassVar[int] = 403


class SignatureRefused(PaymentRefused):
    """Missing, wrong, or too old: one answer."""

    code: ClassVar[str] = "signature_invalid"
    status: ClassVar[int] = 401


class EventRefused(PaymentRefused):
    """Signed, but not an event that we can read."""

    code: ClassVar[str] = "event_invalid"
    status: ClassVar[int] = 400


class OrganizationUnknown(PaymentRefused):
    """Facts: payment_id."""

    code: ClassVar[str] = "organization_unknown"
    status: ClassVar[int] = 404


class MonthlyRefused(BillingError):
    code: ClassVar[str] = "monthly_export_invalid"
