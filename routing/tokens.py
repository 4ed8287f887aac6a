"""What sign-in tokens say about themselves. They are read, not verified: the first upstream call verifies the account."""

import base64
import binascii
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from routing.errors import AuthFileInvalid

AUTH_CLAIM = "https://api.openai.com/auth"
PROFILE_CLAIM = "https://api.openai.com/profile"


@dataclass(frozen=True, slots=True)
class SignIn:
    """A sign-in, read: the tokens, and who they are for. One e-mail may own several accounts, one workspace several
    seats, so the identity is both ids together (N43)."""

    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    chatgpt_account_id: str
    user_id: str
    email: str
    plan_type: str
    access_expires_at: datetime | None

    @property
    def identity(self) -> str:
        return f"{self.chatgpt_account_id}:{self.user_id}"


def claims(token: str) -> dict[str, Any]:
    """The claims of a JWT, unverified; {} for anything that is not one."""
    parts = token.split(".")
    if len(parts) != 3:
        return {}
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return found if isinstance(found, dict) else {}


def expires_at(token: str) -> datetime | None:
    """When an access token expires, from its `exp`; None if it does not say."""
    seconds = claims(token).get("exp")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None


def _object(holder: dict[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def read_auth_json(auth_json: object) -> SignIn:
    """What `auth.json` of the vendor's CLI holds. Raises AuthFileInvalid, whose message never quotes the file."""
    if not isinstance(auth_json, dict):
        raise AuthFileInvalid(_("The file is not a JSON object as written by the CLI's sign-in."))
    found = _object(auth_json, "tokens")
    access, refresh, identity = (_text(found.get(name)) for name in ("access_token", "refresh_token", "id_token"))
    missing = [name for name, value in (("access_token", access), ("refresh_token", refresh), ("id_token", identity)) if not value]
    if missing:
        raise AuthFileInvalid(
            _("The file holds no tokens.%(missing)s: sign in with the CLI first.") % {"missing": ", tokens.".join(missing)}
        )
    return read(access, refresh, identity, account_id=_text(found.get("account_id")))


def read(access_token: str, refresh_token: str, id_token: str, *, account_id: str = "") -> SignIn:
    """Whose tokens these are, by the id_token's claims; `account_id` where they name no workspace. Raises AuthFileInvalid."""
    about = claims(id_token)
    auth = _object(about, AUTH_CLAIM)
    account_id = _text(auth.get("chatgpt_account_id")) or account_id
    user_id = _text(auth.get("chatgpt_user_id")) or _text(auth.get("user_id")) or _text(about.get("sub"))
    if not account_id or not user_id:
        raise AuthFileInvalid(_("The id_token does not name a workspace and a user."))
    if len(account_id) > 100 or len(user_id) > 99:
        raise AuthFileInvalid(_("The id_token names a workspace or user that is too long."))
    # Both travel in headers, and a line break there would be a second header.
    if not all(part.isascii() and part.isprintable() for part in (access_token, account_id)):
        raise AuthFileInvalid(_("The tokens hold characters that no token has."))
    return SignIn(
        access_token=access_token,
        refresh_token=refresh_token,
        chatgpt_account_id=account_id,
        user_id=user_id,
        email=_text(about.get("email")) or _text(_object(about, PROFILE_CLAIM).get("email")),
        plan_type=_text(auth.get("chatgpt_plan_type")),
        access_expires_at=expires_at(access_token),
    )
