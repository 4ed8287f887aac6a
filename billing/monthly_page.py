"""The monthly export on Plan & invoices: setting it up, and sending a month again. Doors."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from accounts import tenancy
from accounts.models import Member
from accounts.permissions import Action
from billing import monthly_export, monthly_told, pages_money
from billing.errors import MonthlyRefused
from billing.models import MonthlySend
from config.clock import utc_now


@require_POST
@tenancy.page(Action.SEE_MONEY)
def set_monthly(request: HttpRequest, member: Member) -> HttpResponse:
    tenancy.demand(member, Action.SEE_MONEY)
    now = utc_now()
    chosen: dict[str, Any] = {
        "is_on": request.POST.get("is_on") == "1",
        "files": request.POST.getlist("files"),
        "recipients": set(request.POST.getlist("recipients")),
    }
    try:
        recipients = [_uuid(one) for one in chosen["recipients"]]
        monthly_export.save(
            member.organization, is_on=chosen["is_on"], files=chosen["files"], recipients=recipients, by=member.user, now=now
        )
    except MonthlyRefused as error:
        page = pages_money.page(request, member, now)
        page["monthly"] = {**monthly_told.shown(member.organization, chosen=chosen), "trouble": error.message}
        return render(request, "billing/invoices.html", page, status=error.status)
    messages.success(request, _("The monthly export is on.") if chosen["is_on"] else _("The monthly export is off."))
    return _back(member)


@require_POST
@tenancy.page(Action.SEE_MONEY)
def send_again(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    send = tenancy.owned(MonthlySend.objects.select_related("organization"), member.organization, uuid)
    tenancy.demand(member, Action.SEE_MONEY)
    if monthly_export.try_again(send, now=utc_now()):
        messages.success(request, _("The export of %(month)s is made again.") % {"month": send.month.strftime("%Y-%m")})
    else:
        messages.warning(request, _("Nothing was done: that month is under way, or sent."))
    return _back(member)


def _back(member: Member) -> HttpResponse:
    return redirect(f"{reverse('invoices', kwargs={'slug': member.organization.slug})}#monthly")


def _uuid(text: str) -> UUID:
    """Raises MonthlyRefused."""
    try:
        return UUID(text)
    except ValueError:
        raise MonthlyRefused(
            _("A recipient is a member who may see the money. One of those chosen is not, or not any more.")
        ) from None
