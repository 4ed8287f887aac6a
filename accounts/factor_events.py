"""What follows from a change that allauth made: the audit trail, and the end of sessions that began without it.

Connected when the app is ready.
"""

from typing import Any

from allauth.account import signals as account_signals
from allauth.mfa import signals as mfa_signals
from allauth.mfa.models import Authenticator
from django.http import HttpRequest

from accounts import factors, sessions
from accounts.models import User


def connect() -> None:
    mfa_signals.authenticator_added.connect(on_added)
    mfa_signals.authenticator_removed.connect(on_removed)
    mfa_signals.authenticator_reset.connect(on_codes_made)
    for signal in (account_signals.password_changed, account_signals.password_set):
        signal.connect(on_password_changed)
    account_signals.password_reset.connect(on_password_reset)


def on_added(sender: object, request: HttpRequest, user: User, authenticator: Authenticator, **rest: Any) -> None:
    """The first factor ends all other sessions: who came in by the password alone could be anybody who knows it."""
    if authenticator.type == Authenticator.Type.RECOVERY_CODES:
        factors.record(user, "recovery_codes.made", by=user)
        return
    ended = sessions.end_others(user, request) if factors.is_last(authenticator) else 0
    factors.record(user, "second_factor.added", by=user, data={"kind": authenticator.type, "sessions_ended": ended})


def on_removed(sender: object, user: User, authenticator: Authenticator, **rest: Any) -> None:
    is_codes = authenticator.type == Authenticator.Type.RECOVERY_CODES
    action = "recovery_codes.removed" if is_codes else "second_factor.removed"
    factors.record(user, action, by=user, data={} if is_codes else {"kind": authenticator.type})


def on_codes_made(sender: object, user: User, **rest: Any) -> None:
    factors.record(user, "recovery_codes.made", by=user)


def on_password_changed(sender: object, request: HttpRequest, user: User, **rest: Any) -> None:
    ended = sessions.end_others(user, request)
    factors.record(user, "password.changed", by=user, data={"sessions_ended": ended})


def on_password_reset(sender: object, user: User, **rest: Any) -> None:
    ended = sessions.end_all(user)
    factors.record(user, "password.reset", by=user, data={"sessions_ended": ended})
