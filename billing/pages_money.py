"""Plan, credits, ledger and invoices. Doors: they parse, call the domain, render."""

from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from accounts import context, display, permissions, tenancy
from accounts.models import Member
from accounts.permissions import Action
from billing import changes, csvfile, exports, ledger, monthly_told, plans, statement
from billing.changes import Change
from billing.errors import ChangeMoved
from billing.models import Invoice, InvoiceLine, Plan, Subscription
from config.clock import utc_now
from config.errors import DomainError

MOST_INVOICES = 200
NOW, NEXT = "now", "next"


@never_cache
@require_safe
@tenancy.page(Action.SEE_MONEY)
def invoices(request: HttpRequest, member: Member) -> HttpResponse:
    tenancy.demand(member, Action.SEE_MONEY)
    return render(request, "billing/invoices.html", page(request, member, utc_now()))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@tenancy.page(Action.SEE_MONEY)
def change_plan(request: HttpRequest, member: Member) -> HttpResponse:
    """GET previews a change, POST makes it, if it still is what the preview promised; else the new preview is shown."""
    tenancy.demand(member, Action.MANAGE_ORGANIZATION)
    now = utc_now()
    subscription = statement.subscription_of(member.organization)
    asked = request.POST if request.method == "POST" else request.GET
    # By comparing: what is no slug must not reach the database as one, where a NUL is an error.
    plan, when = next((one for one in plans.choices(subscription) if one.slug == asked.get("plan")), None), asked.get("when", NOW)
    if subscription is None or plan is None or when not in (NOW, NEXT):
        raise Http404
    shown = page(request, member, now)
    shown |= {"chosen": plan.slug, "when": when}
    try:
        if request.method == "POST":
            change = (changes.change_plan if when == NOW else changes.change_next)(
                subscription, plan, by=member.user, now=now, promise=asked.get("promise", "") or "none"
            )
            messages.success(request, _told(change, when))
            return redirect("invoices", slug=member.organization.slug)
        shown["change"] = _preview(subscription, plan, when, now)
    except ChangeMoved as error:
        shown |= {"change": _preview(subscription, plan, when, now), "trouble": error.message}
        return render(request, "billing/invoices.html", shown, status=error.status)
    except DomainError as error:
        shown["trouble"] = error.message
        return render(request, "billing/invoices.html", shown, status=error.status)
    return render(request, "billing/invoices.html", shown)


@require_POST
@tenancy.page(Action.SEE_MONEY)
def keep_plan(request: HttpRequest, member: Member) -> HttpResponse:
    """Takes back the plan that was to take over. Without one it changes nothing."""
    tenancy.demand(member, Action.MANAGE_ORGANIZATION)
    subscription = statement.subscription_of(member.organization)
    if subscription is None:
        raise Http404
    changes.keep_plan(subscription, by=member.user, now=utc_now())
    messages.success(request, _("%(plan)s goes on with the next period.") % {"plan": subscription.plan.name})
    return redirect("invoices", slug=member.organization.slug)


@never_cache
@require_safe
@tenancy.page(Action.SEE_MONEY)
def invoice(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """As it was issued; printed, it is the sheet alone."""
    found = _invoice(member, uuid)
    zone = ZoneInfo(found.frozen["timezone"])
    page = {
        **context.frame(member, "invoices", utc_now()),
        "invoice": found,
        "lines": _lines(found),
        "issued_on": date.fromisoformat(found.frozen["issued_on"]),
        "first": date.fromisoformat(found.frozen["first"]),
        "last": date.fromisoformat(found.frozen["last"]),
        "zone": zone,
        "notes": list(found.credit_notes.order_by("number")),
    }
    return render(request, "billing/invoice.html", page)


@require_GET
@tenancy.page(Action.SEE_MONEY)
def invoice_csv(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = _invoice(member, uuid)
    text = statement.invoice_csv(found, with_bom=request.GET.get("bom") == "1")
    name = csvfile.file_name("invoice", found.frozen["number"])
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=dict(exports.headers(name)))


@require_GET
@tenancy.page(Action.SEE_MONEY)
def ledger_csv(request: HttpRequest, member: Member) -> HttpResponseBase:
    """The whole ledger, streamed."""
    tenancy.demand(member, Action.SEE_MONEY)
    file = statement.LedgerFile(member.organization, with_bom=request.GET.get("bom") == "1")
    # Under ASGI a sync iterator would be collected whole before its first byte goes out.
    content = exports.stream(file) if isinstance(request, ASGIRequest) else exports.pieces_in_scope(file)
    name = csvfile.file_name("ledger", member.organization.slug)
    return StreamingHttpResponse(content, content_type="text/csv; charset=utf-8", headers=dict(exports.headers(name)))


def _invoice(member: Member, uuid: UUID) -> Invoice:
    """404 for another organization's, 403 for who sees one team's money only."""
    found = tenancy.owned(Invoice.objects.select_related("corrects", "organization"), member.organization, uuid)
    tenancy.demand(member, Action.SEE_MONEY)
    return found


def _lines(found: Invoice) -> list[dict[str, Any]]:
    rows: list[InvoiceLine] = list(found.lines.order_by("position"))
    return [
        {"line": line, "first": date.fromisoformat(first), "last": date.fromisoformat(last)}
        for line, (first, last) in zip(rows, found.frozen["lines"], strict=True)
    ]


def page(request: HttpRequest, member: Member, now: datetime) -> dict[str, Any]:
    """What Plan & invoices shows."""
    organization = member.organization
    subscription = statement.subscription_of(organization)
    period = statement.current_period(subscription, now) if subscription is not None else None
    with_usage = request.GET.get("entries") != "moves"
    entries = statement.ledger_page(organization, before=_uuid(request.GET.get("before", "")), with_usage=with_usage)
    may_change = permissions.can(member, Action.MANAGE_ORGANIZATION)
    return {
        **context.frame(member, "invoices", now),
        "subscription": subscription,
        "period": period,
        "period_last": period.ends_at - timedelta(seconds=1) if period is not None else None,
        "left": period.quota - period.used_from_quota if period is not None else 0,
        "balance": ledger.balance(organization.pk),
        "lots": [{"row": lot, "left": lot.amount - lot.drawn - lot.expired} for lot in statement.lots(organization)],
        "seats": statement.seats(organization, now),
        "entries": entries,
        "with_usage": with_usage,
        "is_first": "before" not in request.GET,
        "invoices": list(Invoice.objects.for_organization(organization).select_related("corrects")[:MOST_INVOICES]),
        "may_change": may_change,
        "plans": plans.offered(subscription) if may_change and subscription is not None else [],
        "when": NOW,
        "monthly": monthly_told.shown(organization),
    }


def _preview(subscription: Subscription, plan: Plan, when: str, now: datetime) -> Change:
    return (changes.preview_change if when == NOW else changes.preview_next)(subscription, plan, now=now)


def _told(change: Change, when: str) -> str:
    if when == NOW:
        return _("%(plan)s holds from now on.") % {"plan": change.plan_after}
    at = change.effective_at.astimezone(UTC)
    day = display.day_alone(at.date())
    return _("%(plan)s takes over on %(day)s, %(time)s UTC.") % {"plan": change.plan_after, "day": day, "time": f"{at:%H:%M}"}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
