"""Accounts join a pool, are renewed, and are taken out when they need a person."""

import hashlib
import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, F, Q
from django.utils.translation import gettext as _

from accounts import audit
from accounts.models import Organization, User
from config import scope
from routing import addresses, capacity, due, live, pools, sealing, terms, tokens, versions, withdrawal
from routing.errors import AccountError, AccountWithdrawn, ApiKeyInvalid, AuthFileStale
from routing.models import PoolAccount, PoolAccountQuerySet

logger = logging.getLogger(__name__)

API_KEY_TIER = 10
"""`priority` of a new API key; sign-ins begin in tier 0, and a lead may change either."""


def add_chatgpt(
    organization: Organization,
    auth_json: object,
    *,
    label: str,
    plan: str | None = None,
    accept_terms: bool,
    by: User | None,
    now: datetime,
) -> PoolAccount:
    """Puts what an `auth.json` holds into the pool without asking its upstream (`routing.joining` asks first).

    Raises TermsNotAccepted, with the text, as long as nobody has accepted it for the organization; AuthFileInvalid, and what
    `add_sign_in` raises.
    """
    checked_label(label)
    sign_in = tokens.read_auth_json(auth_json)
    check_plan(plan)
    terms.demand(organization, accepted=accept_terms, by=by, now=now)
    return add_sign_in(organization, sign_in, label=label, plan=plan, by=by, now=now)


def add_sign_in(
    organization: Organization,
    sign_in: tokens.SignIn,
    *,
    label: str = "",
    plan: str | None = None,
    is_persons_own: bool = False,
    by: User | None,
    now: datetime,
) -> PoolAccount:
    """Puts a sign-in account into the organization's pool; the same identity again renews its tokens, whatever its status was.

    `label` empty keeps the old one, or is the person's e-mail; `plan` names the size when the sign-in does not (`pro_200`). Its
    person is told by e-mail. One that was moved to a shared pool is renewed there, by an operator. `is_persons_own`: the person
    has just signed in; what a file holds may be old instead, and does not bring back an account that was withdrawn. Raises
    AccountError, AuthFileStale, AccountWithdrawn.
    """
    check_plan(plan)
    plan_type = (plan or sign_in.plan_type or "").strip().lower()
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        account = _sign_ins(organization, sign_in.identity).select_for_update(of=("self",), no_key=True).first()
        is_new = account is None
        if account is None:
            account = PoolAccount(
                pool=pools.default(organization),
                kind=PoolAccount.Kind.CHATGPT,
                identity=sign_in.identity,
                chatgpt_account_id=sign_in.chatgpt_account_id,
            )
        else:
            refuse_shared(account)
            if not is_persons_own:
                refuse_old(account, sign_in)
            account.credential_version += 1
        link = ""
        if not account.withdrawal_digest:
            # Its first time here, or its first after it was withdrawn.
            account.accepted_by, account.accepted_at = by, now
            link = withdrawal.new_link(account)
        account.label = checked_label(label or account.label or sign_in.email[:80] or sign_in.identity[:80])
        account.email = sign_in.email[:254]
        if is_new or plan is not None or (plan_type and not capacity.is_same(account.plan_type, plan_type)):
            account.plan_type = plan_type[:40]
            # Its plan's, as dated, until a lead gives it another.
            account.weight_thousandths = None
        account.reported_plan = ""
        account.access_token = sealing.seal(sign_in.access_token, account=account.uuid, field="access_token")
        account.refresh_token = sealing.seal(sign_in.refresh_token, account=account.uuid, field="refresh_token")
        account.access_expires_at = sign_in.access_expires_at
        account.refreshed_at = now
        account.refresh_claim = account.refresh_claimed_until = None
        _bring_back(account)
        account.save()
        _joined(account, organization, by=by, is_new=is_new)
        if link:
            transaction.on_commit(partial(withdrawal.tell, account, organization, link, by=by), robust=True)
    return account


def refuse_old(account: PoolAccount, sign_in: tokens.SignIn, *, is_same_old: bool = False) -> None:
    """Keeps a file from putting an older sign-in over the one that the pool renews, or bringing back what was withdrawn.

    Refresh tokens work once, so the older one has been spent. With `is_same_old` what is exactly as old is refused too. Raises
    AuthFileStale, AccountWithdrawn.
    """
    if account.status == PoolAccount.Status.WITHDRAWN:
        raise AccountWithdrawn(_("Its person withdrew this account. Only that person's own sign-in brings it back, not a file."))
    held, given = account.access_expires_at, sign_in.access_expires_at
    if account.status == PoolAccount.Status.NEEDS_SIGN_IN or held is None or given is None:
        return
    if given < held or (is_same_old and given == held):
        raise AuthFileStale(_("The pool holds a newer sign-in of this account; nothing was changed."))


def refuse_shared(account: PoolAccount) -> None:
    """Keeps an organization from renewing what the operator has taken into a shared pool. Raises AccountError."""
    if account.pool.organization_id is None and scope.current() != scope.EVERYTHING:
        raise AccountError(
            _("This account is in the operator's shared pool %(name)s; the operator renews it there.") % {"name": account.pool.name}
        )


def find_sign_in(organization: Organization, identity: str) -> PoolAccount | None:
    """The account of this identity that the organization has, or a shared pool, without its ciphertexts. Raises AccountError for a
    shared one that the caller may not renew."""
    found = _sign_ins(organization, identity).without_secrets().first()
    if found is not None:
        refuse_shared(found)
    return found


def _sign_ins(organization: Organization, identity: str) -> PoolAccountQuerySet:
    """The organization's first. A second row of the same sign-in would spend the refresh token that the first one holds."""
    rows = PoolAccount.objects.filter(Q(pool__organization=organization) | Q(pool__organization=None))
    rows = rows.filter(kind=PoolAccount.Kind.CHATGPT, identity=identity).select_related("pool__organization")
    return rows.order_by(F("pool__organization").asc(nulls_last=True), "pk")


def check_plan(plan: str | None) -> None:
    """Raises AccountError for a plan that no list of weights knows."""
    if plan is not None and not capacity.is_known(plan):
        raise AccountError(_("The plan %(plan)r is not known.") % {"plan": plan}, plan=plan)


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
) -> PoolAccount:
    """Puts an API key into the organization's pool; the same key again changes its label and address.

    A compatible endpoint always has an address, and is the same account only at the same one: `EMPTY` opens many. `models`: which
    it serves; None leaves that as it is, which is every one for a new account. Its upstream is not asked (`routing.joining` asks
    first). Raises ApiKeyInvalid, AddressRefused, AccountError.
    """
    label = checked_label(label)
    api_key = checked_key(api_key, kind=kind)
    address = checked_address(kind, base_url)
    served = None if models is None else checked_models(models)
    identity = _key_identity(kind, api_key, address)
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        account = PoolAccount.objects.for_organization(organization).filter(
            kind=kind, identity=identity
        ).select_for_update(of=("self",), no_key=True).first()  # fmt: skip
        is_new = account is None
        if account is None:
            # What costs money by the token takes what the subscriptions cannot.
            account = PoolAccount(pool=pools.default(organization), kind=kind, identity=identity, priority=API_KEY_TIER)
        else:
            account.credential_version += 1
        account.label = label
        account.base_url = address
        if served is not None:
            account.models_served = served
        account.access_token = sealing.seal(api_key, account=account.uuid, field="access_token")
        account.refreshed_at = now
        _bring_back(account)
        account.save()
        _joined(account, organization, by=by, is_new=is_new)
    return account


def _key_identity(kind: str, api_key: str, address: str) -> str:
    """Keys are random: a digest tells two apart and gives nothing away. What opens an endpoint of one's own may be anything."""
    if kind == PoolAccount.Kind.OPENAI:
        return "key:" + hashlib.sha256(api_key.encode()).hexdigest()[:32]
    told = f"{address}\n{api_key}" if kind == PoolAccount.Kind.COMPATIBLE else api_key
    return f"{kind}:" + hashlib.sha256(told.encode()).hexdigest()[:32]


def set_models(account: PoolAccount, models: Sequence[str] | None, *, by: User | None) -> PoolAccount:
    """Says which models the account serves; None: every one. Holds on the next request. Raises AccountError."""
    served = None if models is None else checked_models(models)
    with transaction.atomic():
        rows = PoolAccount.objects.without_secrets().select_related("pool__organization")
        account = rows.select_for_update(of=("self",), no_key=True).get(pk=account.pk)
        before, account.models_served = account.models_served, served
        account.save(update_fields=["models_served"])
        audit.record(
            account.pool.organization,
            actor=by,
            action="account.models_set",
            object_type="pool_account",
            object_id=str(account.uuid),
            data={"label": account.label, "before": before, "after": served},
        )
        pools.changed(account.pool.organization_id)
    return account


def need_sign_in(account_id: int, reason: str, *, version: int | None = None) -> bool:
    """Takes an account out until it is signed in again; True if it was not out yet. One log line each time it goes out.

    With `version`, only while the credential is still that one: a loser of a race must not take out what a winner renewed.
    """
    with scope.everything(), transaction.atomic():
        row = PoolAccount.objects.without_secrets().select_related("pool").filter(pk=account_id).first()
        if row is None:
            return False
        still = Q() if version is None else Q(credential_version=version)
        changed = (
            PoolAccount.objects.filter(still, pk=account_id)
            .exclude(status__in=(PoolAccount.Status.NEEDS_SIGN_IN, PoolAccount.Status.WITHDRAWN))
            .update(
                status=PoolAccount.Status.NEEDS_SIGN_IN,
                status_reason=reason[:200],
                # A lead's pause outlasts the sign-in that brings it back.
                was_paused=ExpressionWrapper(Q(status=PoolAccount.Status.PAUSED), output_field=BooleanField()),
                refresh_claim=None,
                refresh_claimed_until=None,
            )
        )
        if not changed:
            return False
        audit.record(
            row.pool.organization,
            actor=None,
            action="account.needs_sign_in",
            object_type="pool_account",
            object_id=str(row.uuid),
            data={"label": row.label, "reason": reason[:200]},
            actor_label="system",
        )
        pools.changed(row.pool.organization_id)
    logger.warning("account needs sign-in", extra={"account": str(row.uuid), "reason": reason[:200]})
    return True


def reset_cooldowns(organization: Organization) -> tuple[int, int]:
    """Makes every account of the organization selectable again. Returns (accounts, how many had been held back).

    Raises RedisUnavailable.
    """
    total = cleared = 0
    rows = PoolAccount.objects.for_organization(organization).values_list("pool_id", "pk")
    by_pool: dict[int, list[int]] = {}
    for pool_id, account_id in rows:
        by_pool.setdefault(pool_id, []).append(account_id)
        total += 1
    for pool_id, account_ids in by_pool.items():
        cleared += live.forget_troubles(pool_id, organization.pk, account_ids)
    return total, cleared


def checked_label(label: str) -> str:
    """The label without blanks around it. Raises AccountError."""
    label = label.strip()
    if not 1 <= len(label) <= 80:
        raise AccountError(_("A label has 1 to 80 characters."))
    return label


def checked_key(api_key: str, *, kind: str = PoolAccount.Kind.OPENAI) -> str:
    """The key without blanks around it; a compatible endpoint may take any. Raises ApiKeyInvalid."""
    api_key = api_key.strip()
    least = 1 if kind == PoolAccount.Kind.COMPATIBLE else 8
    if not least <= len(api_key) <= 1000 or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ApiKeyInvalid(
            _("That is not an API key: one line of %(least)s to 1,000 printable characters is expected.") % {"least": least}
        )
    return api_key


def checked_address(kind: str, base_url: str | None) -> str:
    """The account's own address, "" for the install's. Raises AddressRefused, AccountError."""
    if not base_url and kind == PoolAccount.Kind.COMPATIBLE:
        raise AccountError(_("A compatible endpoint needs its base URL."))
    return addresses.check(base_url) if base_url else ""


def checked_models(models: Sequence[str]) -> list[str]:
    """Names of models, each once, sorted. Raises AccountError."""
    served = sorted({model.strip() for model in models})
    if not served or any(not 1 <= len(model) <= 120 or not model.isprintable() for model in served):
        raise AccountError(
            _("Models are named by 1 to 120 printable characters each, and an account serves at least one."), field="models"
        )
    return served


def _bring_back(account: PoolAccount) -> None:
    """It serves again; one that was paused, before or while it was out, stays so."""
    is_paused = account.status == PoolAccount.Status.PAUSED or account.was_paused
    account.status = PoolAccount.Status.PAUSED if is_paused else PoolAccount.Status.ACTIVE
    account.was_paused = False
    account.status_reason = ""


def _joined(account: PoolAccount, organization: Organization, *, by: User | None, is_new: bool) -> None:
    owner = account.pool.organization_id
    audit.record(
        organization if owner is not None else None,
        actor=by,
        action="account.added" if is_new else "account.renewed",
        object_type="pool_account",
        object_id=str(account.uuid),
        data={"label": account.label, "kind": account.kind, "identity": account.identity, "plan": account.plan_type},
    )
    pools.changed(owner)
    transaction.on_commit(partial(versions.publish, account.pool_id, owner, account.pk, account.credential_version), robust=True)
    if account.kind == PoolAccount.Kind.CHATGPT:
        transaction.on_commit(partial(due.soon, account.pk), robust=True)
    if not is_new:
        # What the old credential was refused for says nothing about the new one.
        transaction.on_commit(partial(live.forget_troubles, account.pool_id, owner, [account.pk], kinds="c"), robust=True)
