"""What an account shows to its upstream: read once, kept in memory, renewed by one process at a time.

A refresh token works once. Who may spend it is decided by a claim in the account's row, taken by compare-and-set and ended by
time; the network is asked outside of any transaction, and what comes back is stored only over the version that was spent.
Whoever finds a newer version uses that instead (K1, N40). The tokens themselves never go to Redis: the live state carries
the version's number, and a process that holds an older one reads the row again.
"""

import asyncio
import logging
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from config import scope, snapshot
from config.clock import utc_now
from routing import accounts, issuer, sealing, tokens, versions
from routing.errors import RefreshDeferred, SignInNeeded
from routing.models import PoolAccount
from routing.snapshots import CHATGPT, AccountSnapshot

logger = logging.getLogger(__name__)

Reason = Literal["unauthorized_recovery", "proactive_expiry"]

CLAIM = timedelta(seconds=60)
"""Longer than the issuer's timeouts together, so that a claim ends by time only if its process died."""

BACK_OFF = timedelta(seconds=5)
"""After a refresh that came to nothing, nobody tries again for this long."""

WAIT_SECONDS = 65.0
OUT = (PoolAccount.Status.NEEDS_SIGN_IN, PoolAccount.Status.WITHDRAWN)
EXPIRY_MARGIN = timedelta(seconds=30)

# Not the snapshots' threads: these wait for the network.
_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="refresh")


@dataclass(frozen=True, slots=True)
class Credential:
    """A bearer token, and the version of it; `expires_at` None when it does not say."""

    account_id: int
    token: str = field(repr=False)
    chatgpt_account_id: str | None
    version: int
    expires_at: datetime | None

    def is_expiring(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at - now <= EXPIRY_MARGIN


_held: dict[int, Credential] = {}
_deferred: dict[int, float] = {}
"""By account: until when (on the monotonic clock) a token that still works is used without trying to renew it."""

_flights: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, int], asyncio.Task[Credential]]]"
_flights = weakref.WeakKeyDictionary()


def forget() -> None:
    """Drops what this process holds in memory."""
    _held.clear()
    _deferred.clear()


# ------------------------------------------------------------------------------------------------------- on the path


async def bearer(account: AccountSnapshot, *, version: int = 0) -> Credential:
    """The account's credential, at least `version` (a Lease's `credential_version`). SQL in a thread only when that moved.

    A token that is about to expire is renewed first. Raises SignInNeeded, RefreshDeferred, SealBroken.
    """
    now = utc_now()
    held = _held.get(account.account_id)
    is_stale = held is None or held.version < version
    if not is_stale and held is not None and (not held.is_expiring(now) or _is_put_off(held, now)):
        return held
    held = _keep(await snapshot.in_thread(load, account.account_id))
    if account.kind == CHATGPT and held.is_expiring(now):
        try:
            held = await refresh_async(account, used=held, reason="proactive_expiry")
        except RefreshDeferred:
            if held.expires_at is None or held.expires_at <= utc_now():
                raise
            _deferred[account.account_id] = time.monotonic() + BACK_OFF.total_seconds()
    return held


def _is_put_off(held: Credential, now: datetime) -> bool:
    """Whether a token that expires soon serves as it is, because its renewal has just come to nothing."""
    is_good = held.expires_at is not None and held.expires_at > now
    return is_good and _deferred.get(held.account_id, 0.0) > time.monotonic()


async def refresh_async(
    account: AccountSnapshot, used: Credential | None = None, *, reason: Reason = "unauthorized_recovery"
) -> Credential:
    """A credential newer than `used`, the one that the upstream refused (by default the one held). One call per process.

    Raises SignInNeeded, RefreshDeferred, SealBroken.
    """
    used = used or _held.get(account.account_id)
    version = used.version if used is not None else 0
    held = _held.get(account.account_id)
    if held is not None and held.version > version:
        return held
    loop = asyncio.get_running_loop()
    flights = _flights.setdefault(loop, {})
    key = (account.account_id, version)
    flight = flights.get(key)
    if flight is None:
        flight = flights[key] = loop.create_task(_fly(account.account_id, reason, version or None))
        flight.add_done_callback(lambda _done: flights.pop(key, None))
    # A client that leaves must not end the refresh that others wait for.
    return _keep(await asyncio.shield(flight))


async def _fly(account_id: int, reason: Reason, version: int | None) -> Credential:
    def run() -> Credential:
        try:
            return refresh(account_id, reason, used_version=version)
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(_threads, run)


def _keep(credential: Credential) -> Credential:
    held = _held.get(credential.account_id)
    if held is not None and held.version > credential.version:
        return held
    _held[credential.account_id] = credential
    return credential


# -------------------------------------------------------------------------------------------------------------- sync


def load(account_id: int) -> Credential:
    """The credential in the row; one query. Raises SignInNeeded if there is none, SealBroken.

    An account may belong to a pool that organizations share; the snapshot or the sweep that named it has decided who may use it.
    """
    with scope.everything():
        return _read(_row(account_id))


def _row(account_id: int) -> PoolAccount:
    row = PoolAccount.objects.select_related("pool").filter(pk=account_id).first()
    if row is None:
        raise SignInNeeded("The account does not exist any more.")
    return row


def _read(row: PoolAccount) -> Credential:
    token = sealing.unseal(row.access_token, account=row.uuid, field="access_token")
    if not token:
        raise SignInNeeded("The account holds no token.", account=str(row.uuid))
    return Credential(
        account_id=row.pk,
        token=token,
        chatgpt_account_id=row.chatgpt_account_id or None,
        version=row.credential_version,
        expires_at=row.access_expires_at,
    )


def refresh(account_id: int, reason: Reason, *, used_version: int | None = None, patience: float = WAIT_SECONDS) -> Credential:
    """Renews the account's tokens once, however many processes ask: the others wait for the one that does, and use its.

    `used_version` is the version that was found wanting; the row's own by default. `patience`: seconds to wait for another process.
    Not in a transaction. Raises SignInNeeded
    (a permanent refusal also takes the account out), RefreshDeferred, SealBroken.
    """
    with scope.everything():
        return _refresh(account_id, reason, used_version, patience)


def _refresh(account_id: int, reason: Reason, used_version: int | None, patience: float) -> Credential:
    give_up_at = time.monotonic() + patience
    pause = 0.02
    while True:
        row = _row(account_id)
        if used_version is None:
            used_version = row.credential_version
        if row.credential_version > used_version:
            return _read(row)
        if row.status in OUT or not row.refresh_token:
            raise SignInNeeded("The account must be signed in again.", account=str(row.uuid))
        claim = uuid.uuid4()
        if _claim(account_id, used_version, claim):
            return _spend(row, reason, claim)
        if row.refresh_claim is None and row.refresh_claimed_until is not None and row.refresh_claimed_until > utc_now():
            raise RefreshDeferred("The last refresh came to nothing; it is tried again shortly.", account=str(row.uuid))
        if time.monotonic() >= give_up_at:
            raise RefreshDeferred("Another process has been renewing the sign-in for too long.", account=str(row.uuid))
        time.sleep(pause)
        pause = min(0.25, pause * 1.5)


def _claim(account_id: int, version: int, claim: uuid.UUID) -> bool:
    """Takes the right to spend the refresh token of this version, on the database's clock."""
    free = Q(refresh_claimed_until__isnull=True) | Q(refresh_claimed_until__lte=Now())
    taken = (
        PoolAccount.objects.filter(free, pk=account_id, credential_version=version)
        .exclude(status__in=OUT)
        .update(refresh_claim=claim, refresh_claimed_until=Now() + CLAIM)
    )
    return taken == 1


def _spend(row: PoolAccount, reason: Reason, claim: uuid.UUID) -> Credential:
    """Asks the issuer and stores the answer over the version that was spent."""
    try:
        refresh_token = sealing.unseal(row.refresh_token, account=row.uuid, field="refresh_token")
        renewed = issuer.renew(refresh_token, reason=reason)
    except issuer.IssuerRefused as refused:
        if accounts.need_sign_in(row.pk, refused.reason, version=row.credential_version):
            raise SignInNeeded("The account must be signed in again.", account=str(row.uuid)) from None
        return _newer(row)
    except BaseException as error:
        PoolAccount.objects.filter(pk=row.pk, refresh_claim=claim).update(
            refresh_claim=None, refresh_claimed_until=Now() + BACK_OFF
        )
        if isinstance(error, issuer.IssuerUnavailable):
            # A lost answer may have spent the token. Only the issuer knows, so after the back-off the row is read again and, if
            # nobody renewed it meanwhile, the token is shown once more: it works, or the account needs its person (N45).
            is_lost = isinstance(error, issuer.AnswerLost)
            extra = {"account": str(row.uuid), "reason": error.facts.get("reason")}
            logger.warning("refresh answer lost" if is_lost else "refresh deferred", extra=extra)
            raise RefreshDeferred(error.message, account=str(row.uuid)) from None
        raise
    changes: dict[str, object] = {}
    if renewed.access_token:
        changes["access_token"] = sealing.seal(renewed.access_token, account=row.uuid, field="access_token")
        changes["access_expires_at"] = tokens.expires_at(renewed.access_token)
    if renewed.refresh_token:
        changes["refresh_token"] = sealing.seal(renewed.refresh_token, account=row.uuid, field="refresh_token")
    version = row.credential_version + 1
    stored = PoolAccount.objects.filter(pk=row.pk, credential_version=row.credential_version).update(
        credential_version=version, refreshed_at=Now(), refresh_claim=None, refresh_claimed_until=None, **changes
    )
    if not stored:
        # Somebody signed the account in again meanwhile; theirs is a newer chain of tokens.
        return _newer(row)
    versions.publish(row.pool_id, row.pool.organization_id, row.pk, version)
    logger.info("account refreshed", extra={"account": str(row.uuid), "reason": reason, "version": version})
    return load(row.pk)


def _newer(row: PoolAccount) -> Credential:
    """What took the place of the version that we spent."""
    found = _row(row.pk)
    if found.credential_version > row.credential_version:
        return _read(found)
    raise SignInNeeded("The account must be signed in again.", account=str(row.uuid))


def due(now: datetime) -> list[int]:
    """Sign-in accounts to renew now: expiring within 10 minutes, or untouched for 8 days; idle and paused ones too."""
    is_due = Q(access_expires_at__lte=now + timedelta(minutes=10)) | Q(refreshed_at__lte=now - timedelta(days=8))
    never = Q(refreshed_at__isnull=True)
    return list(
        PoolAccount.objects.filter(is_due | never, kind=PoolAccount.Kind.CHATGPT)
        .exclude(status__in=OUT)
        .exclude(refresh_token="")
        .order_by("access_expires_at", "pk")
        .values_list("pk", flat=True)
    )
