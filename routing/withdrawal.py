"""The person whose sign-in is pooled: told by e-mail, and able to take it out again, by a link of their own."""

import hashlib
import logging
import secrets
from dataclasses import dataclass

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from config import scope
from routing import pools, versions
from routing.errors import AccountError, LinkInvalid
from routing.models import PoolAccount

logger = logging.getLogger(__name__)

PATH = "/withdraw/"
PERSON_LABEL = "the account's person"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a link would take out, and of whom."""

    label: str
    email: str
    organization: str


def new_link(account: PoolAccount) -> str:
    """The address by which the person takes the account out; only its digest is kept, on the account, which the caller saves."""
    token = secrets.token_urlsafe(32)
    account.withdrawal_digest = _digest(token)
    return f"{settings.PUBLIC_URL}{PATH}{token}"


def tell(account: PoolAccount, organization: Organization, link: str, *, by: User | None) -> None:
    """Writes to the person. What cannot be sent is logged: the account can be withdrawn by an operator all the same."""
    about = {"account": account, "organization": organization, "link": link, "by": by.email if by is not None else "an operator"}
    if not account.email:
        logger.warning("nobody to tell of a pooled sign-in", extra={"account": str(account.uuid)})
        return
    try:
        # Who added it reads pages in a language of their own, which need not be the person's.
        with translation.override("en"):
            message = render_to_string("emails/account_joined.txt", about)
        send_mail(
            subject="Your sign-in was put into a pool",
            message=message,
            from_email=None,
            recipient_list=[account.email],
        )
    except OSError as error:
        logger.warning("person not told", extra={"account": str(account.uuid), "error": type(error).__name__})


def look_up(token: str) -> Offer:
    """What the link is about. Raises LinkInvalid, the same for unknown and used."""
    with scope.everything():
        row = _of_link(token)
        owner = row.pool.organization
        return Offer(row.label, row.email, owner.name if owner is not None else "the operator")


def withdraw_by_link(token: str) -> None:
    """Takes the account out, on its person's word; the link is used up. Raises LinkInvalid."""
    with scope.everything(), transaction.atomic():
        _take_out(_of_link(token, lock=True), actor=None, actor_label=PERSON_LABEL)


def withdraw(organization: Organization, account: str, *, by: User | None) -> PoolAccount:
    """Takes a sign-in account (its id, or its label if no other has it) out of the organization's pool. Raises AccountError."""
    with transaction.atomic():
        rows = PoolAccount.objects.for_organization(organization).filter(kind=PoolAccount.Kind.CHATGPT)
        rows = rows.select_related("pool__organization").select_for_update(of=("self",), no_key=True)
        found = [row for row in rows if account in _names(row)]
        if len(found) != 1:
            what = "No sign-in account" if not found else "More than one sign-in account"
            raise AccountError(
                _("%(what)s of %(slug)s is called %(account)r.") % {"what": what, "slug": organization.slug, "account": account}
            )
        row = found[0]
        if row.status != PoolAccount.Status.WITHDRAWN:
            _take_out(row, actor=by, actor_label=audit.OPERATOR_LABEL)
        return row


def take_out(row: PoolAccount, *, by: User | None) -> None:
    """Ends the service of an account of any kind that the caller has locked, and erases its secrets. Inside a transaction."""
    _take_out(row, actor=by, actor_label=audit.OPERATOR_LABEL)


def _take_out(row: PoolAccount, *, actor: User | None, actor_label: str) -> None:
    """Ends its service and erases its tokens, whatever a refresh under way brings back: the version moved on."""
    organization = row.pool.organization
    row.was_paused = row.was_paused or row.status == PoolAccount.Status.PAUSED
    row.status = PoolAccount.Status.WITHDRAWN
    row.status_reason = ""
    row.access_token = row.refresh_token = row.withdrawal_digest = ""
    row.access_expires_at = row.refresh_claim = row.refresh_claimed_until = None
    row.credential_version += 1
    row.save()
    audit.record(
        organization,
        actor=actor,
        action="account.withdrawn" if row.kind == PoolAccount.Kind.CHATGPT else "account.removed",
        object_type="pool_account",
        object_id=str(row.uuid),
        data={"label": row.label, "identity": row.identity},
        actor_label=actor_label,
    )
    pools.changed(row.pool.organization_id)
    pool_id, organization_id, pk, version = row.pool_id, row.pool.organization_id, row.pk, row.credential_version
    transaction.on_commit(lambda: versions.publish(pool_id, organization_id, pk, version), robust=True)


def _names(row: PoolAccount) -> tuple[str, str]:
    return str(row.uuid), row.label


def _of_link(token: str, *, lock: bool = False) -> PoolAccount:
    rows = PoolAccount.objects.select_related("pool__organization").filter(withdrawal_digest=_digest(token))
    row = (rows.select_for_update(of=("self",), no_key=True) if lock else rows).first()
    if row is None:
        raise LinkInvalid
    return row


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
