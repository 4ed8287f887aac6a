"""An account's plan, as its upstream names it: believed at the second poll in a row, for one may be a stale replica's (N15)."""

import logging

from django.db import transaction

from accounts import audit
from routing import capacity, pools
from routing.models import PoolAccount

logger = logging.getLogger(__name__)


def reported(account_id: int, plan: str) -> bool:
    """What a poll named. True if the account counts as that plan from now on, with its dated weight: the second in a row that does.

    A name that does not say which size it is (`pro`) agrees with every size of it; one that no list of weights knows says nothing.
    A weight that a lead gave for another plan goes with that. In a scope that sees the account.
    """
    plan = plan.strip().lower()[:40]
    row = _row(account_id)
    if row is None:
        return False
    if not capacity.is_known(plan) or capacity.is_same(row.plan_type, plan):
        _remember(row, "")
        return False
    if row.reported_plan != plan:
        _remember(row, plan)
        return False
    with transaction.atomic():
        # The organization first, as everywhere: its row lock puts changes in order.
        pools.changed(row.pool.organization_id)
        before = row.plan_type
        changed = PoolAccount.objects.filter(pk=account_id, plan_type=before, reported_plan=plan).update(
            plan_type=plan, reported_plan="", weight_thousandths=None
        )
        if not changed:
            return False
        audit.record(
            row.pool.organization,
            actor=None,
            action="account.plan_changed",
            object_type="pool_account",
            object_id=str(row.uuid),
            data={"label": row.label, "before": before, "after": plan},
            actor_label="system",
        )
    logger.warning("account has another plan", extra={"account": str(row.uuid), "before": before, "after": plan})
    return True


def _row(account_id: int) -> PoolAccount | None:
    return PoolAccount.objects.without_secrets().select_related("pool__organization").filter(pk=account_id).first()


def _remember(row: PoolAccount, plan: str) -> None:
    if row.reported_plan != plan:
        PoolAccount.objects.filter(pk=row.pk).update(reported_plan=plan)
