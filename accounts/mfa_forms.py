"""allauth's forms of second factors, where they fall short.

A secret that waits is sealed, a code that was used is used, and garbage in place of a passkey is refused, not a crash.
"""

from typing import Any

from allauth.core import context
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.forms import ActivateTOTPForm
from allauth.mfa.totp.internal import auth
from allauth.mfa.webauthn.forms import (
    AddWebAuthnForm,
    AuthenticateWebAuthnForm,
    EditWebAuthnForm,
    LoginWebAuthnForm,
    ReauthenticateWebAuthnForm,
)
from django import forms
from django.core.exceptions import ValidationError

LONGEST_NAME = 80
BROKEN = (TypeError, ValueError, KeyError, AttributeError, IndexError)
"""What the libraries raise for a credential that is none."""


class ActivateForm(ActivateTOTPForm):  # type: ignore[misc]  # allauth has no types
    """The secret waits in the session until a code of it was given: sealed, and the same when the page is opened again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.user = kwargs.pop("user")
        forms.Form.__init__(self, *args, **kwargs)
        self.secret = self._waiting_secret()

    def clean_code(self) -> str:
        code: str = super().clean_code()
        # The code that proves the app is not a way in a moment later.
        if not auth.TOTP(Authenticator(user=self.user))._mark_code_used(code):
            raise get_adapter().validation_error("incorrect_code")
        return code

    def _waiting_secret(self) -> str:
        session, adapter = context.request.session, get_adapter()
        sealed = session.get(auth.SECRET_SESSION_KEY)
        if sealed:
            return str(adapter.decrypt(sealed))
        secret: str = auth.generate_totp_secret()
        session[auth.SECRET_SESSION_KEY] = adapter.encrypt(secret)
        return secret


class _PasskeyForm:
    """A passkey that does not fit, or is none, is refused in one sentence."""

    def clean_credential(self) -> Any:
        try:
            return super().clean_credential()  # type: ignore[misc]
        except ValidationError as error:
            raise _kindly(error) from None
        except BROKEN:
            raise get_adapter().validation_error("passkey_refused") from None


class AuthenticateForm(_PasskeyForm, AuthenticateWebAuthnForm):  # type: ignore[misc]
    pass


class LoginForm(_PasskeyForm, LoginWebAuthnForm):  # type: ignore[misc]
    pass


class ReauthenticateForm(_PasskeyForm, ReauthenticateWebAuthnForm):  # type: ignore[misc]
    pass


class AddForm(AddWebAuthnForm):  # type: ignore[misc]
    name = forms.CharField(required=False, max_length=LONGEST_NAME)

    def clean(self) -> Any:
        try:
            return super().clean()
        except ValidationError as error:
            raise _kindly(error) from None
        except BROKEN:
            raise get_adapter().validation_error("passkey_refused") from None


class RenameForm(EditWebAuthnForm):  # type: ignore[misc]
    name = forms.CharField(max_length=LONGEST_NAME)


def _kindly(error: ValidationError) -> ValidationError:
    if getattr(error, "code", "") != "incorrect_code":
        return error
    refused: ValidationError = get_adapter().validation_error("passkey_refused")
    return refused
