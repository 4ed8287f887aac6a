"""Many sign-ins from files, as a job: each is shown to its upstream, one after the other, and told of on its own.

What was uploaded waits sealed in the data folder, and goes when the job is over. What became of each sign-in is noted as soon as
it is known: a worker that takes the job up goes on behind the last one, and spends no refresh token twice.
"""

import base64
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils.translation import gettext as _

from accounts import jobs, permissions
from accounts.errors import JobBroken
from accounts.jobs import Kind, Work
from accounts.models import Job, Member
from accounts.permissions import Action
from config import sealing
from config.clock import utc_now
from routing import joining, upkeep
from routing.joining import Outcome

KIND = "credential_files"
AT_ONCE = 5
"""So many sign-ins are taken in while the page waits; more are a job."""
MOST_TOLD = 500
_FIELD = "files"
ABANDONED_SECONDS = 24 * 3600


def register() -> None:
    jobs.register(
        # Of one sign-in three calls may each take half a minute.
        Kind(KIND, _do, _may, shared_by=Action.MANAGE_POOL, discard=_discard, silence=timedelta(seconds=150))
    )


def are_many(files: Sequence[tuple[str, bytes]]) -> bool:
    return any(number >= AT_ONCE for number, _found in enumerate(joining.found_in(files)))


def start(
    member: Member,
    files: Sequence[tuple[str, bytes]],
    *,
    plan: str | None,
    accept_terms: bool,
    place: Mapping[str, int],
    now: datetime,
) -> Job:
    """Raises TermsNotAccepted, AccountError, JobForbidden, TooManyJobs, JobBroken; then nothing is kept."""
    joining.check_files(member.organization, plan=plan, accept_terms=accept_terms, by=member.user, now=now)
    upload, count = uuid4(), sum(1 for _found in joining.found_in(files))
    _keep(upload, files)
    try:
        return jobs.start(
            member,
            kind=KIND,
            title=_("Import of %(count)d sign-ins") % {"count": count},
            asked={"upload": str(upload), "count": count, "plan": plan, "place": dict(place)},
            now=now,
        )
    except Exception:
        _remove(upload)
        raise


def _may(member: Member, asked: Mapping[str, Any]) -> bool:
    return permissions.can(member, Action.MANAGE_POOL)


def _do(work: Work) -> Mapping[str, Any]:
    job, asked = work.job, work.job.asked
    upload, organization, total = UUID(asked["upload"]), job.organization, int(asked["count"])
    by = job.member.user if job.member is not None else None
    files = _kept(upload)
    told = _told(upload)
    work.report(len(told), total)
    for number, found in enumerate(joining.found_in(files)):
        if number < len(told):
            continue
        outcome = joining.add_found(organization, found, plan=asked["plan"], by=by, now=utc_now())
        if outcome.joined is not None and asked["place"]:
            upkeep.change(outcome.joined.account, asked["place"], by=by)
        told.append(_words(outcome))
        _note(upload, told[-1])
        work.report(len(told), total)
    refused = sum(1 for one in told if one["reason"])
    # What was refused first: that is what somebody has to do something about.
    shown = sorted(told, key=lambda one: not one["reason"])[:MOST_TOLD]
    return {"joined": len(told) - refused, "refused": refused, "outcomes": shown}


def _words(outcome: Outcome) -> dict[str, Any]:
    joined = outcome.joined
    return {
        "source": outcome.source,
        "label": joined.account.label if joined is not None else "",
        "is_new": joined is not None and joined.is_new,
        "reason": outcome.reason,
    }


# --------------------------------------------------------------------------------------------------------------- files


def _folder() -> Path:
    return Path(settings.WEIR_VAR) / "imports"


def _path(upload: UUID) -> Path:
    return _folder() / str(upload)


def _notes(upload: UUID) -> Path:
    return _folder() / f"{upload}.told"


def _keep(upload: UUID, files: Sequence[tuple[str, bytes]]) -> None:
    """Sealed, and bound to this upload. Raises JobBroken."""
    text = json.dumps([[name, base64.b64encode(content).decode()] for name, content in files])
    try:
        _folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_abandoned()
        file = os.open(_path(upload), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(sealing.seal(text, row=upload, field=_FIELD))
    except OSError as error:
        _remove(upload)
        raise JobBroken(
            _("The server could not keep the files until they are read. Nothing was imported. Tell your operator.")
        ) from error


def _kept(upload: UUID) -> list[tuple[str, bytes]]:
    """Raises JobBroken, sealing.Broken."""
    try:
        text = _path(upload).read_text()
    except OSError as error:
        raise JobBroken(_("The files that were given are not there any more. Give them again.")) from error
    return [(name, base64.b64decode(content)) for name, content in json.loads(sealing.unseal(text, row=upload, field=_FIELD))]


def _note(upload: UUID, words: Mapping[str, Any]) -> None:
    """What became of a sign-in: names and reasons, no secret."""
    file = os.open(_notes(upload), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as out:
        out.write(json.dumps(words) + "\n")


def _told(upload: UUID) -> list[dict[str, Any]]:
    """What was noted by a worker before. A line that was cut off by its end counts as none."""
    try:
        lines = _notes(upload).read_text().split("\n")[:-1]
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines]


def _discard(job: Job) -> None:
    _remove(UUID(job.asked["upload"]))


def _remove(upload: UUID) -> None:
    _path(upload).unlink(missing_ok=True)
    _notes(upload).unlink(missing_ok=True)


def _forget_abandoned() -> None:
    """What a process left that died between keeping the files and starting the job."""
    for path in _folder().iterdir():
        if path.stat().st_mtime < time.time() - ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
