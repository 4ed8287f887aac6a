"""A person signs in on any device: they enter a short code there, and we ask the issuer until they have."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from uuid import UUID

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts.models import Organization, User
from routing import accounts, flows, issuer, joining, terms
from routing.errors import CredentialRefused, CredentialUnverified, FlowOver
from routing.joining import Joined
from routing.models import SignInFlow

REFUSALS = {
    "device_code_not_enabled": gettext_noop("The issuer does not offer device codes. Sign in in a browser."),
    "access_denied": gettext_noop("The sign-in was refused on the other device. Start a new one."),
    "expired_token": gettext_noop("The code has expired. Start a new sign-in."),
}


@dataclass(frozen=True, slots=True)
class Started:
    """The person opens `verification_url` and enters `user_code`, before `expires_at`; poll every `interval_seconds`."""

    flow_id: UUID
    user_code: str
    verification_url: str
    interval_seconds: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    """Not yet. `retry_after`: whole seconds until a poll asks the issuer again; an earlier one asks nobody."""

    retry_after: int


def start(
    organization: Organization,
    *,
    label: str = "",
    plan: str | None = None,
    accept_terms: bool = False,
    by: User | None,
    now: datetime,
) -> Started:
    """Asks the issuer for a code. Raises TermsNotAccepted, AccountError, CredentialRefused, CredentialUnverified."""
    label = accounts.checked_label(label) if label else ""
    accounts.check_plan(plan)
    terms.demand(organization, accepted=accept_terms, by=by, now=now)
    try:
        code = issuer.device_code()
    except issuer.IssuerRefused as error:
        raise _refusal(error) from None
    except issuer.IssuerUnavailable as error:
        raise CredentialUnverified(error.message, **error.facts) from None
    secret = {"device_auth_id": code.device_auth_id, "user_code": code.user_code}
    kind = SignInFlow.Kind.DEVICE
    flow = flows.begin(organization, kind, secret, label=label, plan=plan, by=by, now=now, interval_seconds=code.interval)
    return Started(flow.uuid, code.user_code, code.verification_url, code.interval, flow.expires_at)


def resume(organization: Organization, flow_id: UUID | str, *, by: User | None, now: datetime) -> Started:
    """A sign-in that was begun and left: the same code again, for who began it; asks nobody. Raises FlowOver."""
    flow = flows.read(organization, flow_id, SignInFlow.Kind.DEVICE, by=by, now=now)
    row = flow.row
    return Started(row.uuid, flow.secret["user_code"], issuer.device_page(), row.interval_seconds, row.expires_at)


def poll(organization: Organization, flow_id: UUID | str, *, by: User | None, now: datetime) -> Waiting | Joined:
    """Asks the issuer once, however many processes poll, and never sooner than it wants.

    Lets the account in once its person has entered the code. Raises FlowOver (expired, too), CredentialRefused,
    CredentialUnverified, AccountError; then the flow is over.
    """
    flow = flows.read(organization, flow_id, SignInFlow.Kind.DEVICE, by=by, now=now)
    row = flow.row
    interval = timedelta(seconds=row.interval_seconds)
    due = SignInFlow.objects.filter(pk=row.pk, next_poll_at__lte=now)
    if not due.update(next_poll_at=now + interval):
        next_poll_at = SignInFlow.objects.filter(pk=row.pk).values_list("next_poll_at", flat=True).first()
        if next_poll_at is None:
            raise FlowOver
        return Waiting(max(1, ceil((next_poll_at - now).total_seconds())))
    try:
        answer = issuer.device_poll(flow.secret["device_auth_id"], flow.secret["user_code"])
    except issuer.IssuerRefused as error:
        flows.take(flow)
        raise _refusal(error) from None
    if isinstance(answer, issuer.Pending):
        if answer.slower:
            interval += timedelta(seconds=answer.slower)
            slower = {"interval_seconds": row.interval_seconds + answer.slower, "next_poll_at": now + interval}
            SignInFlow.objects.filter(pk=row.pk).update(**slower)
        return Waiting(max(1, ceil(interval.total_seconds())))
    flows.take(flow)
    return joining.exchange(
        organization,
        answer.code,
        redirect_uri=issuer.device_redirect_uri(),
        verifier=answer.verifier,
        label=row.label,
        plan=row.plan_type or None,
        by=by,
        now=now,
    )


def _refusal(error: issuer.IssuerRefused) -> CredentialRefused:
    if error.reason in REFUSALS:
        sentence = _(REFUSALS[error.reason])
    else:
        sentence = _("The issuer refuses this sign-in (%(reason)s). Start a new one.") % {"reason": error.reason}
    return CredentialRefused(sentence, reason=error.reason)
