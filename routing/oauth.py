"""A person signs in in a browser (authorization code with PKCE), and pastes the address that they land on.

That address is on the person's own machine, where nothing listens: the page does not open, and its address holds the code. State
and verifier never leave the server.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID

from django.conf import settings
from django.utils.translation import gettext as _

from accounts.models import Organization, User
from routing import accounts, flows, joining, terms
from routing.errors import CallbackInvalid, CredentialRefused
from routing.joining import Joined
from routing.models import SignInFlow

REDIRECT_URI = "http://127.0.0.1:1455/auth/callback"
"""The one that the vendor's CLI has registered for the public client."""

SCOPE = "openid profile email offline_access"
LONGEST_CALLBACK = 8192


@dataclass(frozen=True, slots=True)
class Started:
    """`url` is for the person's browser; `flow_id` names the sign-in when it comes back, before `expires_at`."""

    flow_id: UUID
    url: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Callback:
    """What the pasted address says: a code, or the reason why there is none."""

    state: str = field(repr=False)
    code: str = field(repr=False)
    error: str


def start(
    organization: Organization,
    *,
    label: str = "",
    plan: str | None = None,
    accept_terms: bool = False,
    by: User | None,
    now: datetime,
) -> Started:
    """Begins a sign-in of a new account, or again of one that is here. Raises TermsNotAccepted, AccountError."""
    label = accounts.checked_label(label) if label else ""
    accounts.check_plan(plan)
    terms.demand(organization, accepted=accept_terms, by=by, now=now)
    state, verifier = (secrets.token_urlsafe(32) for _ in range(2))
    secret = {"state": state, "verifier": verifier}
    flow = flows.begin(organization, SignInFlow.Kind.BROWSER, secret, label=label, plan=plan, by=by, now=now)
    return Started(flow.uuid, authorize_url(state, verifier), flow.expires_at)


def resume(organization: Organization, flow_id: UUID | str, *, by: User | None, now: datetime) -> Started:
    """A sign-in that was begun and left: the same link again, for who began it. Raises FlowOver."""
    flow = flows.read(organization, flow_id, SignInFlow.Kind.BROWSER, by=by, now=now)
    return Started(flow.row.uuid, authorize_url(flow.secret["state"], flow.secret["verifier"]), flow.row.expires_at)


def authorize_url(state: str, verifier: str) -> str:
    """Where the person signs in. We name no originator: that would be another client's."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    asked = {
        "response_type": "code",
        "client_id": settings.OAUTH_CLIENT_ID,
        "redirect_uri": REDIRECT_URI,
        "scope": SCOPE,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
        "id_token_add_organizations": "true",
        "codex_cli_simplified_flow": "true",
        "state": state,
    }
    return f"{settings.UPSTREAM_AUTH_URL}/oauth/authorize?{urlencode(asked)}"


def finish(organization: Organization, flow_id: UUID | str, pasted: str, *, by: User | None, now: datetime) -> Joined:
    """Ends the sign-in with the address that was pasted, and lets its account in.

    An address that is not this flow's leaves it open, so that the right one can be pasted. Raises FlowOver, CallbackInvalid,
    CredentialRefused, CredentialUnverified, AccountError.
    """
    flow = flows.read(organization, flow_id, SignInFlow.Kind.BROWSER, by=by, now=now)
    callback = read_callback(pasted)
    if not hmac.compare_digest(callback.state.encode(), flow.secret["state"].encode()):
        raise CallbackInvalid(_("That address is of another sign-in. Paste the one that this sign-in ended at."))
    flows.take(flow)
    if callback.error:
        raise CredentialRefused(
            _("The sign-in was not completed (%(error)s). Start a new one.") % {"error": callback.error}, reason=callback.error
        )
    return joining.exchange(
        organization,
        callback.code,
        redirect_uri=REDIRECT_URI,
        verifier=flow.secret["verifier"],
        label=flow.row.label,
        plan=flow.row.plan_type or None,
        by=by,
        now=now,
    )


def read_callback(pasted: str) -> Callback:
    """The address as people paste it: whole, or from its `?` on, or without that. Raises CallbackInvalid, which quotes nothing."""
    text = pasted.strip().strip("<>\"'")
    if not text or len(text) > LONGEST_CALLBACK:
        raise CallbackInvalid(_("Paste the address that the browser shows after the sign-in."))
    try:
        query = urlsplit(text).query if "?" in text else text.partition("#")[0]
        found = parse_qs(query, max_num_fields=40)
    except ValueError:
        raise CallbackInvalid(_("That is not an address.")) from None
    state, code, error = (_only(found.get(name, [])) for name in ("state", "code", "error"))
    if not state or not (code or error):
        raise CallbackInvalid(_("That address holds no sign-in: it ends in ?code=…&state=… . Copy all of it."))
    return Callback(state, code, "" if code else error[:80])


def _only(values: list[str]) -> str:
    """The value, unless it was given twice: then nobody knows which one counts."""
    return values[0] if len(values) == 1 else ""
