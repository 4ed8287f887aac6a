"""The monthly export to finance: after a month has ended its files are made, once, and each recipient gets a link, once.

Recipients are members who may see the money, never bare addresses: a link opens its file by the right of the member it was made
for, asked anew at every click, and an address has no right that could end. The mail holds no file: mailboxes forward and keep.

Every step may run twice and beside itself: months are made under a lock on the organization's row of settings, with a unique row
for each; a mail is sent under the lock of its month's row, which then names who was told.
"""

import logging
from collections.abc import Collection, Sequence
from datetime import date, datetime, timedelta
from email.utils import parseaddr
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.mail import EmailMessage
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import translation
from django.utils.translation import gettext as _

from accounts import audit, jobs, permissions
from accounts.models import Job, Member, Organization, User
from accounts.permissions import Action
from billing import csvfile, monthly_files, reports
from billing.errors import MonthlyRefused
from billing.models import MonthlyExport, MonthlySend
from billing.monthly_files import FILES

logger = logging.getLogger(__name__)

GRACE = timedelta(hours=6)
"""After a month's end: what ran over it is booked, its last period is closed and invoiced."""
KEPT = timedelta(days=62)
"""The file outlives its link: who comes late signs in and finds it."""
MOST_BEHIND = 12
"""Months that are caught up."""
MOST_TRIES = 6
AGAIN = timedelta(minutes=20)
"""Until the second try; twice as long until each further one."""
SHOWN = 24
OPEN = (MonthlySend.State.MAKING, MonthlySend.State.TELLING)


def of(organization: Organization) -> MonthlyExport:
    """The organization's settings; of who has none, a row that is not stored: off, with all files."""
    row = MonthlyExport.objects.filter(organization=organization).first()
    return row or MonthlyExport(organization=organization, files=list(FILES))


def candidates(organization: Organization) -> list[Member]:
    """Who can be a recipient: members who see the organization's money and can sign in, by name."""
    rows = Member.objects.for_organization(organization).current().filter(user__is_active=True)
    found = [row for row in rows.select_related("user", "team", "organization") if permissions.can(row, Action.SEE_MONEY)]
    return sorted(found, key=lambda row: (str(row).casefold(), row.pk))


def history(organization: Organization) -> Sequence[MonthlySend]:
    return list(MonthlySend.objects.filter(organization=organization).select_related("job").order_by("-month")[:SHOWN])


def save(
    organization: Organization, *, is_on: bool, files: Collection[str], recipients: Collection[UUID], by: User | None, now: datetime
) -> MonthlyExport:
    """Sets it up. Switched on, it begins with the month that runs. Raises MonthlyRefused; then nothing is changed."""
    if unknown := set(files) - set(FILES):
        raise MonthlyRefused(_("There is no such file: %(names)s.") % {"names": ", ".join(sorted(unknown))[:80]})
    known = {row.uuid for row in candidates(organization)}
    if set(recipients) - known:
        raise MonthlyRefused(_("A recipient is a member who may see the money. One of those chosen is not, or not any more."))
    if is_on and not files:
        raise MonthlyRefused(_("Choose at least one file."))
    if is_on and not recipients:
        raise MonthlyRefused(_("Choose at least one recipient."))
    with transaction.atomic():
        MonthlyExport.objects.bulk_create([MonthlyExport(organization=organization)], ignore_conflicts=True)
        row = MonthlyExport.objects.select_for_update(no_key=True).get(organization=organization)
        if is_on and not row.is_on:
            row.since = _month_of(organization, now)
        row.is_on, row.files, row.recipients = is_on, [name for name in FILES if name in files], sorted(set(recipients))
        row.save()
        audit.record(
            organization,
            actor=by,
            action="monthly_export.changed",
            object_type="organization",
            object_id=organization.slug,
            data={"is_on": is_on, "files": row.files, "recipients": [str(one) for one in row.recipients]},
        )
    return row


def try_again(send: MonthlySend, *, now: datetime) -> bool:
    """Makes the file anew and tells who was not told; False for one that is under way or done."""
    with transaction.atomic():
        row = MonthlySend.objects.select_for_update(no_key=True).get(pk=send.pk)
        if row.state not in (MonthlySend.State.FAILED, MonthlySend.State.NOBODY):
            return False
        row.tries, row.ended_at = 0, None
        _make(row, now)
    return True


# --------------------------------------------------------------------------------------------------------------- walks


def advance(organization: Organization, *, now: datetime) -> int:
    """Begins the months that are over, and takes those under way a step on; how many mails were sent."""
    with transaction.atomic():
        row = MonthlyExport.objects.select_for_update(no_key=True).filter(organization=organization, is_on=True).first()
        if row is not None:
            for month in _due(organization, row, now):
                send = MonthlySend(organization=organization, month=month, files=row.files)
                _make(send, now)
    sent = 0
    for pk in MonthlySend.objects.filter(organization=organization, state__in=OPEN).order_by("month").values_list("pk", flat=True):
        _look_at_job(pk, now)
        refused: set[UUID] = set()
        while (told := _tell_one(pk, now, refused)) is not None:
            sent += told
    return sent


def _due(organization: Organization, row: MonthlyExport, now: datetime) -> list[date]:
    """Months that are over and have no row, the oldest first."""
    last = _month_of(organization, now - GRACE)
    months, month = [], row.since or last
    while month < last:
        months.append(month)
        month = (month + timedelta(days=31)).replace(day=1)
    made = set(MonthlySend.objects.filter(organization=organization).values_list("month", flat=True))
    return [month for month in months[-MOST_BEHIND:] if month not in made]


def _month_of(organization: Organization, now: datetime) -> date:
    return reports.day_of(now, ZoneInfo(organization.timezone)).replace(day=1)


def _make(send: MonthlySend, now: datetime) -> None:
    """Starts the job, in the caller's transaction."""
    organization = send.organization
    send.job = jobs.start_for(
        organization,
        kind=monthly_files.KIND,
        title=_("Monthly export, %(month)s") % {"month": f"{send.month:%Y-%m}"},
        asked={"month": f"{send.month:%Y-%m}", "files": list(send.files)},
        file_name=csvfile.file_name("weir", organization.slug, f"{send.month:%Y-%m}").removesuffix(".csv") + ".zip",
        now=now,
        kept=KEPT,
    )
    send.state, send.error, send.next_at = MonthlySend.State.MAKING, "", None
    send.save()


def _look_at_job(pk: int, now: datetime) -> None:
    """MAKING goes on to TELLING when the file is there; a job that failed is begun anew, later."""
    with transaction.atomic():
        send = _locked(pk, MonthlySend.State.MAKING)
        if send is None or (send.next_at is not None and send.next_at > now):
            return
        job = send.job
        if job is not None and job.state in jobs.UNFINISHED:
            return
        if job is not None and jobs.has_file(job, now=now):
            send.state, send.tries, send.next_at = MonthlySend.State.TELLING, 0, None
            send.save()
        elif job is not None and job.state == Job.State.STOPPED:
            _end(send, MonthlySend.State.FAILED, now, _("It was stopped."))
        elif send.next_at is None:
            _later(send, now, job.error if job is not None else _("Its file was removed."))
        else:
            _make(send, now)


def _tell_one(pk: int, now: datetime, refused: set[UUID]) -> int | None:
    """Sends one mail, to who was not told yet; 1, or 0 where the mail server refused it: then `refused` names the member, who is
    tried again later and keeps nobody from theirs. None when there is none to send now. Who holds the row's lock sends."""
    with transaction.atomic():
        send = _locked(pk, MonthlySend.State.TELLING)
        if send is None or (send.next_at is not None and send.next_at > now):
            return None
        row = of(send.organization)
        wanted = set(row.recipients) if row.is_on else set()
        told = {one["member"] for one in send.told}
        waiting = [one for one in candidates(send.organization) if one.uuid in wanted and str(one.uuid) not in told]
        member = next((one for one in waiting if one.uuid not in refused), None)
        if member is None:
            if waiting:
                _later(send, now, _("The mail server did not take the mail to %(name)s.") % {"name": waiting[0]})
            else:
                _end(send, MonthlySend.State.SENT if send.told else MonthlySend.State.NOBODY, now)
            return None
        try:
            _mail(send, member, now).send()
        except OSError as error:
            logger.warning("monthly export not mailed", extra={"send": str(send.uuid), "error": type(error).__name__})
            refused.add(member.uuid)
            return 0
        send.told = [*send.told, {"member": str(member.uuid), "name": str(member), "at": now.isoformat()}]
        send.save()
    return 1


def _locked(pk: int, state: str) -> MonthlySend | None:
    rows = MonthlySend.objects.select_for_update(skip_locked=True, no_key=True, of=("self",)).select_related("organization", "job")
    return rows.filter(pk=pk, state=state).first()


def _later(send: MonthlySend, now: datetime, error: str) -> None:
    send.tries += 1
    if send.tries >= MOST_TRIES:
        _end(send, MonthlySend.State.FAILED, now, error)
        return
    send.error, send.next_at = error[:300], now + AGAIN * 2 ** (send.tries - 1)
    send.save()


def _end(send: MonthlySend, state: str, now: datetime, error: str = "") -> None:
    send.state, send.ended_at, send.error, send.next_at = state, now, error[:300], None
    send.save()


def _mail(send: MonthlySend, member: Member, now: datetime) -> EmailMessage:
    """With a link of the member's own. Its Message-ID is the same in every try."""
    assert member.user is not None
    assert send.job is not None
    organization = send.organization
    domain = parseaddr(settings.DEFAULT_FROM_EMAIL)[1].rpartition("@")[2] or "weir.invalid"
    zone = ZoneInfo(organization.timezone)
    with translation.override(member.user.language or settings.LANGUAGE_CODE):
        about = {
            "organization": organization,
            "month": f"{send.month:%Y-%m}",
            "files": [FILES[name] for name in send.files],
            "link": f"{settings.PUBLIC_URL.rstrip('/')}/files/{jobs.link(send.job, member)}",
            "link_until": f"{(now + jobs.LINK_KEPT).astimezone(zone):%Y-%m-%d %H:%M %Z}",
            "jobs_url": f"{settings.PUBLIC_URL.rstrip('/')}/o/{organization.slug}/jobs",
            "invoices_url": f"{settings.PUBLIC_URL.rstrip('/')}/o/{organization.slug}/invoices#monthly",
        }
        return EmailMessage(
            subject=" ".join((_("Export of %(month)s · %(name)s") % {"month": about["month"], "name": organization.name}).split()),
            body=render_to_string("emails/monthly_export.txt", about),
            to=[member.user.email],
            headers={"Message-ID": f"<monthly-{send.uuid}-{member.uuid}@{domain}>", "Auto-Submitted": "auto-generated"},
        )
