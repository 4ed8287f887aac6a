"""The text that an owner accepts before sign-in accounts may be pooled, and that it was accepted."""

import textwrap
from datetime import datetime

from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts import audit, permissions
from accounts.models import Member, Organization, User
from accounts.permissions import Action
from routing.errors import TermsNotAccepted

PARAGRAPHS = (
    gettext_noop("You are about to put a personal sign-in account into a pool that other people use."),
    gettext_noop(
        "The provider's terms of service may forbid giving others access to such an account, and the provider may limit "
        "or close it. Weir cannot permit what the provider forbids. By accepting, you confirm for your organization "
        "that you have read the provider's terms, that you may pool this account under them, and that the person it "
        "belongs to has agreed."
    ),
    gettext_noop(
        "That person is named on the account, is told by e-mail, and may withdraw it at any time. Accounts with an API "
        "key need none of this. Your acceptance is recorded with your name and the time."
    ),
)
"""As a page shows them, in its language."""
SIGN_IN_TERMS = "\n\n".join(textwrap.fill(part, 126) for part in PARAGRAPHS)
"""What is accepted and recorded: the English text."""


def accepted_by(member: Member, *, said: bool) -> bool:
    """Whether the terms are accepted with this word: that is an owner's to say; from others it counts for nothing."""
    return said and permissions.can(member, Action.MANAGE_ORGANIZATION)


def demand(organization: Organization, *, accepted: bool, by: User | None, now: datetime) -> None:
    """Passes where the terms were accepted before, or are now, which is recorded. Raises TermsNotAccepted, with the text."""
    with transaction.atomic():
        row = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if row.sign_in_terms_accepted_at is not None:
            return
        if not accepted:
            raise TermsNotAccepted(
                _("Sign-in accounts are off until the terms are accepted:\n\n%(sign_in_terms)s\n")
                % {"sign_in_terms": SIGN_IN_TERMS},
                terms=SIGN_IN_TERMS,
            )
        row.sign_in_terms_accepted_at = now
        row.sign_in_terms_accepted_by = by
        row.save(update_fields=["sign_in_terms_accepted_at", "sign_in_terms_accepted_by"])
        audit.record(
            row,
            actor=by,
            action="organization.sign_in_terms_accepted",
            object_type="organization",
            object_id=str(row.uuid),
            data={"terms": SIGN_IN_TERMS},
        )


def withdraw(organization: Organization, *, by: User | None) -> Organization:
    """No sign-in account joins any more until the terms are accepted anew. Those that are there serve on: they are taken out one by
    one, by the organization or by the person each belongs to. A second time changes nothing."""
    with transaction.atomic():
        row = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if row.sign_in_terms_accepted_at is not None:
            accepted_at = row.sign_in_terms_accepted_at
            row.sign_in_terms_accepted_at, row.sign_in_terms_accepted_by = None, None
            row.save(update_fields=["sign_in_terms_accepted_at", "sign_in_terms_accepted_by"])
            audit.record(
                row,
                actor=by,
                action="organization.sign_in_terms_withdrawn",
                object_type="organization",
                object_id=str(row.uuid),
                data={"accepted_at": accepted_at.isoformat()},
            )
    return row
