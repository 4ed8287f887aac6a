"""Members & limits: who is close to a limit, and changing it here. Doors: they parse, call the domain, render.

What is open for editing stands in the query (`?edit=`, `?more=`, `?new=`, `?invite=`), so every form works without a script too;
htmx only swaps the card that a link or form belongs to.
"""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID
from zoneinfo import ZoneInfo

from django import forms as django_forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from accounts import context, display, invitations, managing, permissions, teams, tenancy
from accounts.models import ApiKey, Member, Team
from accounts.permissions import Action
from billing import joining
from config.clock import utc_now
from config.errors import DomainError
from quotas import boost_forms, bulk, levels, live, refused, requests, rights, undo_offer
from quotas.boost_forms import InviteForm, RoleForm, told
from quotas.models import Limit

PAGE = 100
"""Members on a page: who is close to a limit stands first, and everybody can be found by name."""
EDIT, MORE, NEW, INVITE, PLACE = "edit", "more", "new", "invite", "place"


@dataclass(frozen=True, slots=True)
class Opened:
    """The form that is open: `kind`, what it is about (a limit's uuid, "" for a new one), and what was typed into it."""

    kind: str = ""
    id: str = ""
    form: django_forms.Form | None = None


def opened(request: HttpRequest) -> Opened:
    """What the query asks for."""
    for kind in (EDIT, MORE, NEW, INVITE, PLACE):
        if kind in request.GET:
            return Opened(kind, request.GET[kind])
    return Opened()


@dataclass(frozen=True, slots=True)
class Sought:
    """Whom the list is narrowed to: part of a name or e-mail, a team's uuid, only who is close to a limit."""

    text: str = ""
    team: str = ""
    is_low: bool = False
    start: int = 0
    """How many of them stand on the pages before."""

    @classmethod
    def read(cls, request: HttpRequest) -> "Sought":
        start = request.GET.get("start", "")
        return cls(
            request.GET.get("q", "").strip()[:120],
            request.GET.get("team", ""),
            request.GET.get("low") == "1",
            int(start) if start.isascii() and start.isdigit() and len(start) < 7 else 0,
        )

    def matches(self, one: levels.Person) -> bool:
        email = one.member.user.email if one.member.user is not None else ""
        if self.text and self.text.casefold() not in f"{one.member} {email}".casefold():
            return False
        if self.team and (one.member.team is None or str(one.member.team.uuid) != self.team):
            return False
        return one.is_low or not self.is_low

    @property
    def query(self) -> str:
        """As the page's address has it; "" where nothing is sought."""
        return self.at(self.start)

    def at(self, start: int) -> str:
        """The same list from another place on."""
        wanted = {"q": self.text, "team": self.team, "low": "1" if self.is_low else "", "start": str(start) if start else ""}
        found = urlencode({name: value for name, value in wanted.items() if value})
        return f"?{found}" if found else ""

    @property
    def is_narrow(self) -> bool:
        return bool(self.text or self.team or self.is_low)


def show_members(
    request: HttpRequest,
    member: Member,
    *,
    open_: Opened | None = None,
    link: invitations.Link | None = None,
    decided: tuple[str, str] | None = None,
    many: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """The page. `link` is an invitation made just now; `decided` are the uuid and the error of a request that was not decided;
    `many` is a change for many that is being made (`bulk_page`)."""
    now = utc_now()
    frame = context.frame(member, "members", now)
    seen = live.seen_all(member, "members", now=now)
    scope = levels.of_scope(member, now=now)
    open_ = open_ or opened(request)
    low = [one for one in scope.people if one.is_low]
    sought = Sought.read(request)
    matched = [one for one in scope.people if sought.matches(one)]
    people = matched[sought.start : sought.start + PAGE]
    may_manage = permissions.can(member, Action.MANAGE_MEMBERS, team_id=member.team_id)
    page = {
        **frame,
        **_offered(member, open_, frame["zone"], now),
        "scope": scope,
        "low": low,
        "people": people,
        "matched": len(matched),
        "first": sought.start + 1,
        "last": sought.start + len(people),
        "next_page": sought.at(sought.start + PAGE) if len(matched) > sought.start + PAGE else "",
        "previous_page": (sought.at(max(0, sought.start - PAGE)) or "?") if sought.start else "",
        "sought": sought,
        "narrow": sought.query,
        "used": None if any(one.used is None for one in matched) else sum(one.used or 0 for one in matched),
        "many": many,
        "offer": undo_offer.shown(request, member),
        "manageable": {one.member.pk for one in people if may_manage and managing.may_manage(member, one.member)},
        "waiting": _waiting(member, decided),
        "subjects": [("organization", _("%(organization)s (everybody together)") % {"organization": member.organization})]
        * rights.may_set(member, None)
        + [(f"team:{team.uuid}", _("%(team)s team") % {"team": team}) for team in scope.teams if rights.may_set(member, team)]
        + [(f"member:{one.member.uuid}", str(one.member)) for one in scope.people if rights.may_set(member, one.member)],
        "refusals": refused.of_scope(member),
        "may_manage": may_manage,
        "roles": _roles(member),
        "link": link,
        "path": reverse("members", kwargs={"slug": member.organization.slug}),
        "live_seen": seen,
        "is_list": True,
    }
    return render(request, "quotas/members.html", page, status=status)


def show_member(
    request: HttpRequest,
    member: Member,
    found: Member,
    *,
    open_: Opened | None = None,
    role_form: RoleForm | None = None,
    decided: tuple[str, str] | None = None,
    status: int = 200,
) -> HttpResponse:
    """One member's limits, keys, requests and refusals."""
    now = utc_now()
    frame = context.frame(member, "members", now)
    open_ = open_ or opened(request)
    rows, counters, trouble = levels.of_member(member, found, now=now)
    own_keys = list(ApiKey.objects.for_organization(member.organization).filter(member=found).unrevoked())
    own_rows = [row for row in rows if row.limit.scope in (Limit.Scope.MEMBER, Limit.Scope.KEY)]
    subjects: list[tuple[str, str]] = []
    if rights.may_set(member, found):
        subjects = [(f"member:{found.uuid}", str(found)), *((f"key:{key.uuid}", f"the key {key.name}") for key in own_keys)]
    page = {
        **frame,
        **_offered(member, open_, frame["zone"], now),
        "found": found,
        "own_rows": own_rows,
        "other_rows": [row for row in rows if row not in own_rows],
        "tightest": levels.first_to_hold(rows),
        "counters": counters,
        "trouble": trouble,
        "used": counters.used.get(found.pk) if counters else None,
        "keys": [{"row": key, "is_expired": bool(key.expires_at and key.expires_at <= now)} for key in own_keys],
        "subjects": subjects,
        "waiting": [one for one in _waiting(member, decided) if one["row"].member_id == found.pk],
        "history": [row for row in requests.of_member(found) if row.status != "pending"],
        "refusals": refused.of_scope(member, of=found),
        "found_name": str(found),
        "grace_text": display.duration(settings.KEY_ROTATION_GRACE_SECONDS),
        "may_manage": managing.may_manage(member, found),
        "may_use_keys": permissions.can(member, Action.USE_KEYS, of=found),
        "roles": _roles(member),
        "teams": manageable_teams(member),
        "role_form": role_form,
        "offer": undo_offer.shown(request, member),
        "path": reverse("member", kwargs={"slug": member.organization.slug, "uuid": found.uuid}),
    }
    return render(request, "quotas/member.html", page, status=status)


def _offered(member: Member, open_: Opened, zone: ZoneInfo, now: Any) -> dict[str, Any]:
    return {
        "opened": open_,
        "metrics": boost_forms.METRICS,
        "windows": boost_forms.WINDOW_CHOICES,
        "today": now.astimezone(zone).date(),
        "until": boost_forms.until_for(None, now, zone),
        "last_day": boost_forms.last_day(now, zone),
        "team_names": [team.name for team in manageable_teams(member)] if open_.kind in (INVITE, PLACE) else [],
    }


def _waiting(member: Member, decided: tuple[str, str] | None) -> list[dict[str, Any]]:
    """Requests for more that wait, with whether this member may decide them and why a decision just failed."""
    return [
        {
            "row": row,
            "what": levels.named(row.limit) if row.limit else "a limit that is gone",
            "extra": levels.extra_text(row),
            "amount": levels.amount_text(row.limit) if row.limit else "",
            "may_decide": requests.may_decide(member, row),
            "error": decided[1] if decided and decided[0] == str(row.uuid) else "",
        }
        for row in requests.waiting_for(member)
    ]


def _roles(member: Member) -> list[tuple[str, str]]:
    return [
        (role, str(label)) for role, label in Member.Role.choices if permissions.may_give_role(member, role, team_id=member.team_id)
    ]


def manageable_teams(member: Member) -> list[Team]:
    """Into which the member may put people."""
    rows = Team.objects.filter(organization=member.organization)
    return list(rows if member.team_id is None else rows.filter(pk=member.team_id))


@never_cache
@require_safe
@tenancy.page(Action.SEE_MEMBERS)
def members_page(request: HttpRequest, member: Member) -> HttpResponse:
    return show_members(request, member)


@never_cache
@require_safe
@tenancy.page(Action.SEE_MEMBERS)
def member_page(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    return show_member(request, member, managing.find(member, uuid))


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_MEMBERS)
def invite(request: HttpRequest, member: Member) -> HttpResponse:
    """Makes the person a member and answers with the link that lets them in, this one time: no redirect keeps it."""
    form = InviteForm(request.POST)
    if not form.is_valid():
        return show_members(request, member, open_=Opened(INVITE, "", form), status=422)
    wanted = form.cleaned_data
    # Asked before a team is made: what is refused leaves none behind.
    if not permissions.may_give_role(member, wanted["role"], team_id=member.team_id):
        form.add_error("role", _("Leads invite developers; other roles are an owner’s to give."))
        return show_members(request, member, open_=Opened(INVITE, "", form), status=403)
    try:
        with transaction.atomic():
            team = _team(member, wanted["team"])
            link = managing.invite(member, wanted["email"], role=wanted["role"], team=team, name=wanted["name"], now=utc_now())
    except DomainError as error:
        told(form, _field(error.code), error)
        return show_members(request, member, open_=Opened(INVITE, "", form), status=error.status)
    return show_members(request, member, open_=Opened(), link=link)


@require_POST
@tenancy.page(Action.MANAGE_MEMBERS)
def change_member(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    found = managing.find(member, uuid)
    form = RoleForm(request.POST)

    def again(status: int) -> HttpResponse:
        """The page that the form stood on, with the form open."""
        if request.POST.get("page") == "members":
            return show_members(request, member, open_=Opened(PLACE, str(uuid), form), status=status)
        return show_member(request, member, found, role_form=form, status=status)

    if not form.is_valid():
        return again(422)
    wanted = form.cleaned_data
    if not managing.may_manage(member, found) or not permissions.may_give_role(member, wanted["role"], team_id=member.team_id):
        form.add_error("role", _("Leads look after the developers of their scope; other roles are an owner’s to give."))
        return again(403)
    role, was = found.role, found.team
    try:
        with transaction.atomic():
            team = _team(member, wanted["team"])
            changed = managing.change(member, found, role=wanted["role"], team=team, has_team=True, now=utc_now())
    except DomainError as error:
        told(form, _field(error.code), error)
        return again(error.status)
    text = _("{member} is {role} of {team} from now on.").format(
        member=found, role=changed.get_role_display().lower(), team=team or _("the whole organization")
    )
    # A role may have cost its keys, which do not come back; a team alone can be taken back.
    back = bulk.undo_of_team(changed, was) if role == changed.role else bulk.Undo()
    undo_offer.make(request, member, text, back, row=str(found.uuid))
    return redirect("members", slug=member.organization.slug)


@require_POST
@tenancy.page(Action.MANAGE_MEMBERS)
def remove_member(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Removes if the name was typed in."""
    found = managing.find(member, uuid)
    tenancy.demand(member, Action.MANAGE_MEMBERS, of=found)
    name = str(found)
    here = redirect("member", slug=member.organization.slug, uuid=found.uuid)
    if not managing.may_manage(member, found):
        role = found.get_role_display().lower()
        messages.warning(
            request, _("Nothing was changed: %(name)s is %(role)s, and only an owner removes one.") % {"name": name, "role": role}
        )
        return here
    if request.POST.get("confirm", "").strip() != name:
        messages.warning(request, _("Nobody was removed: the name typed was not %(name)s.") % {"name": name})
        return here
    try:
        removed = joining.dismiss(member, found, now=utc_now())
    except DomainError as error:
        messages.warning(request, _("Nobody was removed: %(reason)s") % {"reason": error.message})
        return here
    messages.success(request, f"{name} is removed; keys ended: {removed.keys_revoked}. What was used stays in the log.")
    return redirect("members", slug=member.organization.slug)


def _team(member: Member, name: str) -> Team | None:
    """The team that was typed, made if there is none yet; leads of a team stay in it. Raises NameInvalid."""
    name = " ".join(name.split())
    if member.team is not None:
        if name and name.casefold() != member.team.name.casefold():
            raise PermissionDenied
        return member.team
    return teams.named(member.organization, name, by=member.user) if name else None


def _field(code: str) -> str:
    """The field that a refusal of the domain is about."""
    fields = {"email_invalid": "email", "already_member": "email", "team_not_for_role": "team", "name_invalid": "team"}
    return fields.get(code, "role")
