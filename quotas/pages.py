"""My key and Overview: what is left, when it resets, what was used. Doors: they parse, call the domain, render."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, display, forms, keys, permissions, tenancy
from accounts.models import ApiKey, Member
from accounts.permissions import Action, Reach
from billing import overview, reports
from billing.overview import Days, Spender, Whose
from config.clock import utc_now
from config.errors import DomainError
from quotas import boost_forms, burn, drawn, first_run, levels, live, overview_parts, refused, remaining, requests, running
from quotas.boost_forms import AskForm
from quotas.errors import Degraded, NoActivePlan, Stale
from quotas.models import Limit, LimitRequest
from quotas.remaining import Standing
from quotas.standing import PlanState

DAYS = 30
OWN_ROWS = 10
MODELS_SHOWN = 6
KEY_ID = "key-%s"
KEY_FIELDS = {"allowed_models": "models", "allowed_efforts": "efforts", "expires_at": "until"}
"""What the domain refuses, by the field of the form."""
EXAMPLE_MODEL = "gpt-5.5"
"""The model that the configurations for clients name."""


def _standing(read: Callable[[], Standing]) -> dict[str, Any]:
    """How things stand, or the sentence that says why it cannot be told."""
    try:
        return {"standing": read(), "trouble": ""}
    except NoActivePlan as error:
        return {"standing": None, "trouble": error.message}
    except (Degraded, Stale):
        trouble = str(levels.TROUBLE)
        return {"standing": None, "trouble": trouble}


def _key_page(
    request: HttpRequest,
    member: Member,
    *,
    form: forms.IssueKeyForm | None = None,
    issued: keys.IssuedKey | None = None,
    ask_form: AskForm | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page; or, for htmx, its part with the keys, where a new one is shown this one time."""
    now = utc_now()
    frame = context.frame(member, "key", now)
    is_part = request.headers.get("HX-Target") == "keys"
    seen = "" if is_part else live.seen_all(member, "key", now=now)
    own = list(ApiKey.objects.for_organization(member.organization).filter(member=member).unrevoked())
    used = overview.last_used(own, now=now)
    credits_of = overview.used_by_key(member.pk, member.organization, now=now) if own else {}
    part = {
        **frame,
        "keys": [
            {
                "row": one,
                "used_at": used.get(one.pk),
                "credits": credits_of.get(one.pk, 0),
                "is_new": one.created_at > now - timedelta(days=overview.MOST_DAYS),
                "is_expired": bool(one.expires_at and one.expires_at <= now),
                "old_until": one.previous_until if one.previous_until and one.previous_until > now else None,
            }
            for one in own
        ],
        "issued": issued,
        "grace_text": display.duration(settings.KEY_ROTATION_GRACE_SECONDS),
        "form": form or forms.IssueKeyForm(auto_id=KEY_ID),
    }
    if is_part:
        return render(request, "quotas/_keys.html", part, status=status)
    whose = Whose(member.organization, member_id=member.pk)
    newest = overview.newest(whose, now=now, count=OWN_ROWS)
    days = overview.days_by_model(whose, until=now.astimezone(frame["zone"]).date(), count=DAYS)
    stands = _standing(lambda: remaining.standing(member, now=now))
    page = {
        **part,
        **stands,
        **_prices(whose, stands["standing"], now),
        "public_url": settings.PUBLIC_URL.rstrip("/"),
        "example_model": EXAMPLE_MODEL,
        "days": days,
        "spark": _spark(days.totals),
        "requests": newest,
        "running": running.shown(whose),
        "live_seen": seen,
        "refusals": refused.own(member),
        "lacks_accounts": first_run.lacks_accounts(member.organization),
        "adds_accounts": permissions.can(member, Action.MANAGE_POOL),
        "path": reverse("key", kwargs={"slug": member.organization.slug}),
        **_asking(request, member, ask_form, frame["zone"], now),
    }
    return render(request, "quotas/key.html", page, status=status)


def _prices(whose: Whose, standing: Standing | None, now: datetime) -> dict[str, Any]:
    """What one's requests cost by model, and how many more of them what is left is enough for."""
    left = max(0, standing.spendable.left) if standing is not None and standing.blocking is None else None
    rows = [
        {"row": one, "more": left // one.median if left is not None and one.median else None}
        for one in overview.typical(whose, now=now)[:MODELS_SHOWN]
    ]
    return {"prices": rows, "usual": rows[0] if rows else None}


def _asking(request: HttpRequest, member: Member, form: AskForm | None, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """The member's requests for more, and the form for another one if it is open (`?ask=`, the limit's uuid or nothing)."""
    is_open = form is not None or "ask" in request.GET
    found = list(requests.askable(member)) if is_open else []
    limits = [
        {"row": limit, "id": str(limit.uuid), "name": levels.own(limit), "amount": levels.amount_text(limit)} for limit in found
    ]
    chosen = str(form["limit"].value() or "") if form is not None else request.GET.get("ask", "")
    about = next((limit for limit in found if str(limit.uuid) == chosen), None)
    return {
        "own_requests": [
            {"row": row, "what": levels.own(row.limit) if row.limit else _("A limit that is gone"), "extra": levels.extra_text(row)}
            for row in requests.of_member(member)
        ],
        "asking": is_open,
        "ask_form": form,
        "askable": limits,
        "chosen": chosen,
        "today": now.astimezone(zone).date(),
        "until": boost_forms.until_for(about, now, zone),
        "last_day": boost_forms.last_day(now, zone),
    }


def _spark(totals: Sequence[int]) -> list[dict[str, str]]:
    """Bars of 7 in steps of 10, 32 high, in SVG units; the last is today's."""
    most = max(totals, default=0)
    bars = []
    for index, amount in enumerate(totals):
        height = max(5, amount * 300 // most) if most and amount > 0 else 5
        bars.append({"x": f"{index * 10 + 1}", "y": f"{(320 - height) / 10:.1f}", "height": f"{height / 10:.1f}"})
    return bars


@never_cache
@require_safe
@tenancy.page(Action.USE_KEYS)
def key(request: HttpRequest, member: Member) -> HttpResponse:
    return _key_page(request, member)


@never_cache
@require_POST
@tenancy.page(Action.USE_KEYS)
def issue_key(request: HttpRequest, member: Member) -> HttpResponse:
    """Answers with the secret itself, this one time: a redirect would need it kept somewhere."""
    form = forms.IssueKeyForm(request.POST, auto_id=KEY_ID)
    if not form.is_valid():
        return _key_page(request, member, form=form, status=422)
    try:
        issued = keys.issue(member, by=member.user, now=utc_now(), **form.fields_set(ZoneInfo(member.organization.timezone)))
    except DomainError as error:
        form.add_error(KEY_FIELDS.get(str(error.facts.get("field")), "name"), error.message)
        return _key_page(request, member, form=form, status=error.status)
    return _key_page(request, member, issued=issued)


@never_cache
@require_POST
@tenancy.page(Action.USE_KEYS)
def rotate_key(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """A new secret, shown in this answer only; `grace` is `0` when the old one shall end at once.

    Only of one's own keys: whoever rotates a key sees its secret. Others' keys a lead may revoke.
    """
    found = tenancy.owned(ApiKey.objects.select_related("member__user", "member__team"), member.organization, uuid)
    if found.member_id != member.pk:
        raise PermissionDenied
    grace = 0 if request.POST.get("grace") == "0" else None
    try:
        issued = keys.rotate(found, grace_seconds=grace, by=member.user, now=utc_now(), seen=request.POST.get("seen"))
    except DomainError as error:
        messages.warning(request, _("%(key)s was not rotated: %(reason)s") % {"key": found.name, "reason": error.message})
        return _keys_page(member, found)
    return _key_page(request, member, issued=issued)


def _keys_page(member: Member, key: ApiKey) -> HttpResponse:
    """Where the key is looked after: My key, or the page of the member whose it is."""
    if key.member_id == member.pk:
        return redirect("key", slug=member.organization.slug)
    return redirect("member", slug=member.organization.slug, uuid=key.member.uuid)


@never_cache
@require_POST
@tenancy.page(Action.USE_KEYS)
def ask_for_more(request: HttpRequest, member: Member) -> HttpResponse:
    """A request for more of a limit that holds the member; its lead decides."""
    form = AskForm(request.POST)
    if not form.is_valid():
        return _key_page(request, member, ask_form=form, status=422)
    wanted = form.cleaned_data
    limit = tenancy.owned(Limit.objects.all(), member.organization, wanted["limit"])
    zone = ZoneInfo(member.organization.timezone)
    try:
        until = form.ends_at(zone)
        requests.ask(member, limit, extra=wanted["extra"], until=until, note=wanted["note"], by=member.user, now=utc_now())
    except DomainError as error:
        form.add_error(error.facts.get("field", "limit"), error.message)
        return _key_page(request, member, ask_form=form, status=error.status)
    messages.success(request, _("Your request waits for your lead; the answer appears here."))
    return redirect("key", slug=member.organization.slug)


@require_POST
@tenancy.page(Action.USE_KEYS)
def withdraw_request(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Only the one who asked: a lead denies instead."""
    found = tenancy.owned(LimitRequest.objects.all(), member.organization, uuid)
    if found.member_id != member.pk:
        raise PermissionDenied
    try:
        requests.withdraw(found, by=member.user, now=utc_now())
    except DomainError as error:
        messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
    return redirect("key", slug=member.organization.slug)


@require_POST
@tenancy.page(Action.USE_KEYS)
def revoke_key(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Revokes if the name was typed in; a key that is revoked already stays as it is."""
    found = tenancy.owned(ApiKey.objects.select_related("member"), member.organization, uuid)
    tenancy.demand(member, Action.USE_KEYS, of=found.member)
    if request.POST.get("confirm", "").strip() != found.name:
        messages.warning(request, _("Nothing was revoked: the name typed was not %(name)s.") % {"name": found.name})
    else:
        keys.revoke(found, by=member.user, now=utc_now())
        messages.success(request, _("%(key)s is revoked. Its next request is refused.") % {"key": found.name})
    return _keys_page(member, found)


@never_cache
@require_safe
@tenancy.page(Action.SEE_USAGE)
def overview_page(request: HttpRequest, member: Member) -> HttpResponse:
    now = utc_now()
    frame = context.frame(member, "overview", now)
    seen = live.seen_all(member, "overview", now=now)
    zone: ZoneInfo = frame["zone"]
    whose = live.whose(member, Action.SEE_USAGE)
    is_own = whose.member_id is not None
    sees_requests = permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE
    # A developer's quota is the one they draw on, which may be a seat's; everybody else looks at the organization's.
    stands = _standing(
        lambda: remaining.standing(member, now=now) if is_own else remaining.of_organization(member.organization, now=now)
    )
    plan: PlanState | None = stands["standing"].plan if stands["standing"] else None
    chosen = overview_parts.chosen(request.GET.get("range", ""), member.organization, plan, zone, now)
    look = _look(member, whose, chosen, plan, zone, now)
    days = look.days
    newest = overview.newest(live.whose(member, Action.SEE_REQUESTS), now=now) if sees_requests else []
    today = reports.day_of(now, zone)
    page = {
        **frame,
        **stands,
        "is_own": is_own,
        "first_run": first_run.of(member, now=now),
        "scope": _("you") if is_own else _("the {team} team").format(team=member.team) if whose.team_id else _("everybody"),
        "chosen": chosen,
        "days": days,
        "chart": _chart(days),
        "table": [
            {"day": day, "amounts": [amounts[index] for _model, amounts in days.series], "total": days.totals[index]}
            for index, day in enumerate(days.days)
        ],
        "today": look.today,
        "today_requests": look.today_requests,
        "spark": _spark(look.recent),
        "highest": max(zip(days.totals, days.days, strict=True), default=None),
        "spenders": [] if is_own else _ranked(look.spenders, member, now),
        "sees_requests": sees_requests,
        "requests": newest,
        "running": running.shown(live.about(member, "overview")) if sees_requests else [],
        "strip": overview_parts.strip(member, now=now),
        "pool": overview_parts.pool(member, now=now),
        "shown_resets": overview_parts.SHOWN_RESETS,
        "live_seen": seen,
    }
    if sees_requests:
        month = [today - timedelta(days=DAYS - 1 - index) for index in range(DAYS)]
        refusals = overview_parts.refused_today(live.whose(member, Action.SEE_REQUESTS), month, zone)
        page |= {"refused": refusals, "refused_spark": _spark(refusals.days)}
    if plan is not None:
        page["period_start"] = datetime.fromtimestamp(plan.starts_at, UTC)
        page["period_end"] = datetime.fromtimestamp(plan.ends_at - 1, UTC)
        page |= _burn(member, whose, plan, look.drawn, zone, now)
    return render(request, "quotas/overview.html", page)


def _look(
    member: Member, whose: Whose, chosen: overview_parts.Chosen, plan: PlanState | None, zone: ZoneInfo, now: datetime
) -> overview.Look:
    """All sums of the page in one read: of what is chosen, of the last 30 days, and of the plan's period."""
    today = reports.day_of(now, zone)
    since = today - timedelta(days=DAYS - 1)
    if plan is not None:
        since = min(
            since, max(reports.day_of(datetime.fromtimestamp(plan.starts_at, UTC), zone), today - timedelta(days=burn.MOST_DAYS))
        )
    seated = drawn.seated(member.organization) if whose.member_id is None and whose.team_id is None else ()
    return overview.look(whose, chosen.days, since=since, until=today, seated=seated, recent=DAYS)


def _burn(
    member: Member, whose: Whose, plan: PlanState, by_day: Mapping[date, int], zone: ZoneInfo, now: datetime
) -> dict[str, Any]:
    """The burn of the quota that is one's own: a seat's for its member, the organization's for who sees all of it."""
    is_seat = whose.member_id is not None and plan.subject == "member"
    if not is_seat and (whose.member_id is not None or whose.team_id is not None):
        return {}
    found = burn.of(member.organization, plan, seat_member_id=member.pk if is_seat else None, now=now, drawn_by_day=by_day)
    return {} if found is None else {"burn": found, "burn_chart": burn.chart(found, zone)}


def _chart(days: Days) -> dict[str, Any]:
    """For charts.js: days as midnight UTC of the calendar day, so that bars do not shift; amounts in credits, to be drawn only."""
    return {
        "x": [int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) for day in days.days],
        "series": [{"name": model, "values": [amount / 10**6 for amount in amounts]} for model, amounts in days.series],
    }


def _ranked(spenders: Sequence[Spender], reader: Member, now: datetime) -> list[dict[str, Any]]:
    """With what is left of a limit of their own, for who sees limits."""
    most = max((one.credits for one in spenders), default=0)
    sees_limits = bool(spenders) and permissions.reach(reader, Action.SEE_MEMBERS) is not Reach.NONE
    meters = overview_parts.tightest(reader.organization, spenders, now=now) if sees_limits else {}
    return [
        {
            "name": one.name,
            "credits": one.credits,
            "share": display.share(one.credits, most),
            "meter": meters.get(one.member_id),
        }
        for one in spenders
    ]
