"""How allauth's second factors behave here: sealed at rest, named after this Weir, told kindly when they do not fit."""

import ipaddress
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from allauth.core import context
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts import factors, policies
from accounts.models import User
from config import sealing

ROW = UUID("5e0f8b2c-2f0a-4c6b-9f57-6d1c2f9e7a10")
"""allauth hands a secret over without its row, so all are bound to this one name."""
FIELD = "second_factor"
SECRET_NAMES = ("secret", "seed")
"""Where a row's `data` holds a sealed text."""


class MFAAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    error_messages = {
        **DefaultMFAAdapter.error_messages,
        "incorrect_code": gettext_lazy("That code does not fit. Take the one that is shown now; each works once."),
        "passkey_refused": gettext_lazy("That passkey was not accepted. Try again, or use another way."),
        "cannot_delete_authenticator": gettext_lazy(
            "This is your only second factor, and one is required of you. Add another one first."
        ),
        "cannot_generate_recovery_codes": gettext_lazy("Recovery codes stand in for a second factor. Set one up first."),
    }

    def encrypt(self, text: str) -> str:
        return sealing.seal(text, row=ROW, field=FIELD)

    def decrypt(self, encrypted_text: str) -> str:
        return sealing.unseal(encrypted_text, row=ROW, field=FIELD)

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        if authenticator.type not in factors.SECOND or not factors.is_last(authenticator):
            return True
        return not policies.demanding(authenticator.user)

    def get_totp_issuer(self) -> str:
        """What the app calls it; two installs of Weir are told apart by their host."""
        host = urlsplit(settings.PUBLIC_URL).hostname or ""
        return "Weir" if is_local(host) else f"Weir {host}"

    def generate_authenticator_name(self, user: User, type: Any) -> str:
        count = Authenticator.objects.filter(user_id=user.pk, type=type).count()
        return _("My passkey") if not count else _("My passkey %(number)d") % {"number": count + 1}

    def get_public_key_credential_rp_entity(self) -> dict[str, str]:
        return {"id": context.request.get_host().partition(":")[0], "name": self.get_totp_issuer()}


def is_local(host: str) -> bool:
    return host == "localhost" or is_number(host)


def is_number(host: str) -> bool:
    """Passkeys belong to a name; browsers make none for an address in numbers."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def sealed_in(data: dict[str, Any]) -> dict[str, str]:
    """The sealed texts of a factor's row, by their names in it."""
    return {name: data[name] for name in SECRET_NAMES if data.get(name)}


def resealed(data: dict[str, Any], *, newest: str) -> dict[str, Any] | None:
    """A row's data with what an older key sealed under the newest one; None if nothing was. Raises `sealing.Broken`."""
    changed = {
        name: sealing.seal(sealing.unseal(text, row=ROW, field=FIELD), row=ROW, field=FIELD)
        for name, text in sealed_in(data).items()
        if text.partition(":")[0] != newest
    }
    return {**data, **changed} if changed else None
