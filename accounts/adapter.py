"""How allauth behaves here."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.account.internal.flows import login as login_flow
from allauth.account.models import Login
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.core.mail import EmailMessage
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from accounts.models import User

logger = logging.getLogger(__name__)

mailing = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mail")
"""Sends, one after the other, what no answer may wait for."""
RESET = "account/email/password_reset_key"


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """People join by a link; nobody signs up by themselves."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "email_password_mismatch": _("E-mail or password do not match. Five wrong tries bring a pause of five minutes."),
        "too_many_login_attempts": _("Too many wrong tries. Wait five minutes, then try again."),
        "rate_limited": _("Too many wrong tries. Wait five minutes, then try again."),
        "enter_current_password": _("That is not your current password."),
        "incorrect_password": _("That is not your password."),
    }

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def get_client_ip(self, request: HttpRequest) -> str:
        """What sign-in attempts are counted by. The middleware has put the client's address where the peer's stood, if a trusted
        proxy named it (N71); forwarded headers are not looked at again here."""
        address = request.META.get("REMOTE_ADDR")
        if not address:
            raise PermissionDenied("The client's address is not known.")
        return str(address)

    def get_reset_password_from_key_url(self, key: str) -> str:
        """Below PUBLIC_URL, so that no Host header of the one who asks for it leads the reader elsewhere."""
        path: str = reverse("account_reset_password_from_key", kwargs={"uidb36": "UID", "key": "KEY"})
        return f"{settings.PUBLIC_URL}{path.replace('UID-KEY', key)}"

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        """The way back to a lost password is sent beside the answer: how long the mail server takes, or that it takes nothing,
        would tell who signs in here."""
        if template_prefix != RESET:
            super().send_mail(template_prefix, email, context)
            return
        message = self.render_mail(template_prefix, email, {"request": self.request, "email": email, **context})
        mailing.submit(_send, message)

    def format_email_subject(self, subject: Any) -> str:
        """Subjects begin with the product's name; allauth would put the host's."""
        return f"Weir: {subject}"

    def pre_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse | None:
        """By password or passkey. Whom all of their organizations send to a provider is led there (`accounts.identity`)."""
        from accounts import identity_login

        instead = identity_login.demand(request, user)
        if instead is not None:
            return instead
        answer: HttpResponse | None = super().pre_login(request, user, **kwargs)
        return answer

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("security")

    def send_notification_mail(
        self, template_prefix: str, user: User, context: dict[str, Any] | None = None, email: str | None = None
    ) -> None:
        """Tells the person of a change of how they sign in, once it is made; what cannot be sent is logged and undoes nothing."""
        transaction.on_commit(lambda: self._notify(template_prefix, user, context, email))

    def _notify(self, template_prefix: str, user: User, context: dict[str, Any] | None, email: str | None) -> None:
        try:
            super().send_notification_mail(template_prefix, user, context, email)
        except OSError as error:
            logger.warning("person not told", extra={"template": template_prefix, "error": type(error).__name__})


def _send(message: EmailMessage) -> None:
    try:
        message.send()
    except Exception as error:
        logger.warning("no link for a lost password was sent", extra={"error": type(error).__name__})


def signed_in_by_password(request: HttpRequest, user: User, *, to: str) -> HttpResponse:
    """Signs in whoever has just given their password elsewhere than at the sign-in page, and leads them to the path `to`; who has a
    second factor is asked for it first."""
    response: HttpResponse = login_flow.perform_password_login(request, {"email": user.email}, Login(user=user, redirect_url=to))
    return response
