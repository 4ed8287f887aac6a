"""How a worker does a job: it takes the lease, reports, and ends it. No job is done by two workers at once.

The lease is `moved_at`: who holds it knows its exact value, and writes a new one with every report where it still is that value.
A worker that is silent for longer has lost it; whoever takes the job up writes a value of its own, and the first one's next report
finds that and ends its work.
"""

import logging
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import Q
from django.utils.translation import gettext as _

from accounts import job_files, jobs
from accounts.job_files import Out
from accounts.jobs import Work
from accounts.models import Job, Organization
from config import scope, walks
from config.clock import utc_now
from config.errors import DomainError

logger = logging.getLogger(__name__)

MOST_RUNNING = 2
"""Of one organization at once."""
MOST_ATTEMPTS = 3
LEASE = timedelta(seconds=60)
"""The shortest; a kind may have a longer one (`jobs.Kind.silence`)."""
UNTOLD = timedelta(seconds=20)
"""So long after its start a waiting job is told to the workers again."""
REPORT_SECONDS = 0.5
PAGE = 500


class Ended(Exception):
    """The job is not this worker's any more: it was stopped, or somebody else has taken it up."""


class Lease:
    """One worker's hold on one job."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done, self.total = job.done, job.total
        self._moved_at = job.moved_at
        self._next = 0.0

    def report(self, done: int, total: int | None = None) -> None:
        """See `jobs.Report`. Raises Ended."""
        self.done, self.total = done, total
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + REPORT_SECONDS
        moved_at = max(utc_now(), self._moved_at + timedelta(microseconds=1))
        rows = Job.objects.filter(pk=self.job.pk, state=Job.State.RUNNING, moved_at=self._moved_at)
        if not rows.update(moved_at=moved_at, done=done, total=total):
            raise Ended
        self._moved_at = moved_at

    def finish(self, out: Out, result: Mapping[str, Any]) -> None:
        """DONE, with the file in its place. Raises Ended; then nothing is in its place. Raises JobBroken."""
        with transaction.atomic():
            held = self._held()
            told = dict(result)
            if out.is_begun:
                told |= {"sha256": out.sha256}
                out.place()
            held.state, held.result, held.error = Job.State.DONE, told, ""
            held.file_bytes = out.bytes if out.is_begun else None
            held.done = self.done
            held.total = self.done if self.total is None else self.total
            self._end(held)

    def fail(self, message: str) -> None:
        """FAILED, with a sentence for who asked. Raises Ended."""
        with transaction.atomic():
            held = self._held()
            held.state, held.error, held.result = Job.State.FAILED, message[:300], {}
            self._end(held)

    def _held(self) -> Job:
        rows = Job.objects.select_for_update(no_key=True).filter(pk=self.job.pk, state=Job.State.RUNNING, moved_at=self._moved_at)
        held = rows.first()
        if held is None:
            raise Ended
        return held

    def _end(self, held: Job) -> None:
        held.finished_at = held.moved_at = utc_now()
        held.save()
        self.job = held


def run(job_id: int) -> str:
    """Takes the job up and does it; its state after that, "" for a job that is not there.

    Raises what means the database itself: then the lease runs out, and the job is taken up again.
    """
    with scope.everything():
        organization_id = Job.objects.filter(pk=job_id).values_list("organization_id", flat=True).first()
    if organization_id is None:
        return ""
    with scope.organization(organization_id):
        job = claim(job_id)
        if job is not None:
            _do(job)
        rows = Job.objects.filter(pk=job_id)
        return rows.values_list("state", flat=True).first() or ""


def claim(job_id: int) -> Job | None:
    """The job for this worker to do: RUNNING from now on. None: it is over, somebody is at it, or enough others run already."""
    now = utc_now()
    with transaction.atomic():
        # Workers of one organization's jobs come here one after the other.
        job = Job.objects.filter(pk=job_id).first()
        if job is None:
            return None
        Organization.objects.select_for_update(no_key=True).get(pk=job.organization_id)
        job.refresh_from_db()
        is_dead = job.state == Job.State.RUNNING and job.moved_at < now - _lease(job.kind)
        if job.state != Job.State.WAITING and not is_dead:
            return None
        running = Job.objects.filter(organization_id=job.organization_id, state=Job.State.RUNNING, moved_at__gte=now - LEASE)
        if running.count() >= MOST_RUNNING:
            return None
        attempts = int(job.result.get("attempts", 0)) + 1
        job.moved_at, job.done, job.total = max(now, job.moved_at + timedelta(microseconds=1)), 0, None
        if attempts > MOST_ATTEMPTS:
            job.state, job.finished_at, job.result = Job.State.FAILED, now, {}
            job.error = _("It was begun %(count)d times and never ended. Choose less at once, or tell your operator.") % {
                "count": MOST_ATTEMPTS
            }
        else:
            job.state, job.result = Job.State.RUNNING, {"attempts": attempts}
        job.save()
    if job.state == Job.State.FAILED:
        job_files.remove(job.uuid)
        jobs.over(job)
        return None
    return Job.objects.select_related("organization", "member__user", "member__team", "member__organization").get(pk=job_id)


def _lease(kind: str) -> timedelta:
    return jobs.kind_of(kind).silence if kind in jobs.kinds() else LEASE


def _do(job: Job) -> None:
    lease = Lease(job)
    out = Out(job.uuid, int(job.result["attempts"]))
    try:
        kind = jobs.kind_of(job.kind)
        if job.member is not None and (job.member.removed_at is not None or not kind.may(job.member, job.asked)):
            lease.fail(_("Who asked for it may not have it any more."))
        else:
            lease.finish(out, kind.do(Work(job, lease.report, out)))
    except Ended:
        logger.info("a job is not ours any more", extra={"job": str(job.uuid)})
        return
    except (OperationalError, InterfaceError):
        raise
    except DomainError as error:
        _fail(lease, error.message)
    except Exception:
        logger.exception("a job failed", extra={"job": str(job.uuid), "kind": job.kind})
        _fail(lease, _("It broke off by a fault on the server. Start it again; if it breaks off again, tell your operator."))
    finally:
        out.close()
    if lease.job.state in (Job.State.DONE, Job.State.FAILED):
        jobs.over(lease.job)


def _fail(lease: Lease, message: str) -> None:
    try:
        lease.fail(message)
    except Ended:
        logger.info("a job failed after it was stopped", extra={"job": str(lease.job.uuid)})


# --------------------------------------------------------------------------------------------------------------- walks


def take_up(now: datetime) -> int:
    """Tells the workers of jobs that wait and of those whose worker is silent; how many."""
    waits = Q(state=Job.State.WAITING, moved_at__lt=now - UNTOLD)
    is_dead = Q(state=Job.State.RUNNING, moved_at__lt=now - LEASE)
    with scope.everything():
        due = list(Job.objects.filter(waits | is_dead).order_by("pk").values_list("pk", flat=True)[:PAGE])
    for job_id in due:
        # The next walk tells it again.
        jobs.enqueue(job_id, seconds=25)
    return len(due)


def forget(now: datetime) -> int:
    """Removes files that are past their time or whose asker may not have them any more, what no job knows, and old jobs."""
    removed = 0
    with scope.everything():
        rows = Job.objects.filter(state=Job.State.DONE).exclude(file_bytes=None)
        due = list(rows.values_list("organization_id", flat=True).order_by("organization_id").distinct())
    for organization_id in due:
        with walks.apart(organization_id):
            removed += _forget_files(organization_id, now)
    with scope.everything():
        known = set(map(str, Job.objects.filter(Q(state__in=jobs.UNFINISHED) | ~Q(file_bytes=None)).values_list("uuid", flat=True)))
        Job.objects.filter(finished_at__lt=now - jobs.REMEMBERED).delete()
    for path, name in job_files.names():
        # A file of a moment ago may be of a job that is newer than the list.
        if name not in known and path.stat().st_mtime < now.timestamp() - 3600:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _forget_files(organization_id: int, now: datetime) -> int:
    removed = 0
    rows = Job.objects.filter(organization_id=organization_id, state=Job.State.DONE).exclude(file_bytes=None)
    for job in rows.select_related("member__user", "member__team", "member__organization"):
        is_over = job.expires_at is not None and job.expires_at <= now
        if is_over or (job.member is not None and not jobs.may_open(job.member, job)):
            jobs.remove_file(job)
            removed += 1
    return removed
