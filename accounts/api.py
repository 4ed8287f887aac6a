"""The one door of `/api/v1/`: who calls, as which member, and that nothing but this member's organization is in sight.

An ApiToken belongs to one member of one organization, so no path names the organization. Sessions do not count here.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http.response import HttpResponseBase
from django.utils import translation
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.views import APIView

from accounts import api_tokens, keys, snapshots
from accounts.models import ApiKey, ApiToken, Member, User
from config import scope
from config.clock import utc_now

REFUSAL = "Incorrect API token provided."
"""The same for every reason: wrong, revoked, expired, removed, suspended, switched off."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose call this is. `token` is None for a gateway key, which stands for its member's own things only."""

    member: Member
    token: ApiToken | None


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer wt_…`."""

    takes_keys: ClassVar[bool] = False

    def authenticate(self, request: Request) -> tuple[User, Caller] | None:
        """None without an `authorization` header; raises AuthenticationFailed (401) for one that does not hold."""
        scheme, _, text = get_authorization_header(request).decode("latin-1").partition(" ")
        text = text.strip()
        if not scheme:
            return None
        caller = self._caller(text) if scheme.lower() == "bearer" else None
        if caller is None or caller.member.user is None:
            raise AuthenticationFailed(REFUSAL)
        return caller.member.user, caller

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"

    def _caller(self, text: str) -> Caller | None:
        if self.takes_keys and text.startswith(keys.PREFIX):
            return _key_caller(text)
        now = utc_now()
        token = api_tokens.verified(text, now=now)
        if token is None:
            return None
        api_tokens.note_use(token, now=now)
        return Caller(token.member, token)


class TokenOrKeyAuthentication(TokenAuthentication):
    """A gateway key, `wr_…`, is taken too."""

    takes_keys = True


class OrganizationView(APIView):
    """A view that sees the caller's organization only. What a call takes and needs is `api.base`'s to ask."""

    authentication_classes = [TokenAuthentication]

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> HttpResponseBase:
        # Whatever a client's Accept-Language says: programs read this, and people who look a message up.
        with translation.override("en"), ExitStack() as self._entered:
            response = super().dispatch(request, *args, **kwargs)
        response["Cache-Control"] = "no-store"
        return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Raises what DRF raises for who does not prove who they are."""
        super().initial(request, *args, **kwargs)
        # The one place where the API learns whose rows it may see. Answers are rendered from plain values, after it has ended.
        self._entered.enter_context(scope.organization(self.caller(request).member.organization_id))

    @staticmethod
    def caller(request: Request) -> Caller:
        caller = request.auth
        assert isinstance(caller, Caller)
        return caller


def _key_caller(text: str) -> Caller | None:
    """The member of the gateway key that this text is, judged by the database: so a revoked one is refused at once (F1)."""
    parsed = keys.parse(text)
    if parsed is None:
        return None
    now = utc_now()
    with scope.everything():
        rows = ApiKey.objects.unrevoked().filter(
            member__removed_at=None, member__user__is_active=True, organization__is_active=True
        )
        row = rows.select_related("member__organization", "member__team", "member__user").filter(public_id=parsed.public_id).first()
    if row is None:
        return None
    known = snapshots.of_key(row)
    if known.is_expired(now) or not keys.verify(text, known, now=now):
        return None
    return Caller(row.member, None)
