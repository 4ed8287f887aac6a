"""A member's request for more: asked for, then approved (which makes a boost of the limit), denied, or withdrawn; once.

Whoever decides holds the organization's row lock, so of two who decide at once the second is told that it is done.
"""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from accounts import audit, permissions
from accounts.models import Member, Organization, User
from accounts.permissions import Action, Reach
from billing import credits
from quotas import engine, limits, rights
from quotas.errors import AlreadyAsked, RequestDecided, RequestError
from quotas.models import Limit, LimitBoost, LimitRequest

MOST_DAYS = 92
"""A boost is for a time; what is needed for longer is another limit."""
NOTE_LENGTH = 400
_DECIDED = {
    LimitRequest.Status.APPROVED: gettext_noop("The request is approved already."),
    LimitRequest.Status.DENIED: gettext_noop("The request is denied already."),
    LimitRequest.Status.WITHDRAWN: gettext_noop("The request is withdrawn already."),
}


def askable(member: Member) -> QuerySet[Limit]:
    """The limits that hold this member: its own, its keys', its team's and the organization's."""
    own = Q(scope=Limit.Scope.ORGANIZATION) | Q(member=member) | Q(key__member=member, key__revoked_at=None)
    if member.team_id is not None:
        own |= Q(team_id=member.team_id)
    rows = Limit.objects.for_organization(member.organization).filter(own)
    return rows.select_related("team", "member__user", "key__member__user", "model_filter")


def ask(
    member: Member, limit: Limit, *, extra: str, until: datetime, note: str = "", by: User | None, now: datetime
) -> LimitRequest:
    """Asks for `extra` (decimal credits, or a count) on top of a limit, until then. Its lead sees it on Members & limits.

    Raises RequestError for what cannot be asked, AlreadyAsked while another request for the limit waits.
    """
    if not askable(member).filter(pk=limit.pk).exists():
        raise RequestError(_("That limit does not hold you, so there is nothing to ask for."))
    amount = extra_of(limit, extra)
    until = checked_until(until, now=now, zone=ZoneInfo(member.organization.timezone))
    note = checked_note(note)
    try:
        with transaction.atomic():
            organization = _locked(member.organization_id)
            request = LimitRequest.objects.create(
                organization=organization,
                member=member,
                limit=limit,
                metric=limit.metric,
                window=limit.window,
                asked_amount=amount,
                until=until,
                note=note,
            )
            _audit(request, by, "limit_request.made", {"limit": str(limit.uuid), "extra": amount, "until": until.isoformat()})
    except IntegrityError:
        raise AlreadyAsked(_("You have asked for more of this limit already. Withdraw that request to ask again.")) from None
    return request


def withdraw(request: LimitRequest, *, by: User | None, now: datetime) -> LimitRequest:
    """Takes one's own request back. Raises RequestDecided."""
    with transaction.atomic():
        request = _pending(request)
        return _decide(request, LimitRequest.Status.WITHDRAWN, by=by, note="", now=now)


def approve(request: LimitRequest, *, decider: Member, note: str = "", now: datetime) -> LimitBoost:
    """Gives what was asked for: a boost of the limit that holds on the very next request and ends by itself.

    Raises PermissionDenied, RequestDecided, RequestError, and what `limits.boost` raises; then nothing has changed.
    """
    note = checked_note(note)
    with transaction.atomic():
        request = _pending(request)
        _demand(decider, request)
        limit = request.limit
        if limit is None:
            raise RequestError(_("The limit is not there any more, so it holds nobody. Deny the request with a word about it."))
        if request.until <= now:
            raise RequestError(_("The time that was asked for has passed. Deny the request, and have the member ask again."))
        boost = limits.boost(
            limit,
            extra=request.asked_amount,
            until=request.until,
            reason=f"Asked for by {request.member}",
            by=decider.user,
            setter=decider,
            request=request,
            now=now,
        )
        _decide(request, LimitRequest.Status.APPROVED, by=decider.user, note=note, now=now)
    return boost


def deny(request: LimitRequest, *, decider: Member, note: str, now: datetime) -> LimitRequest:
    """Refuses, with a word that the member reads. Raises PermissionDenied, RequestDecided, RequestError."""
    note = checked_note(note)
    if not note:
        raise RequestError(_("Say why: the member reads it."))
    with transaction.atomic():
        request = _pending(request)
        _demand(decider, request)
        return _decide(request, LimitRequest.Status.DENIED, by=decider.user, note=note, now=now)


def may_decide(decider: Member, request: LimitRequest) -> bool:
    """Who may set the limit may give more of it; nobody but an owner decides a request of their own."""
    if request.member_id == decider.pk and decider.role != Member.Role.OWNER:
        return False
    if not permissions.can(decider, Action.SET_LIMITS, of=request.member):
        return False
    return request.limit is None or rights.may_change(decider, request.limit)


def waiting_for(decider: Member) -> QuerySet[LimitRequest]:
    """Pending requests of the members whom the decider looks after, the oldest first."""
    rows = LimitRequest.objects.filter(organization=decider.organization, status=LimitRequest.Status.PENDING)
    reach = permissions.reach(decider, Action.SET_LIMITS)
    if reach is Reach.NONE:
        return rows.none()
    if reach is Reach.SCOPE:
        rows = rows.filter(member__team=decider.team)
    related = (
        "organization",
        "member__user",
        "member__team",
        "limit__team",
        "limit__member__user",
        "limit__key",
        "limit__model_filter",
    )
    return rows.select_related(*related).order_by("pk")


def of_member(member: Member, *, count: int = 5) -> list[LimitRequest]:
    """The member's newest requests, with who decided. One query."""
    rows = LimitRequest.objects.filter(organization=member.organization, member=member)
    related = ("organization", "decided_by", "limit__team", "limit__member__user", "limit__key", "limit__model_filter", "boost")
    return list(rows.select_related(*related).order_by("-pk")[:count])


def extra_of(limit: Limit, text: str) -> int:
    """How much more, as people write it: decimal credits, or a count; above 0. Raises RequestError."""
    try:
        amount = int(credits.parse(text)) if limit.metric == Limit.Metric.CREDITS else _count(text)
    except ValueError as error:
        raise RequestError(_("How much more? %(error)s.") % {"error": error}, field="extra") from error
    if amount <= 0:
        raise RequestError(_("How much more? The amount must be above 0."), field="extra")
    if limit.amount + amount > engine.MOST:
        raise RequestError(_("That is more than can be counted. Ask for less."), field="extra")
    return amount


def _count(text: str) -> int:
    stripped = text.strip().replace(",", "")
    if not (stripped.isascii() and stripped.isdigit()):
        raise ValueError(_("%(text)r is not a whole number") % {"text": text})
    return int(stripped)


def checked_until(until: datetime, *, now: datetime, zone: ZoneInfo) -> datetime:
    """Raises RequestError for a time that has passed, or is too far away."""
    if until <= now:
        raise RequestError(_("Until when? That day has passed."), field="until")
    if until > now + timedelta(days=MOST_DAYS):
        last = (now + timedelta(days=MOST_DAYS)).astimezone(zone)
        message = ngettext(
            "At most %(days)s day, until %(last)s. What is needed for longer is a higher limit.",
            "At most %(days)s days, until %(last)s. What is needed for longer is a higher limit.",
            MOST_DAYS,
        ) % {"days": MOST_DAYS, "last": f"{last:%Y-%m-%d}"}
        raise RequestError(message, field="until")
    return until


def checked_note(note: str) -> str:
    """In one line, without control characters. Raises RequestError if it is too long."""
    note = " ".join("".join(character if character.isprintable() else " " for character in note).split())
    if len(note) > NOTE_LENGTH:
        raise RequestError(
            _("The note has %(count)s characters; %(note_length)s are kept.") % {"count": len(note), "note_length": NOTE_LENGTH},
            field="note",
        )
    return note


def _demand(decider: Member, request: LimitRequest) -> None:
    if not may_decide(decider, request):
        raise PermissionDenied


def _locked(organization_id: int) -> Organization:
    return Organization.objects.select_for_update(no_key=True).get(pk=organization_id)


def _pending(request: LimitRequest) -> LimitRequest:
    """The row as it is under the organization's lock. Raises RequestDecided."""
    _locked(request.organization_id)
    rows = LimitRequest.objects.select_related(
        "organization", "member__user", "member__team", "limit__key__member", "limit__member"
    )
    request = rows.select_for_update(of=("self",), no_key=True).get(pk=request.pk)
    if request.status != LimitRequest.Status.PENDING:
        raise RequestDecided(_(_DECIDED[LimitRequest.Status(request.status)]))
    return request


def _decide(request: LimitRequest, status: str, *, by: User | None, note: str, now: datetime) -> LimitRequest:
    request.status, request.decided_by, request.decided_at, request.decision_note = status, by, now, note
    request.save(update_fields=["status", "decided_by", "decided_at", "decision_note"])
    _audit(request, by, f"limit_request.{status}", {"note": note} if note else {})
    return request


def _audit(request: LimitRequest, by: User | None, action: str, data: dict[str, Any]) -> None:
    audit.record(
        request.organization,
        actor=by,
        action=action,
        object_type="limit_request",
        object_id=str(request.uuid),
        data={"member": str(request.member.uuid), **data},
    )
