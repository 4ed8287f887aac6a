"""What a lead changes of an account that is here: its name, what it keeps and carries, whether it serves, that it goes."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.utils.translation import gettext as _

from accounts import audit, display
from accounts.models import User
from routing import accounts, pools, withdrawal
from routing.errors import AccountError
from routing.models import PoolAccount

SERVED = ("models_served", "efforts_served", "tiers_served")
FIELDS = ("label", "floor_percent", "concurrency_cap", "priority", "weight_thousandths", *SERVED)
MOST_AT_ONCE, HIGHEST_TIER, MOST_WEIGHT = 10_000, 100, 1_000_000
LONGEST_WORD = 20


def change(account: PoolAccount, fields: Mapping[str, Any], *, by: User | None) -> PoolAccount:
    """Gives the account these FIELDS; what is not named stays. Holds on the next request. Raises AccountError.

    None: no cap; the plan's own weight; every model, reasoning effort and service tier. Ordinary tiers need not be named.
    """
    wanted = _checked(fields)
    with transaction.atomic():
        account = _locked(account)
        before = {name: getattr(account, name) for name in wanted if getattr(account, name) != wanted[name]}
        if not before:
            return account
        for name in before:
            setattr(account, name, wanted[name])
        account.save(update_fields=list(before))
        after = {name: wanted[name] for name in before}
        _record(account, by, "account.changed", {"before": before, "after": after})
        pools.changed(account.pool.organization_id)
    return account


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(fields) - set(FIELDS))
    if unknown:
        raise AccountError(_("An account has no %(unknown)s to set.") % {"unknown": ", ".join(unknown)})
    wanted = dict(fields)
    if "label" in wanted:
        wanted["label"] = accounts.checked_label(wanted["label"])
    for name in SERVED:
        if wanted.get(name) is not None:
            wanted[name] = _served(name, wanted[name])
    if not 0 <= wanted.get("floor_percent", 0) <= 100:
        raise AccountError(_("What its person keeps is 0 to 100 percent of each window."), field="floor_percent")
    cap, weight = wanted.get("concurrency_cap"), wanted.get("weight_thousandths")
    if cap is not None and not 1 <= cap <= MOST_AT_ONCE:
        raise AccountError(
            _("It carries 1 to %(most_at_once)s requests at once; to stop it, pause it.")
            % {"most_at_once": display.count(MOST_AT_ONCE)},
            field="concurrency_cap",
        )
    if not -HIGHEST_TIER <= wanted.get("priority", 0) <= HIGHEST_TIER:
        raise AccountError(
            _("Tiers are %(value)s to %(highest_tier)s; the lowest is used first.")
            % {"value": -HIGHEST_TIER, "highest_tier": HIGHEST_TIER},
            field="priority",
        )
    if weight is not None and not 1 <= weight <= MOST_WEIGHT:
        raise AccountError(_("Its weight is 0.001 to 1,000 times a Plus."), field="weight_thousandths")
    return wanted


def _served(name: str, names: Sequence[str]) -> list[str]:
    """Models, reasoning efforts or service tiers as requests name them, each once, sorted."""
    if name == "models_served":
        return accounts.checked_models(names)
    served = sorted({name.strip() for name in names})
    if not served or any(not 1 <= len(name) <= LONGEST_WORD or not name.isprintable() for name in served):
        raise AccountError(
            _("Reasoning efforts and service tiers are words of 1 to %(longest)s characters, at least one.")
            % {"longest": LONGEST_WORD},
            field=name.removesuffix("_served"),
        )
    return served


def pause(account: PoolAccount, *, by: User | None) -> PoolAccount:
    """It takes no request from the next one on; what runs on it ends there. Raises AccountError for one that does not serve."""
    return _turned(account, PoolAccount.Status.ACTIVE, PoolAccount.Status.PAUSED, "account.paused", by)


def resume(account: PoolAccount, *, by: User | None) -> PoolAccount:
    """It serves again. Raises AccountError for one that is not paused."""
    return _turned(account, PoolAccount.Status.PAUSED, PoolAccount.Status.ACTIVE, "account.resumed", by)


def _turned(account: PoolAccount, of: str, to: str, action: str, by: User | None) -> PoolAccount:
    with transaction.atomic():
        account = _locked(account)
        if account.status == to:
            return account
        if account.status != of:
            raise AccountError(
                _("%(label)s is neither serving nor paused: %(get_status_display)s.")
                % {"label": account.label, "get_status_display": account.get_status_display().lower()}
            )
        account.status = to
        account.save(update_fields=["status"])
        _record(account, by, action, {})
        pools.changed(account.pool.organization_id)
    return account


def remove(account: PoolAccount, *, by: User | None) -> PoolAccount:
    """Takes it out for good and erases its secrets. Its row stays: reports name it, and a sign-in that its person withdrew must not
    come back by a file. The same key, or the person's own sign-in, brings it back."""
    with transaction.atomic():
        account = _locked(account)
        if account.status != PoolAccount.Status.WITHDRAWN:
            withdrawal.take_out(account, by=by)
    return account


def new_withdrawal_link(account: PoolAccount, *, by: User | None) -> str:
    """Another link for its person, who is told by e-mail; the one before ends. To be shown once. Raises AccountError."""
    with transaction.atomic():
        account = _locked(account)
        if account.kind != PoolAccount.Kind.CHATGPT:
            raise AccountError(_("An API key is no person's: take it out instead."))
        if account.status == PoolAccount.Status.WITHDRAWN:
            raise AccountError(_("It has been taken out already."))
        organization = account.pool.organization
        assert organization is not None, "shared accounts are an operator's"
        link = withdrawal.new_link(account)
        account.save(update_fields=["withdrawal_digest"])
        _record(account, by, "account.withdrawal_link_made", {})
        transaction.on_commit(lambda: withdrawal.tell(account, organization, link, by=by), robust=True)
    return link


def _locked(account: PoolAccount) -> PoolAccount:
    rows = PoolAccount.objects.without_secrets().select_related("pool__organization")
    return rows.select_for_update(of=("self",), no_key=True).get(pk=account.pk)


def _record(account: PoolAccount, by: User | None, action: str, data: Mapping[str, Any]) -> None:
    audit.record(
        account.pool.organization,
        actor=by,
        action=action,
        object_type="pool_account",
        object_id=str(account.uuid),
        data={"label": account.label, **data},
    )
