"""What is posted on Members & limits about many members at once, and what takes a change back. Doors.

Three steps, each a form of its own: `ask` shows the fields, `preview` what would change, `apply` changes it.
"""

from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts import tenancy
from accounts.models import Member
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from quotas import bulk, bulk_forms, undo_offer
from quotas.bulk import Kind
from quotas.errors import BulkRefused
from quotas.members_page import manageable_teams, show_members

ASK, PREVIEW, APPLY, TRIM = "ask", "preview", "apply", "trim"


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_MEMBERS)
def change_many(request: HttpRequest, member: Member) -> HttpResponse:
    chosen = _chosen(request, member)
    try:
        kind = Kind(request.POST.get("do", ""))
    except ValueError:
        raise Http404 from None
    step = request.POST.get("step", ASK)
    told: dict[str, Any] = {"kind": kind, "title": bulk_forms.TITLES[kind], "members": chosen, "teams": manageable_teams(member)}
    if not chosen or step == ASK:
        if not chosen:
            messages.warning(request, _("Nobody is chosen. Choose members first."))
            return show_members(request, member, status=422)
        told["form"] = bulk_forms.FORMS[kind](auto_id="bulk-%s")
        return show_members(request, member, many=told)
    form = told["form"] = bulk_forms.FORMS[kind](request.POST, auto_id="bulk-%s")
    if not form.is_valid():
        return show_members(request, member, many=told, status=422)
    now = utc_now()
    wish = form.wish(ZoneInfo(member.organization.timezone), told["teams"])
    if kind is Kind.MOVE and wish.team is None and form.cleaned_data["team"] != bulk_forms.EVERYWHERE:
        raise Http404
    try:
        if step == APPLY and (kind is not Kind.REMOVE or request.POST.get("confirm", "").strip() == str(len(chosen))):
            done = bulk.apply(member, chosen, wish, now=now)
            undo_offer.make(request, member, _said(kind, done.changed), done.undo)
            return redirect("members", slug=member.organization.slug)
        lines = bulk.preview(member, chosen, wish, now=now)
        if step == TRIM:
            kept = {line.member.pk for line in lines if not line.refusal}
            told["members"] = chosen = [one for one in chosen if one.pk in kept]
            lines = tuple(line for line in lines if not line.refusal)
        told["confirm_error"] = step == APPLY
        status = 422 if step == APPLY else 200
    except BulkRefused as error:
        lines, status = tuple(error.lines), error.status
        told["error"] = error.message
    except DomainError as error:
        lines, status = (), error.status
        told["error"] = error.message
    told |= {
        "lines": lines,
        "refused": sum(bool(line.refusal) for line in lines),
        "changing": sum(not line.refusal and not line.is_same for line in lines),
    }
    return show_members(request, member, many=told, status=status)


def _said(kind: Kind, count: int) -> str:
    if kind is Kind.REMOVE:
        return ngettext("{count} member is removed.", "{count} members are removed.", count).format(count=count)
    return ngettext("{count} member is changed.", "{count} members are changed.", count).format(count=count)


def _chosen(request: HttpRequest, member: Member) -> list[Member]:
    """Raises Http404 if one of them is not a member of the organization whom the reader sees, as for a missing one."""
    try:
        uuids = {UUID(text) for text in request.POST.getlist("member")}
    except ValueError:
        raise Http404 from None
    rows = Member.objects.for_organization(member.organization).current().select_related("organization", "user", "team")
    if member.team_id is not None:
        rows = rows.filter(team_id=member.team_id)
    found = list(rows.filter(uuid__in=uuids).order_by("pk"))
    if len(found) != len(uuids):
        raise Http404
    return found


@require_POST
@tenancy.page(Action.MANAGE_MEMBERS)
def undo(request: HttpRequest, member: Member) -> HttpResponse:
    """Takes back what was changed last, within a minute."""
    back = undo_offer.take(request, member, request.POST.get("undo", ""))
    if back is None:
        messages.warning(request, _("There is nothing to undo any more."))
    else:
        try:
            bulk.undo(member, back, now=utc_now())
        except DomainError as error:
            messages.warning(request, error.message)
        else:
            messages.success(request, _("Undone: it is as it was before."))
    return redirect("members", slug=member.organization.slug)
