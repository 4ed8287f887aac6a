"""How allauth behaves here."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from accounts.models import User


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    """People join by a link; nobody signs up by themselves."""

    error_messages = {
        **DefaultAccountAdapter.error_messages,
        "email_password_mismatch": "E-mail or password do not match. Five wrong tries bring a pause of five minutes.",
        "too_many_login_attempts": "Too many wrong tries. Wait five minutes, then try again.",
        "enter_current_password": "That is not your current password.",
        "incorrect_password": "That is not your password.",
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

    def pre_login(self, request: HttpRequest, user: User, **kwargs: Any) -> HttpResponse | None:
        """By password or passkey. Whom all of their organizations send to a provider is led there (`accounts.identity`)."""
        from accounts import identity_login

        instead = identity_login.demand(request, user)
        if instead is not None:
            return instead
        answer: HttpResponse | None = super().pre_login(request, user, **kwargs)
        return answer

    def format_email_subject(self, subject: Any) -> str:
        """Subjects begin with the product's name; allauth would put the host's."""
        return f"Weir: {subject}"
