"""Accounts of the pool: how each stands, and what a lead changes of it. How one joins is in `api.joining`."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import path

from accounts import api_tokens, tenancy
from accounts.permissions import Action
from api import pool
from api.base import Call, Resource, operation
from api.fields import Choice, Flag, ListOf, Moment, Query, Shape, Text, Told, Uuid, Whole, iso
from billing import credits
from routing import capacity, carried, polls, pools, snapshots, standing, upkeep
from routing.models import Pool, PoolAccount
from routing.standing import Gauge, Standing

TAG = "Accounts"
JOINING = "Joining"
PLANS = tuple(capacity.DATED[-1].by_plan)
BROWSER, DEVICE = "browser", "device"
KEYS = [(value, label) for value, label in PoolAccount.Kind.choices if value != PoolAccount.Kind.CHATGPT]
WITHDRAWN = "withdrawn"
OUTCOMES = (polls.OK, polls.RECENT, polls.WINDOWLESS, polls.BUSY, polls.OUT, "unanswered")


# -------------------------------------------------------------------------------------------------------------- shapes


class WindowShape(Shape):
    """A window of the account's upstream, as it was last told of, with what was metered since."""

    minutes = Whole()
    left_percent = Whole(help_text="Rounded down: never flattering.")
    resets_at = Moment(allow_null=True)
    observed_at = Moment()
    is_over = Flag(help_text="It was reset, and has not been told of since.")


class AccountShape(Shape):
    """An account of the pool. Nothing secret is among it."""

    id = Uuid()
    pool_id = Uuid()
    kind = Choice(choices=PoolAccount.Kind.choices)
    label = Told()  # type: ignore[assignment]
    email = Told(allow_null=True, help_text="Of the person whose sign-in it is.")
    plan = Told(allow_null=True)
    base_url = Told(allow_null=True, help_text="Its own address; null: the install's.")
    state = Choice(choices=[*pool.STATES.values(), WITHDRAWN])
    state_until = Moment(allow_null=True, help_text="When a state that passes is over.")
    why = Told(help_text="Why it is in this state; empty where that needs no reason.")
    is_live = Flag(help_text="False: the live state does not answer, and `state` is the stored one.")
    short_window = WindowShape(allow_null=True)
    week_window = WindowShape(allow_null=True)
    week_left = Told(allow_null=True, help_text="Credits left of the week, assumed by its weight; null: not known.")
    week_size = Told(allow_null=True)
    running = Whole(help_text="Requests that run on it.")
    held = Told(help_text="Credits that they hold.")
    carried_month = Told(help_text="Credits that it carried in this calendar month.")
    weight_thousandths = Whole(help_text="What it carries, in thousandths of a Plus.")
    has_own_weight = Flag(help_text="False: its weight follows its plan.")
    floor_percent = Whole(help_text="What its person keeps of each window.")
    concurrency_cap = Whole(allow_null=True)
    priority = Whole(min_value=-upkeep.HIGHEST_TIER, help_text="Its tier; the lowest is used first.")
    models = ListOf(child=Told(), allow_null=True, help_text="Which it serves; null: every one.")
    efforts = ListOf(child=Told(), allow_null=True, help_text="Reasoning efforts that it serves; null: every one.")
    tiers = ListOf(child=Told(), allow_null=True, help_text="Service tiers besides the ordinary ones; null: every one.")
    accepted_at = Moment(allow_null=True, help_text="When it was put into the pool for its person.")
    accepted_by = Told(allow_null=True)
    polled_at = Moment(allow_null=True)
    created_at = Moment()


class AccountsQuery(Query):
    pool_id = Uuid(required=False)
    status = Choice(choices=PoolAccount.Status.choices, required=False)


class PlaceBody(Shape):
    """Where a new account begins."""

    floor_percent = Whole(max_value=100, required=False, help_text="What its person keeps of each window.")
    priority = Whole(
        min_value=-upkeep.HIGHEST_TIER,
        max_value=upkeep.HIGHEST_TIER,
        required=False,
        help_text="Its tier; the lowest is used first. Sign-ins begin in 0, keys in 10.",
    )


class AccountChange(PlaceBody):
    """What is given is changed, from the next request on. null lifts a cap, an own weight, a list."""

    label = Text(max_length=80, required=False)  # type: ignore[assignment]
    concurrency_cap = Whole(min_value=1, max_value=upkeep.MOST_AT_ONCE, required=False, allow_null=True)
    weight_thousandths = Whole(min_value=1, max_value=upkeep.MOST_WEIGHT, required=False, allow_null=True)
    models = ListOf(child=Text(max_length=120), min_length=1, required=False, allow_null=True)
    efforts = ListOf(child=Text(max_length=upkeep.LONGEST_WORD), min_length=1, required=False, allow_null=True)
    tiers = ListOf(child=Text(max_length=upkeep.LONGEST_WORD), min_length=1, required=False, allow_null=True)


STORED_AS = {"models": "models_served", "efforts": "efforts_served", "tiers": "tiers_served"}


class MoveBody(Shape):
    pool_id = Uuid(help_text="Another pool of the organization.")


class AskedShape(Shape):
    outcome = Choice(choices=OUTCOMES)
    account = AccountShape()


class LinkShape(Shape):
    """A link by which the account's person takes it out. Told this one time, and mailed to them; the one before has ended."""

    link = Told()


# ------------------------------------------------------------------------------------------------------------ accounts


class Accounts(Resource):
    @operation(
        "listAccounts",
        tag=TAG,
        summary="List the pool's accounts",
        description="Of all the organization's pools, in the order they joined; those that were taken out, too.",
        scope=api_tokens.POOL_READ,
        action=Action.SEE_POOL,
        query=AccountsQuery,
        answers=AccountShape,
        is_list=True,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        rows = rows_of(call)
        if "pool_id" in call.query:
            rows = rows.filter(pool=call.owned(Pool.objects.all(), call.query["pool_id"]))
        if "status" in call.query:
            rows = rows.filter(status=call.query["status"])
        found = call.page(rows, lambda row: row)
        found["results"] = told(call, found["results"])
        return found


class OneAccount(Resource):
    @operation(
        "getAccount",
        tag=TAG,
        summary="Look at an account",
        scope=api_tokens.POOL_READ,
        action=Action.SEE_POOL,
        answers=AccountShape,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return shown(call, find(call, uuid))

    @operation(
        "changeAccount",
        tag=TAG,
        summary="Change an account",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=AccountChange,
        answers=AccountShape,
        examples={"Keep a fifth for its person": {"floor_percent": 20, "concurrency_cap": 4}},
    )
    def patch(self, call: Call, uuid: UUID) -> Any:
        account = find(call, uuid)
        fields = {STORED_AS.get(name, name): value for name, value in call.body.items()}
        if fields:
            upkeep.change(account, fields, by=call.by)
        return shown(call, find(call, uuid))

    @operation(
        "removeAccount",
        tag=TAG,
        summary="Take an account out of the pool",
        description="For good: its secrets are erased. What it carried stays in the log. The same credential brings it back.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        status=204,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        upkeep.remove(find(call, uuid), by=call.by)


class PausedAccount(Resource):
    @operation(
        "pauseAccount",
        tag=TAG,
        summary="Pause an account",
        description="It takes no request from the next one on; what runs on it ends there.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        answers=AccountShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        upkeep.pause(find(call, uuid), by=call.by)
        return shown(call, find(call, uuid))


class ResumedAccount(Resource):
    @operation(
        "resumeAccount",
        tag=TAG,
        summary="Let a paused account serve again",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        answers=AccountShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        upkeep.resume(find(call, uuid), by=call.by)
        return shown(call, find(call, uuid))


class PolledAccount(Resource):
    @operation(
        "pollAccount",
        tag=TAG,
        summary="Ask an account's upstream for its windows, now",
        description="One that was asked a moment ago is not asked again (`recent`); an API key has none (`windowless`).",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        answers=AskedShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = polls.ask(find(call, uuid), now=call.now)
        outcome = found.outcome if found.outcome in OUTCOMES else OUTCOMES[-1]
        return {"outcome": outcome, "account": shown(call, find(call, uuid))}


class MovedAccount(Resource):
    @operation(
        "moveAccount",
        tag=TAG,
        summary="Put an account into another pool",
        description="What is known of its windows comes with the next poll.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        body=MoveBody,
        answers=AccountShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        account = find(call, uuid)
        pools.move_account(account, call.owned(Pool.objects.all(), call.body["pool_id"]), by=call.by)
        return shown(call, find(call, uuid))


class WithdrawalLink(Resource):
    @operation(
        "makeWithdrawalLink",
        tag=TAG,
        summary="Make another withdrawal link",
        description="For the person whose sign-in it is, who is told by e-mail too. The link before ends.",
        scope=api_tokens.POOL_WRITE,
        action=Action.MANAGE_POOL,
        answers=LinkShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        return {"link": upkeep.new_withdrawal_link(find(call, uuid), by=call.by)}


# ------------------------------------------------------------------------------------------------------------- reading


def rows_of(call: Call) -> QuerySet[PoolAccount]:
    rows = PoolAccount.objects.without_secrets().select_related("pool", "accepted_by")
    return rows.filter(pool__organization=call.member.organization)


def find(call: Call, uuid: UUID) -> PoolAccount:
    """404 for another organization's, and for the operator's shared ones."""
    return tenancy.owned(rows_of(call), call.member.organization, uuid, field="pool__organization")


# ------------------------------------------------------------------------------------------------------------- telling


def shown(call: Call, row: PoolAccount) -> dict[str, Any]:
    """`AccountShape` of a row with its pool and who accepted it."""
    [found] = told(call, [row])
    return found


def told(call: Call, rows: Sequence[PoolAccount]) -> list[dict[str, Any]]:
    """A fixed number of queries, and one round trip to the live state for each pool that the rows are of."""
    if not rows:
        return []
    stand: dict[int, Standing] = {}
    for known in snapshots.load(call.member.organization_id).pools:
        of_pool = {row.pk: row for row in rows if row.pool_id == known.pool_id}
        if of_pool:
            stand |= {one.row.pk: one for one in standing.of_pool(known, of_pool, pool.read(known))}
    month = carried.read(call.member.organization, call.now).month
    return [_told(row, stand.get(row.pk), month.get(row.pk, 0), call) for row in rows]


def _told(row: PoolAccount, one: Standing | None, month: int, call: Call) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "pool_id": str(row.pool.uuid),
        "kind": row.kind,
        "label": row.label,
        "email": row.email or None,
        "plan": row.plan_type or None,
        "base_url": row.base_url or None,
        **_state(one),
        "carried_month": credits.text(month),
        "weight_thousandths": row.weight_on(call.now.date()),
        "has_own_weight": row.weight_thousandths is not None,
        "floor_percent": row.floor_percent,
        "concurrency_cap": row.concurrency_cap,
        "priority": row.priority,
        "models": row.models_served,
        "efforts": row.efforts_served,
        "tiers": row.tiers_served,
        "accepted_at": iso(row.accepted_at),
        "accepted_by": row.accepted_by.email if row.accepted_by is not None else None,
        "polled_at": iso(row.polled_at),
        "created_at": iso(row.created_at),
    }


def _state(one: Standing | None) -> dict[str, Any]:
    """None: it was taken out."""
    if one is None:
        nothing = dict.fromkeys(("state_until", "short_window", "week_window", "week_left", "week_size"))
        return {"state": WITHDRAWN, "why": "", "is_live": False, "running": 0, "held": "0", **nothing}
    has_week = one.week_size > 0
    return {
        "state": pool.STATES[one.state],
        "state_until": iso(one.until),
        "why": one.why,
        "is_live": one.is_live,
        "short_window": _window(one.short),
        "week_window": _window(one.week),
        "week_left": pool.amount(one.week_left) if has_week else None,
        "week_size": pool.amount(one.week_size) if has_week else None,
        "running": one.running,
        "held": pool.amount(one.held),
    }


def _window(gauge: Gauge | None) -> dict[str, Any] | None:
    if gauge is None:
        return None
    return {
        "minutes": gauge.minutes,
        "left_percent": gauge.percent,
        "resets_at": iso(gauge.resets_at),
        "observed_at": iso(gauge.observed_at),
        "is_over": gauge.is_over,
    }


urls = [
    path("accounts", Accounts.as_view(), name="api_accounts"),
    path("accounts/<uuid:uuid>", OneAccount.as_view(), name="api_account"),
    path("accounts/<uuid:uuid>/pause", PausedAccount.as_view(), name="api_account_pause"),
    path("accounts/<uuid:uuid>/resume", ResumedAccount.as_view(), name="api_account_resume"),
    path("accounts/<uuid:uuid>/poll", PolledAccount.as_view(), name="api_account_poll"),
    path("accounts/<uuid:uuid>/move", MovedAccount.as_view(), name="api_account_move"),
    path("accounts/<uuid:uuid>/withdrawal-link", WithdrawalLink.as_view(), name="api_account_link"),
]
