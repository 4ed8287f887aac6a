"""How accounts join a pool: each credential is shown to its upstream once before it serves.

By a file or several (here), by an API key (here), in a browser (`routing.oauth`), by a code on another device (`routing.device`).
All of them talk to the network and must not run inside a transaction.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from django.utils.translation import gettext as _

from accounts.models import Organization, User
from config.errors import DomainError
from routing import accounts, issuer, snapshots, terms, tokens, verification
from routing.errors import AuthFileInvalid, CredentialRefused, CredentialUnverified
from routing.models import PoolAccount
from routing.tokens import SignIn

LARGEST_FILE_BYTES = 1024 * 1024
MOST_SIGN_INS = 200


@dataclass(frozen=True, slots=True)
class Joined:
    """An account that serves from now on. `is_new` False: it was here, and its credential was renewed."""

    account: PoolAccount
    is_new: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sign-in of one file. `joined` None: refused, with a code and a sentence."""

    source: str
    joined: Joined | None
    code: str = ""
    reason: str = ""


# ------------------------------------------------------------------------------------------------------------- files


def add_files(
    organization: Organization,
    files: Iterable[tuple[str, bytes]],
    *,
    label: str = "",
    plan: str | None = None,
    accept_terms: bool,
    by: User | None,
    now: datetime,
) -> list[Outcome]:
    """Takes in `auth.json` files, named, each with one sign-in or a list of them; every sign-in is judged on its own.

    Raises TermsNotAccepted and AccountError for what concerns all of them; then nothing was read.
    """
    check_files(organization, plan=plan, accept_terms=accept_terms, by=by, now=now)
    return [add_found(organization, one, label=label, plan=plan, by=by, now=now) for one in found_in(files)]


def check_files(organization: Organization, *, plan: str | None, accept_terms: bool, by: User | None, now: datetime) -> None:
    """What concerns all files. Raises TermsNotAccepted, AccountError."""
    accounts.check_plan(plan)
    terms.demand(organization, accepted=accept_terms, by=by, now=now)


@dataclass(frozen=True, slots=True)
class Found:
    """One sign-in of one file, not read yet; or why the file is none."""

    source: str
    entry: object = field(repr=False)
    refusal: AuthFileInvalid | None = None


def found_in(files: Iterable[tuple[str, bytes]]) -> Iterator[Found]:
    for name, content in files:
        try:
            entries = _entries(name, content)
        except AuthFileInvalid as error:
            yield Found(name, None, error)
            continue
        for source, entry in entries:
            yield Found(source, entry)


def add_found(
    organization: Organization, found: Found, *, label: str = "", plan: str | None = None, by: User | None, now: datetime
) -> Outcome:
    """Takes one in, judged on its own. `check_files` comes before the first."""
    try:
        if found.refusal is not None:
            raise found.refusal
        sign_in = tokens.read_auth_json(found.entry)
        joined = add_file_sign_in(organization, sign_in, label=label, plan=plan, by=by, now=now)
    except DomainError as error:
        return Outcome(found.source, None, error.code, error.message)
    return Outcome(found.source, joined)


def _entries(name: str, content: bytes) -> list[tuple[str, object]]:
    """The sign-ins of one file, each with what to call it. Raises AuthFileInvalid, which never quotes the file."""
    if len(content) > LARGEST_FILE_BYTES:
        raise AuthFileInvalid(_("%(name)s is too large to be an auth.json.") % {"name": name})
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise AuthFileInvalid(_("%(name)s is not JSON.") % {"name": name}) from None
    if not isinstance(found, list):
        return [(name, found)]
    if not 1 <= len(found) <= MOST_SIGN_INS:
        raise AuthFileInvalid(
            _("%(name)s holds %(count)s sign-ins; 1 to %(most_sign_ins)s are taken at once.")
            % {"name": name, "count": len(found), "most_sign_ins": MOST_SIGN_INS}
        )
    return [(f"{name}[{number}]", entry) for number, entry in enumerate(found)]


def add_file_sign_in(
    organization: Organization, sign_in: SignIn, *, label: str, plan: str | None, by: User | None, now: datetime
) -> Joined:
    """A sign-in that was made earlier. One whose access token has expired is renewed, which spends the file's refresh token.

    Raises CredentialRefused, CredentialUnverified, AuthFileStale, AccountWithdrawn, AccountError.
    """
    is_expired = sign_in.access_expires_at is not None and sign_in.access_expires_at <= now
    known = accounts.find_sign_in(organization, sign_in.identity)
    if known is not None:
        # Before anything is spent: the pool may be about to spend the very same refresh token itself.
        accounts.refuse_old(known, sign_in, is_same_old=is_expired)
    try:
        verification.sign_in(sign_in.access_token, sign_in.chatgpt_account_id)
    except CredentialRefused:
        if not is_expired:
            raise
        sign_in = _renewed(sign_in)
        verification.sign_in(sign_in.access_token, sign_in.chatgpt_account_id)
    account = accounts.add_sign_in(organization, sign_in, label=label, plan=plan, by=by, now=now)
    return Joined(account, is_new=known is None)


def _renewed(sign_in: SignIn) -> SignIn:
    try:
        renewed = issuer.renew(sign_in.refresh_token, reason="proactive_expiry")
    except issuer.IssuerRefused as error:
        raise CredentialRefused(
            _("Its sign-in has expired, and the issuer does not renew it (%(reason)s). Sign in again.") % {"reason": error.reason},
            reason=error.reason,
        ) from None
    except issuer.IssuerUnavailable as error:
        raise CredentialUnverified(
            _("Its sign-in has expired. %(message)s Try again; if that is refused, sign in again.") % {"message": error.message},
            **error.facts,
        ) from None
    access = renewed.access_token or sign_in.access_token
    return replace(
        sign_in,
        access_token=access,
        refresh_token=renewed.refresh_token or sign_in.refresh_token,
        access_expires_at=tokens.expires_at(access),
    )


# ---------------------------------------------------------------------------------------------------- fresh sign-ins


def exchange(
    organization: Organization,
    code: str,
    *,
    redirect_uri: str,
    verifier: str,
    label: str,
    plan: str | None,
    by: User | None,
    now: datetime,
) -> Joined:
    """Trades the code that a person's own sign-in came back with, and lets the account in.

    Raises CredentialRefused, CredentialUnverified, AuthFileInvalid, AccountError; the code is used up in any case.
    """
    try:
        found = issuer.exchange(code, redirect_uri=redirect_uri, verifier=verifier)
    except issuer.IssuerRefused as error:
        raise CredentialRefused(
            _("The issuer refuses this sign-in (%(reason)s). Start a new one.") % {"reason": error.reason}, **error.facts
        ) from None
    except issuer.IssuerUnavailable as error:
        raise CredentialUnverified(_("%(message)s Start a new sign-in.") % {"message": error.message}, **error.facts) from None
    sign_in = tokens.read(found.access_token, found.refresh_token, found.id_token)
    verification.sign_in(sign_in.access_token, sign_in.chatgpt_account_id)
    is_new = accounts.find_sign_in(organization, sign_in.identity) is None
    account = accounts.add_sign_in(organization, sign_in, label=label, plan=plan, is_persons_own=True, by=by, now=now)
    return Joined(account, is_new=is_new)


# ---------------------------------------------------------------------------------------------------------- API keys


def add_key(
    organization: Organization,
    api_key: str,
    *,
    kind: str = PoolAccount.Kind.OPENAI,
    label: str,
    base_url: str | None = None,
    models: Sequence[str] | None = None,
    by: User | None,
    now: datetime,
) -> Joined:
    """Lets an API key in once its upstream took it: OpenAI's, Anthropic's, or one for an endpoint that is compatible with OpenAI's.

    Raises CredentialRefused, CredentialUnverified and what `accounts.add_key` raises.
    """
    accounts.checked_label(label)
    if models is not None:
        accounts.checked_models(models)
    address = accounts.checked_address(kind, base_url)
    verification.api_key(accounts.checked_key(api_key, kind=kind), address or snapshots.default_url(kind), kind=kind)
    account = accounts.add_key(organization, api_key, kind=kind, label=label, base_url=base_url, models=models, by=by, now=now)
    return Joined(account, is_new=account.credential_version == 1)
