"""Long work that somebody asks for: it is started here, found again, stopped, fetched and forgotten.

Apps register what kinds of work there are (`register`); a worker does them (`accounts.job_running`). Every look at a job or its
file asks for the rights anew, by the kind: who has lost the right since has lost the file.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.core import signing
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from accounts import audit, job_files, permissions
from accounts.errors import JobForbidden, JobKindUnknown, JobNotFound, JobOver, LinkExpired, LinkInvalid, TooManyJobs
from accounts.job_files import Out
from accounts.models import Job, Member, Organization, User
from accounts.permissions import Action, Reach
from config import scope

logger = logging.getLogger(__name__)

MOST_WAITING = 20
"""Unfinished jobs of one organization."""
KEPT = timedelta(days=7)
"""How long a file is kept."""
LINK_KEPT = timedelta(days=14)
"""How long a signed link opens its file, if that is kept so long."""
REMEMBERED = timedelta(days=90)
"""How long it is told that there was a job."""
UNFINISHED = (Job.State.WAITING, Job.State.RUNNING)
_SALT = "weir.accounts.jobs.link"

Report = Callable[[int, int | None], None]
"""`report(done, total)`: how far it is, in the kind's units; total None while it is not known.

To be called often, well within the kind's `silence`, and outside of a transaction. It raises when the job was stopped: let it pass.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """What the function of a kind gets. What it writes to `out` is the job's file; nothing written: it has none."""

    job: Job
    """With its organization, and its member (None: nobody asked) with team and user."""
    report: Report
    out: Out


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of long work.

    `do` runs in the organization's scope and outside of a transaction, and returns what came of it (numbers and names, no secret;
    `rows` where the file has rows). It may run again from its beginning after a worker has died. A DomainError that it raises is
    told to who asked. `may`: may this member start it, or have what was made for `asked`, now?
    """

    name: str
    do: Callable[[Work], Mapping[str, Any]]
    may: Callable[[Member, Mapping[str, Any]], bool]
    shared_by: Action | None = None
    """Who may do this in the whole organization sees everybody's jobs of the kind; None: they are their asker's alone."""
    discard: Callable[[Job], None] | None = None
    """Called once it is over, however it ended: what the job held for its work goes."""
    silence: timedelta = timedelta(seconds=60)
    """A worker that reports nothing for so long counts as dead."""


_kinds: dict[str, Kind] = {}
_senders: list[Callable[[int, int], None]] = []


def register(kind: Kind) -> None:
    """Called when the apps are ready."""
    _kinds[kind.name] = kind


def register_sender(send: Callable[[int, int], None]) -> None:
    """`send(job_id, seconds)` tells a worker of a job: accounts itself knows no broker."""
    _senders[:] = [send]


def kind_of(name: str) -> Kind:
    """Raises JobKindUnknown."""
    if name not in _kinds:
        raise JobKindUnknown(_("There is no such kind of work."))
    return _kinds[name]


def kinds() -> tuple[str, ...]:
    return tuple(_kinds)


# ------------------------------------------------------------------------------------------------------------ starting


def start(member: Member, *, kind: str, title: str, asked: Mapping[str, Any], file_name: str = "", now: datetime) -> Job:
    """Starts the work; the same that is still unfinished is found in its place, so that a second click does nothing.

    Raises JobKindUnknown, JobForbidden, TooManyJobs.
    """
    found = kind_of(kind)
    if not found.may(member, asked):
        raise JobForbidden(_("Your role does not allow this. Ask an owner of your organization."))
    with transaction.atomic():
        # In this organization one at a time: the count below holds.
        Organization.objects.select_for_update(no_key=True).get(pk=member.organization_id)
        rows = Job.objects.filter(organization_id=member.organization_id, state__in=UNFINISHED)
        same = rows.filter(member=member, kind=kind, asked=dict(asked)).first()
        if same is not None:
            return same
        if rows.count() >= MOST_WAITING:
            raise TooManyJobs(
                _("%(count)d jobs of your organization are unfinished. Wait for one to end, or stop one.") % {"count": MOST_WAITING}
            )
        return _add(member.organization, member, kind, title, asked, file_name, now, KEPT)


def start_for(
    organization: Organization,
    *,
    kind: str,
    title: str,
    asked: Mapping[str, Any],
    file_name: str = "",
    now: datetime,
    kept: timedelta = KEPT,
) -> Job:
    """Work that nobody asked for at this moment, such as the monthly export. In the caller's transaction, if there is one."""
    kind_of(kind)
    with transaction.atomic():
        return _add(organization, None, kind, title, asked, file_name, now, kept)


def _add(
    organization: Organization,
    member: Member | None,
    kind: str,
    title: str,
    asked: Mapping[str, Any],
    file_name: str,
    now: datetime,
    kept: timedelta,
) -> Job:
    job = Job.objects.create(
        organization=organization,
        member=member,
        kind=kind,
        title=title[:200],
        asked=dict(asked),
        file_name=file_name[:200],
        expires_at=now + kept,
    )
    audit.record(
        organization,
        actor=member.user if member is not None else None,
        actor_label="schedule",
        action="job.started",
        object_type="job",
        object_id=str(job.uuid),
        data={"kind": kind},
    )
    transaction.on_commit(lambda: enqueue(job.pk), robust=True)
    return job


def enqueue(job_id: int, *, seconds: int = 3600) -> None:
    """Tells a worker, who may take `seconds` to come to it. Where the broker does not take it, the walk over jobs does it later."""
    try:
        for send in _senders:
            send(job_id, seconds)
    except Exception:
        logger.warning("a job waits for the next walk: the broker did not take it", exc_info=True, extra={"job_id": job_id})


# -------------------------------------------------------------------------------------------------------------- seeing


def seen_by(member: Member) -> QuerySet[Job]:
    """The jobs that the member may know of, the newest first: their own, and what is shared by their role."""
    shared = [kind.name for kind in _kinds.values() if kind.shared_by and permissions.reach(member, kind.shared_by) is Reach.WHOLE]
    rows = Job.objects.filter(organization_id=member.organization_id).filter(Q(member=member) | Q(kind__in=shared))
    return rows.select_related("organization", "member__user")


def find(member: Member, uuid: UUID) -> Job:
    """Raises JobNotFound, also for a job that is not the member's to know of."""
    job = seen_by(member).filter(uuid=uuid).first()
    if job is None:
        raise JobNotFound(_("There is no such job."))
    return job


def may_open(member: Member, job: Job) -> bool:
    """May the member have what was made, as their role is now? False for a kind that is not there any more."""
    kind = _kinds.get(job.kind)
    if kind is None or member.removed_at is not None or member.organization_id != job.organization_id:
        return False
    if job.member_id != member.pk and not (kind.shared_by and permissions.can(member, kind.shared_by)):
        return False
    return kind.may(member, job.asked)


def has_file(job: Job, *, now: datetime) -> bool:
    """Is there a file to fetch? Not asked of the disk."""
    return job.state == Job.State.DONE and job.file_bytes is not None and (job.expires_at is None or job.expires_at > now)


# ------------------------------------------------------------------------------------------------------------- stopping


def stop(job: Job, *, now: datetime, by: User | None = None) -> bool:
    """Ends the work; False if it was over already. A worker that is at it notices within a moment. `by` is written down."""
    with transaction.atomic():
        rows = Job.objects.filter(pk=job.pk, state__in=UNFINISHED)
        stopped = bool(rows.update(state=Job.State.STOPPED, finished_at=now, moved_at=now))
        if stopped and by is not None:
            data = {"kind": job.kind}
            audit.record(job.organization, actor=by, action="job.stopped", object_type="job", object_id=str(job.uuid), data=data)
    job.refresh_from_db()
    if stopped:
        over(job)
    return stopped


def over(job: Job) -> None:
    """After the end of a job: what it held goes, and the organization's next gets its turn."""
    kind = _kinds.get(job.kind)
    if kind is not None and kind.discard is not None:
        kind.discard(job)
    waiting = Job.objects.filter(organization_id=job.organization_id, state=Job.State.WAITING).order_by("pk")
    next_id = waiting.values_list("pk", flat=True).first()
    if next_id is not None:
        transaction.on_commit(lambda: enqueue(next_id), robust=True)


def remove_file(job: Job) -> None:
    """The file goes; that there was one stays told."""
    job_files.remove(job.uuid)
    Job.objects.filter(pk=job.pk).update(file_bytes=None)


# ---------------------------------------------------------------------------------------------------------------- links


def link(job: Job, member: Member) -> str:
    """The token of `/files/<token>`: it opens the job's file for this member, for LINK_KEPT. A secret: never logged or stored."""
    return signing.TimestampSigner(salt=_SALT).sign_object([str(job.uuid), str(member.uuid)])


def opened(token: str) -> tuple[Job, Member]:
    """The job and the member of a link, if that still holds. Enters no scope: the caller goes on in the organization's.

    Raises LinkExpired, and LinkInvalid: one answer for a wrong token, a job that is gone and a right that was lost.
    """
    signer = signing.TimestampSigner(salt=_SALT)
    try:
        job_uuid, member_uuid = signer.unsign_object(token)
    except (signing.BadSignature, ValueError, TypeError):
        raise LinkInvalid(_("This link does not work.")) from None
    with scope.everything():
        job = Job.objects.select_related("organization").filter(uuid=job_uuid).first()
        rows = Member.objects.select_related("organization", "team", "user")
        member = rows.filter(uuid=member_uuid, removed_at=None, user__is_active=True).first()
        if job is None or member is None or not may_open(member, job):
            raise LinkInvalid(_("This link does not work."))
    try:
        signer.unsign(token, max_age=LINK_KEPT)
    except signing.SignatureExpired:
        raise LinkExpired(_("This link has expired."), slug=job.organization.slug) from None
    return job, member


def check_file(job: Job, *, now: datetime) -> None:
    """Raises JobOver where there is no file to fetch (any more), with what to do."""
    if not has_file(job, now=now) or not job_files.path(job.uuid).is_file():
        if job.state in UNFINISHED:
            raise JobOver(_("The file is not ready yet. It is being made."))
        raise JobOver(_("The file is not there any more. Start the export again."))
