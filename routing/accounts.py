"""Accounts join a pool, are renewed, and are taken out when they need a person."""

import hashlib
import logging
from datetime import datetime
from functools import partial

from django.db import transaction
from django.db.models import Q

from accounts import audit
from accounts.models import Organization, User
from config import scope
from config.redis import RedisUnavailable
from routing import addresses, capacity, live, pools, sealing, terms, tokens
from routing.errors import AccountError, ApiKeyInvalid, TermsNotAccepted
from routing.models import PoolAccount

logger = logging.getLogger(__name__)


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
    """Puts a sign-in account into the organization's pool; the same identity again renews its tokens.

    `plan` names the size when the sign-in does not (`pro_200`). Raises TermsNotAccepted, with the text, as long as nobody
    has accepted it for the organization; AuthFileInvalid; AccountError.
    """
    label = _checked_label(label)
    sign_in = tokens.read_auth_json(auth_json)
    plan_type = (plan or sign_in.plan_type or "").strip().lower()
    if plan is not None and not capacity.is_known(plan):
        raise AccountError(f"The plan {plan!r} is not known.", plan=plan)
    with transaction.atomic():
        organization = Organization.objects.select_for_update().get(pk=organization.pk)
        _accept_terms(organization, accepted=accept_terms, by=by, now=now)
        account = PoolAccount.objects.for_organization(organization).filter(
            kind=PoolAccount.Kind.CHATGPT, identity=sign_in.identity
        ).select_for_update(of=("self",)).first()  # fmt: skip
        is_new = account is None
        if account is None:
            account = PoolAccount(
                pool=pools.default(organization),
                kind=PoolAccount.Kind.CHATGPT,
                identity=sign_in.identity,
                chatgpt_account_id=sign_in.chatgpt_account_id,
                accepted_by=by,
                accepted_at=now,
            )
        else:
            account.credential_version += 1
        account.label = label
        account.email = sign_in.email[:254]
        if is_new or plan is not None or plan_type != account.plan_type:
            account.plan_type = plan_type[:40]
            # Its plan's, as dated, until a lead gives it another.
            account.weight_thousandths = None
        account.access_token = sealing.seal(sign_in.access_token, account=account.uuid, field="access_token")
        account.refresh_token = sealing.seal(sign_in.refresh_token, account=account.uuid, field="refresh_token")
        account.access_expires_at = sign_in.access_expires_at
        account.refreshed_at = now
        account.refresh_claim = account.refresh_claimed_until = None
        if account.status != PoolAccount.Status.PAUSED:
            account.status = PoolAccount.Status.ACTIVE
        account.status_reason = ""
        account.save()
        _joined(account, organization, by=by, is_new=is_new)
    return account


def add_openai(
    organization: Organization,
    api_key: str,
    *,
    label: str,
    base_url: str | None = None,
    by: User | None,
    now: datetime,
) -> PoolAccount:
    """Puts an API key into the organization's pool; the same key again changes its label and address.

    Raises ApiKeyInvalid, AddressRefused, AccountError.
    """
    label = _checked_label(label)
    api_key = api_key.strip()
    if not 8 <= len(api_key) <= 1000 or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        raise ApiKeyInvalid("That is not an API key: one line of 8 to 1,000 printable characters is expected.")
    address = addresses.check(base_url) if base_url else ""
    # Keys are random: a digest tells two apart and gives nothing away.
    identity = "key:" + hashlib.sha256(api_key.encode()).hexdigest()[:32]
    with transaction.atomic():
        organization = Organization.objects.select_for_update().get(pk=organization.pk)
        account = PoolAccount.objects.for_organization(organization).filter(
            kind=PoolAccount.Kind.OPENAI, identity=identity
        ).select_for_update(of=("self",)).first()  # fmt: skip
        is_new = account is None
        if account is None:
            account = PoolAccount(pool=pools.default(organization), kind=PoolAccount.Kind.OPENAI, identity=identity)
        else:
            account.credential_version += 1
        account.label = label
        account.base_url = address
        account.access_token = sealing.seal(api_key, account=account.uuid, field="access_token")
        account.refreshed_at = now
        if account.status != PoolAccount.Status.PAUSED:
            account.status = PoolAccount.Status.ACTIVE
        account.status_reason = ""
        account.save()
        _joined(account, organization, by=by, is_new=is_new)
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
            .exclude(status=PoolAccount.Status.NEEDS_SIGN_IN)
            .update(
                status=PoolAccount.Status.NEEDS_SIGN_IN,
                status_reason=reason[:200],
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


def publish_version(pool_id: int, organization_id: int | None, account_id: int, version: int) -> None:
    """Tells the processes that a credential moved. A failure costs one 401 and a second look at the database, so it is logged."""
    try:
        live.publish_version(pool_id, organization_id, account_id, version)
    except RedisUnavailable:
        logger.warning("credential version not published", extra={"account_id": account_id, "version": version})


def _checked_label(label: str) -> str:
    label = label.strip()
    if not 1 <= len(label) <= 80:
        raise AccountError("A label has 1 to 80 characters.")
    return label


def _accept_terms(organization: Organization, *, accepted: bool, by: User | None, now: datetime) -> None:
    if organization.sign_in_terms_accepted_at is not None:
        return
    if not accepted:
        raise TermsNotAccepted(
            f"Sign-in accounts are off until the terms are accepted:\n\n{terms.SIGN_IN_TERMS}\n", terms=terms.SIGN_IN_TERMS
        )
    organization.sign_in_terms_accepted_at = now
    organization.sign_in_terms_accepted_by = by
    organization.save(update_fields=["sign_in_terms_accepted_at", "sign_in_terms_accepted_by"])
    audit.record(
        organization,
        actor=by,
        action="organization.sign_in_terms_accepted",
        object_type="organization",
        object_id=str(organization.uuid),
        data={"terms": terms.SIGN_IN_TERMS},
    )


def _joined(account: PoolAccount, organization: Organization, *, by: User | None, is_new: bool) -> None:
    audit.record(
        organization,
        actor=by,
        action="account.added" if is_new else "account.renewed",
        object_type="pool_account",
        object_id=str(account.uuid),
        data={"label": account.label, "kind": account.kind, "identity": account.identity, "plan": account.plan_type},
    )
    pools.changed(organization.pk)
    transaction.on_commit(
        partial(publish_version, account.pool_id, organization.pk, account.pk, account.credential_version), robust=True
    )
    if not is_new:
        # What the old credential was refused for says nothing about the new one.
        transaction.on_commit(partial(live.forget_troubles, account.pool_id, organization.pk, [account.pk], kinds="c"), robust=True)
