"""The pool's page: does it last to its next reset, which account is sick, where would a request go. A door: it reads and renders.

What is open stands in the query (`?add=`, `?open=`, `?pool=`, `?model=`), so every form works without a script too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms as django_forms
from django.db.models import Max
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts import context, locales, permissions, tenancy
from accounts.models import AuditEvent, Member
from accounts.permissions import Action
from config import snapshot
from config.clock import utc_now
from config.errors import DomainError
from config.redis import RedisUnavailable
from routing import carried, device, explanation, oauth, outlook, pool_glance, selection, snapshots, standing, terms, timeline
from routing.carried import Carried
from routing.errors import NoAccountAvailable
from routing.explanation import Explanation
from routing.joining import Outcome
from routing.models import Pool, PoolAccount
from routing.pool_forms import (
    AccountForm,
    CallbackForm,
    ExplainForm,
    FilesForm,
    KeyForm,
    PlaceForm,
    PoolForm,
    SignInForm,
    StrategyForm,
)
from routing.snapshots import PoolSnapshot
from routing.standing import Reading, Standing

BROWSER, DEVICE, FILES, KEY, ENDPOINT = "browser", "device", "files", "key", "endpoint"
WAYS = (BROWSER, DEVICE, FILES, KEY, ENDPOINT)
SIGN_INS = frozenset({BROWSER, DEVICE, FILES})

SENTENCES: Mapping[str, tuple[str, str]] = {
    Pool.Strategy.PACE: (
        gettext_noop("Pace"),
        gettext_noop(
            "Each new turn goes to the account that is furthest behind in using up its week and has its five hours freest, only "
            "where the whole turn fits; a warm conversation stays where it is."
        ),
    ),
    Pool.Strategy.CAPACITY_WEIGHTED: (
        gettext_noop("Capacity weighted"),
        gettext_noop("Drawn by lot, in proportion to what is left of each week."),
    ),
    Pool.Strategy.RELATIVE_AVAILABILITY: (
        gettext_noop("Relative availability"),
        gettext_noop("Drawn by lot among the five with the most left for the time to their reset."),
    ),
    Pool.Strategy.RESET_DRAIN: (
        gettext_noop("Soonest reset first"),
        gettext_noop("Empties the account that resets next, by the day."),
    ),
    Pool.Strategy.USAGE_WEIGHTED: (
        gettext_noop("Least used first"),
        gettext_noop("Takes the account whose week is used the least."),
    ),
    Pool.Strategy.ROUND_ROBIN: (gettext_noop("Round robin"), gettext_noop("Each in turn, whatever it has left.")),
    Pool.Strategy.FILL_FIRST: (
        gettext_noop("Fill first"),
        gettext_noop("Uses one account up before it begins the next."),
    ),
}


@dataclass(frozen=True, slots=True)
class Shown:
    """What a door wants on the page beside what the query asks for: refused forms, results, what is shown this one time."""

    way: str = ""
    flow_id: str = ""
    join_form: django_forms.Form | None = None
    outcomes: Sequence[Outcome] = ()
    account_id: str = ""
    account_form: AccountForm | None = None
    strategy_form: StrategyForm | None = None
    pool_form: PoolForm | None = None
    link: str = field(default="", repr=False)
    link_of: PoolAccount | None = None


@never_cache
@require_safe
@tenancy.page(Action.GLANCE_AT_POOL)
def pool_page(request: HttpRequest, member: Member) -> HttpResponse:
    """All of it for who sees the pool; for the others how it stands."""
    return show(request, member) if permissions.can(member, Action.SEE_POOL) else pool_glance.show(request, member)


def path(member: Member, pool: Pool | None = None) -> str:
    """The page's address; of a pool, if the organization has several."""
    address = reverse("pool", kwargs={"slug": member.organization.slug})
    return address if pool is None else f"{address}?pool={pool.uuid}"


def show(
    request: HttpRequest, member: Member, *, pool: Pool | None = None, shown: Shown | None = None, status: int = 200
) -> HttpResponse:
    """The page of one pool. `pool` None: the one that the query names, else the first that has accounts. Raises Http404."""
    now = utc_now()
    frame = context.frame(member, "pool", now)
    organization = member.organization
    of_all = snapshots.load(organization.pk).pools
    own = [one for one in of_all if one.organization_id is not None]
    chosen = _chosen(own, str(pool.uuid) if pool is not None else request.GET.get("pool", ""))
    reading, trouble = _read(chosen)
    accounts = (
        PoolAccount.objects.without_secrets()
        .select_related("accepted_by")
        .filter(pool_id=chosen.pool_id if chosen is not None else 0)
    )
    rows = {row.pk: row for row in accounts}
    found = standing.of_pool(chosen, rows, reading) if chosen is not None else []
    carries = carried.read(organization, now)
    shown = shown or _opened(request)
    may_manage = permissions.can(member, Action.MANAGE_POOL)
    page = {
        **frame,
        **_numbers(found, carries, frame["zone"], now),
        "pool": chosen,
        "pools": own if len(own) > 1 else [],
        "others": [one for one in own if chosen is not None and one.pool_id != chosen.pool_id],
        "accounts": [
            {
                "one": one,
                "carried": carries.month.get(one.row.pk, 0),
                "open": shown.account_id == str(one.row.uuid) and may_manage,
                "form": _account_form(one, shown) if shown.account_id == str(one.row.uuid) else None,
            }
            for one in found
        ],
        "gone": [row for row in rows.values() if row.status == PoolAccount.Status.WITHDRAWN],
        "sick": _sick(member, found),
        "trouble": trouble,
        "month": locales.current().months_above[now.astimezone(frame["zone"]).month - 1],
        "path": path(member),
        "query": f"?pool={chosen.uuid}&" if chosen is not None and len(own) > 1 else "?",
        "may_manage": may_manage,
        "pool_form": shown.pool_form or PoolForm(auto_id="pool-%s"),
        "link": shown.link,
        "link_of": shown.link_of,
        **_strategy(chosen, shown),
        **_explained(request, member, chosen, now),
        **_joining(request, member, shown, now),
        "stand_in": _stand_in(member, now) if not found and not own_accounts(own) else "",
    }
    return render(request, "routing/pool.html", page, status=status)


def own_accounts(pools: Sequence[PoolSnapshot]) -> bool:
    return any(account.status != PoolAccount.Status.WITHDRAWN for pool in pools for account in pool.accounts)


def _chosen(own: Sequence[PoolSnapshot], wanted: str) -> PoolSnapshot | None:
    """The pool that is asked for. Raises Http404 for one that is not the organization's, or is none at all."""
    if wanted:
        found = next((one for one in own if one.uuid == wanted), None)
        if found is None:
            raise Http404
        return found
    return next((one for one in own if one.accounts), own[0] if own else None)


def _read(pool: PoolSnapshot | None) -> tuple[Reading | None, str]:
    if pool is None:
        return None, ""
    try:
        return standing.read(pool), ""
    except RedisUnavailable:
        return None, _("The live state does not answer. What is stored is shown below; new requests are refused until it does.")


# ----------------------------------------------------------------------------------------------------------- numbers


def _numbers(found: Sequence[Standing], carries: Carried, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """What the first sentence, the foot of the table and the timeline tell."""
    weeks = standing.weeks(found)
    left, size = standing.total(found)
    rates = outlook.rates(carries, [one.row.pk for one in found if one.is_sign_in], now)
    return {
        "carry": sum(one.state in standing.CARRY for one in found),
        "running": sum(one.running for one in found),
        "has_week": size > 0,
        "left": _micro(left),
        "size": _micro(size),
        "left_percent": int(left * 100 / size + 1e-9) if size else 0,
        "rates": rates,
        "outlook": outlook.foresee(list(weeks.values()), rates, now) if weeks else None,
        "basis_days": carried.BASIS_DAYS,
        "back_day": _micro(outlook.coming_back(weeks, now, timedelta(days=1))),
        "back_week": _micro(outlook.coming_back(weeks, now, outlook.HORIZON)),
        "timeline": timeline.draw(list(weeks.values()), zone, now),
        "cooling": min((one.until for one in found if one.state == standing.COOLING and one.until is not None), default=None),
        "total_carried": sum(carries.month.get(one.row.pk, 0) for one in found),
    }


def _micro(credits: float) -> int:
    """What accounts are assumed to carry, as pages write credits."""
    return int(credits * 1_000_000)


def _sick(member: Member, found: Sequence[Standing]) -> list[dict[str, Any]]:
    """Accounts that need a person, with since when; one query, where there are any."""
    sick = [one for one in found if one.state == standing.NEEDS_SIGN_IN]
    if not sick:
        return []
    events = AuditEvent.objects.filter(organization=member.organization, action="account.needs_sign_in")
    events = events.filter(object_id__in=[str(one.row.uuid) for one in sick]).order_by()
    since = dict(events.values_list("object_id").annotate(Max("created_at")))
    return [{"one": one, "since": since.get(str(one.row.uuid))} for one in sick]


def _stand_in(member: Member, now: datetime) -> str:
    """The shared pool that carries the requests of an organization without accounts of its own; "" if there is none."""
    config = snapshot.current(member.organization_id)
    try:
        found = selection.pool_for(config, explanation.Nobody(), plan=explanation.plan_of(config, None, now))
    except NoAccountAvailable:
        return ""
    return found.name if found.organization_id is None and found.accounts else ""


# ------------------------------------------------------------------------------------------------------------- forms


def _account_form(one: Standing, shown: Shown) -> AccountForm:
    if shown.account_form is not None:
        return shown.account_form
    row = one.row
    stored = {
        "label": row.label,
        "floor_percent": row.floor_percent,
        "concurrency_cap": row.concurrency_cap,
        "priority": row.priority,
        "weight": "" if row.weight_thousandths is None else f"{row.weight_thousandths / 1000:g}",
        "models": ", ".join(row.models_served or ()),
        "efforts": ", ".join(row.efforts_served or ()),
        "tiers": ", ".join(row.tiers_served or ()),
    }
    return AccountForm(initial=stored, auto_id="account-%s")


def _strategy(pool: PoolSnapshot | None, shown: Shown) -> dict[str, Any]:
    if pool is None:
        return {"strategies": []}
    form = shown.strategy_form or StrategyForm(
        initial={
            "strategy": pool.strategy,
            "safety": f"{pool.safety:g}",
            "loyalty": f"{pool.loyalty:g}",
            "base_short": pool.base_short,
            "base_weekly": pool.base_weekly,
        },
        auto_id="strategy-%s",
    )
    chosen = form["strategy"].value()
    told = [
        {
            "value": value,
            "name": _(SENTENCES[value][0]),
            "sentence": _(SENTENCES[value][1]),
            "is_used": value == pool.strategy,
            "is_chosen": value == chosen,
        }
        for value in Pool.Strategy.values
    ]
    return {"strategies": told, "strategy_form": form}


def _explained(request: HttpRequest, member: Member, pool: PoolSnapshot | None, now: datetime) -> dict[str, Any]:
    """Where a request for `?model=` would go now, and why; takes no slot."""
    if "model" not in request.GET or pool is None:
        return {"explain_form": ExplainForm(auto_id="explain-%s"), "explained": None, "unexplained": ""}
    form = ExplainForm(request.GET, auto_id="explain-%s")
    if not form.is_valid():
        return {"explain_form": form, "explained": None, "unexplained": ""}
    wanted = form.cleaned_data
    try:
        told = explanation.ask(
            member.organization_id,
            pool,
            model=wanted["model"],
            effort=wanted["effort"] or None,
            dialect=wanted["dialect"] or "responses",
            now=now,
        )
    except RedisUnavailable:
        return {"explain_form": form, "explained": None, "unexplained": _("The live state does not answer, so nobody can say.")}
    told = replace(told, refusal=_(told.refusal) if told.refusal else "")
    return {"explain_form": form, "explained": told, "explained_rows": _told_rows(told), "unexplained": ""}


def _told_rows(told: Explanation) -> list[dict[str, Any]]:
    """The accounts of an explanation, with the moment of `… until …` for the organization's zone to be written in."""
    rows = []
    for row in told.accounts:
        why, _until, moment = row["why"].rpartition(" until ")
        try:
            until = datetime.fromisoformat(moment) if why else None
        except ValueError:
            until = None
        text = why if until is not None else explanation.WHY_NOT.get(row["why"], row["why"])
        # Rounded down: never flattering.
        left = {
            name.replace("used", "left"): None if row[name] is None else max(0, int((1 - row[name]) * 100 + 1e-9))
            for name in ("used_5h", "used_week")
        }
        amounts = {name: None if row[name] is None else _micro(row[name]) for name in ("room", "held")}
        rows.append({**row, **left, **amounts, "why": _(text), "until": until})
    return rows


def _opened(request: HttpRequest) -> Shown:
    """What the query asks for."""
    way = request.GET.get("add", "")
    return Shown(
        way=way if way in WAYS else BROWSER if "add" in request.GET else "",
        flow_id=request.GET.get("flow", ""),
        account_id=request.GET.get("open", ""),
    )


def _joining(request: HttpRequest, member: Member, shown: Shown, now: datetime) -> dict[str, Any]:
    """The dialog in which an account is added, if it is open."""
    if not shown.way or not permissions.can(member, Action.MANAGE_POOL):
        return {"way": ""}
    organization = member.organization
    started: oauth.Started | device.Started | None = None
    over = ""
    if shown.flow_id and shown.way in (BROWSER, DEVICE):
        resume = oauth.resume if shown.way == BROWSER else device.resume
        try:
            started = resume(organization, shown.flow_id, by=member.user, now=now)
        except DomainError as error:
            over = error.message
    if started is not None:
        kind: type[django_forms.Form] = CallbackForm if shown.way == BROWSER else PlaceForm
    else:
        kind = {FILES: FilesForm, KEY: KeyForm, ENDPOINT: KeyForm}.get(shown.way, SignInForm)
    # A form of a sign-in that is over gives way to the one that begins another.
    form = shown.join_form if isinstance(shown.join_form, kind) else kind(auto_id="add-%s")
    return {
        "way": shown.way,
        "is_sign_in": shown.way in SIGN_INS,
        "started": started,
        "over": over,
        "join_form": form,
        "outcomes": shown.outcomes,
        "terms": [_(part) for part in terms.PARAGRAPHS],
        "terms_accepted_at": organization.sign_in_terms_accepted_at,
        "may_accept": permissions.can(member, Action.MANAGE_ORGANIZATION),
    }
