"""Files that jobs have made, on their way out: to who is signed in, and to who holds a signed link. Doors."""

from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import BinaryIO
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from accounts import audit, context, job_files, jobs, tenancy
from accounts.errors import JobNotFound, JobOver, LinkExpired, LinkInvalid
from accounts.models import Job, Member
from accounts.permissions import Action
from config import scope
from config.clock import utc_now


@require_safe
@tenancy.page(Action.SEE_USAGE)
def job_file(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponseBase:
    """404 for a job that is not the member's to know of, 403 where the right was lost since, 410 where there is no file."""
    now = utc_now()
    try:
        job = jobs.find(member, uuid)
    except JobNotFound as error:
        raise Http404 from error
    if not jobs.may_open(member, job):
        raise PermissionDenied
    try:
        return _file(request, job, member, now, by="page")
    except JobOver as error:
        page = {**context.frame(member, "jobs", now), "trouble": error.message}
        return render(request, "quotas/file_over.html", page, status=error.status)


@never_cache
@require_safe
def signed_file(request: HttpRequest, token: str) -> HttpResponseBase:
    """What a mail's link opens, without signing in: the right of the member it was made for is asked anew."""
    try:
        job, member = jobs.opened(token)
        with scope.organization(job.organization_id):
            return _file(request, job, member, utc_now(), by="link")
    except LinkExpired as error:
        return _told(request, _("This link has expired"), error, slug=str(error.facts["slug"]))
    except LinkInvalid as error:
        return _told(request, _("This link does not work"), error)
    except JobOver as error:
        return _told(request, _("The file is not there any more"), error, slug=job.organization.slug)


def _told(request: HttpRequest, title: str, error: LinkInvalid | JobOver, slug: str = "") -> HttpResponse:
    """A page that says the next step; it names no organization to who has no right in one."""
    answer = render(request, "quotas/link_over.html", {"title": title, "slug": slug}, status=error.status)
    answer.headers["Referrer-Policy"] = "no-referrer"
    return answer


def _file(request: HttpRequest, job: Job, member: Member, now: datetime, *, by: str) -> HttpResponseBase:
    """Raises JobOver."""
    jobs.check_file(job, now=now)
    path = job_files.path(job.uuid)
    try:
        file = path.open("rb")
    except OSError:
        raise JobOver(_("The file is not there any more. Start the export again.")) from None
    headers = {
        "Content-Disposition": f'attachment; filename="{job.file_name}"',
        "Content-Length": str(path.stat().st_size),
        "Cache-Control": "private, no-store",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        # A proxy that gathers the answer would keep the client waiting, and all of it in memory.
        "X-Accel-Buffering": "no",
    }
    kind = "application/zip" if job.file_name.endswith(".zip") else "text/csv; charset=utf-8"
    if request.method == "HEAD":
        file.close()
        return HttpResponse(content_type=kind, headers=headers)
    audit.record(
        job.organization,
        actor=member.user,
        action="job.fetched",
        object_type="job",
        object_id=str(job.uuid),
        data={"kind": job.kind, "by": by},
    )
    content = _Async(file) if isinstance(request, ASGIRequest) else _Sync(file)
    return StreamingHttpResponse(content, content_type=kind, headers=headers)


class _Pieces:
    """The file, piece by piece. The answer closes it, also one whose client left before the first piece."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def close(self) -> None:
        self._file.close()


class _Sync(_Pieces):
    def __iter__(self) -> Iterator[bytes]:
        while piece := self._file.read(job_files.PIECE_BYTES):
            yield piece


class _Async(_Pieces):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Read in threads, when the client has taken the piece before."""
        read = sync_to_async(self._file.read, thread_sensitive=False)
        while piece := await read(job_files.PIECE_BYTES):
            yield piece
