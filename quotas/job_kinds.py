"""Long work about requests and members. Pages and API start it here."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from accounts import jobs, permissions
from accounts.jobs import Kind, Work
from accounts.models import Job, Member
from accounts.permissions import Action, Reach
from accounts.trail import Sought
from billing import csvfile, labels
from billing.job_kinds import asker, reach, written
from billing.usage_log import Wanted
from config.clock import utc_now
from quotas import request_log
from quotas.audit_file import TrailFile
from quotas.member_files import MembersFile
from quotas.request_files import RequestsFile

REQUEST_LOG, MEMBERS, AUDIT_TRAIL = "request_log", "members", "audit_trail"


def register() -> None:
    jobs.register(Kind(REQUEST_LOG, _request_log, _may_have_requests))
    jobs.register(Kind(MEMBERS, _members, _may_have_members))
    jobs.register(Kind(AUDIT_TRAIL, _audit_trail, _may_have_audit_trail, shared_by=Action.MANAGE_ORGANIZATION))


def start_request_log(member: Member, wanted: Wanted, *, now: datetime, with_bom: bool = False) -> Job:
    """The request log by a filter (`request_filters.chosen(…).wanted`), in the member's reach. Raises JobForbidden, TooManyJobs."""
    return jobs.start(
        member,
        kind=REQUEST_LOG,
        title=_title(member, wanted, now),
        asked={"wanted": stored(wanted), "reach": reach(labels.sight(member)), "bom": with_bom},
        file_name=csvfile.file_name("requests", member.organization.slug, now.date().isoformat()),
        now=now,
    )


def _title(member: Member, wanted: Wanted, now: datetime) -> str:
    """The time, and what else it is filtered by: ids stay out, for a title may be seen by who may not see their names."""
    zone = ZoneInfo(member.organization.timezone)
    first, last = (
        None if at is None else at.astimezone(zone).strftime("%Y-%m-%d %H:%M") for at in (wanted.start, wanted.end or now)
    )
    parts = [_("to %(last)s") % {"last": last} if first is None else _("%(first)s to %(last)s") % {"first": first, "last": last}]
    names = {"member_id": _("one member"), "team_id": _("one team"), "key_id": _("one key"), "account_id": _("one account")}
    parts += [text for name, text in names.items() if getattr(wanted, name) is not None]
    parts += [value for value in (wanted.model, wanted.status) if value]
    return _("Request log, %(filter)s") % {"filter": ", ".join(parts)}


def start_members(member: Member, *, now: datetime, with_bom: bool = False) -> Job:
    """Members and limits in the member's reach, as they are when it is made. Raises JobForbidden, TooManyJobs."""
    return jobs.start(
        member,
        kind=MEMBERS,
        title=_("Members and their limits"),
        asked={"reach": _members_reach(member), "bom": with_bom},
        file_name=members_file_name(member, now),
        now=now,
    )


def start_audit_trail(member: Member, *, now: datetime, with_bom: bool = False) -> Job:
    """The whole audit trail, with the chain's links. Raises JobForbidden, TooManyJobs."""
    return jobs.start(
        member,
        kind=AUDIT_TRAIL,
        title=_("The whole audit trail"),
        asked={"bom": with_bom},
        file_name=csvfile.file_name("audit", member.organization.slug, now.date().isoformat()),
        now=now,
    )


def members_file_name(member: Member, now: datetime) -> str:
    return csvfile.file_name("members", member.organization.slug, now.date().isoformat())


def stored(wanted: Wanted) -> dict[str, Any]:
    """As `asked` of a job holds it: only what is looked for."""
    values = {field.name: getattr(wanted, field.name) for field in fields(wanted)}
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
        if value is not None and value != ""
    }


def restored(asked: Mapping[str, Any]) -> Wanted:
    values: dict[str, Any] = dict(asked)
    values |= {name: datetime.fromisoformat(asked[name]) for name in ("start", "end") if name in asked}
    return Wanted(**values)


def _may_have_requests(member: Member, asked: Mapping[str, Any]) -> bool:
    is_allowed = permissions.reach(member, Action.SEE_REQUESTS) is not Reach.NONE and member.removed_at is None
    return is_allowed and reach(labels.sight(member)) == asked.get("reach")


def _members_reach(member: Member) -> list[Any]:
    """Whose members: all (no team), or of one team."""
    how_far = permissions.reach(member, Action.SEE_MEMBERS)
    return [how_far.name, member.team_id if how_far is not Reach.WHOLE else None]


def _may_have_members(member: Member, asked: Mapping[str, Any]) -> bool:
    is_allowed = permissions.reach(member, Action.SEE_MEMBERS) is not Reach.NONE and member.removed_at is None
    return is_allowed and _members_reach(member) == asked.get("reach")


def _request_log(work: Work) -> Mapping[str, Any]:
    asked, sight, now = work.job.asked, labels.sight(asker(work)), utc_now()
    wanted = restored(asked["wanted"])
    file = RequestsFile(sight, wanted, now=work.job.created_at, with_bom=bool(asked.get("bom")))
    sums = request_log.sums(sight.whose, wanted, now=now)
    return written(work, file, sums.requests if sums is not None else None)


def _may_have_audit_trail(member: Member, asked: Mapping[str, Any]) -> bool:
    return permissions.can(member, Action.MANAGE_ORGANIZATION)


def _audit_trail(work: Work) -> Mapping[str, Any]:
    return written(work, TrailFile(work.job.organization, Sought(), with_bom=bool(work.job.asked.get("bom"))))


def _members(work: Work) -> Mapping[str, Any]:
    return written(work, MembersFile(asker(work), now=utc_now(), with_bom=bool(work.job.asked.get("bom"))))
