"""The monthly export: made once after a month's end, mailed once to each recipient as a link, caught up, failed in words."""

import csv
import io
import re
import threading
import zipfile
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.core import mail
from django.db import connection
from django.test import Client

from accounts import job_files, job_running, jobs, members
from accounts.models import AuditEvent, Job, Member, Organization
from billing import monthly_export, statement, subscriptions, tasks, usage, usage_report
from billing.errors import MonthlyRefused
from billing.models import MonthlyExport, MonthlySend
from billing.monthly_files import FILES
from tests import factories
from tests.billing.plans import CREDIT, plan
from tests.billing.usage_events import event_for

pytestmark = pytest.mark.django_db(transaction=True)

OCTOBER = datetime(2026, 10, 12, 9, tzinfo=UTC)
"""When it is switched on: the first month that is sent is October."""
ENDED = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
"""In Berlin, October is over for 6.5 hours."""


class World:
    """An organization in Berlin with two people who see its money, use in October and at the first moment of November."""

    def __init__(self) -> None:
        with time_machine.travel(OCTOBER, tick=False):
            self.organization: Organization = factories.organization(plan=None, timezone="Europe/Berlin")
            self.subscription = subscriptions.start(
                self.organization, plan(100, price="20.00", overage="invoice", name="Team"), now=OCTOBER - timedelta(days=40)
            )
            self.owner = factories.member(self.organization, role="owner")
            self.finance = factories.member(self.organization, role="finance")
            self.developer = factories.member(self.organization)
            self.key = factories.api_key(self.developer).row
            for number, at in enumerate(
                (OCTOBER, datetime(2026, 10, 31, 22, 59, 59, tzinfo=UTC), datetime(2026, 10, 31, 23, 0, tzinfo=UTC))
            ):
                period = subscriptions.period_of(self.subscription, at).start
                amount = (number + 1) * CREDIT + 1
                usage.record(
                    self.organization.pk,
                    [event_for(self.key, credits=amount, funds=(amount, 0, 0, 0), admitted_at=at, period_start=period)],
                )

    def switch_on(self, *recipients: Member, files: tuple[str, ...] = tuple(FILES), now: datetime = OCTOBER) -> MonthlyExport:
        people = recipients or (self.finance,)
        return monthly_export.save(
            self.organization, is_on=True, files=files, recipients=[one.uuid for one in people], by=self.owner.user, now=now
        )

    def advance(self, now: datetime) -> int:
        with time_machine.travel(now, tick=False):
            return monthly_export.advance(self.organization, now=now)

    def make(self, now: datetime) -> list[str]:
        """Does the jobs that wait, as a worker would; their states after that."""
        waiting = Job.objects.filter(organization=self.organization, state="waiting").order_by("pk")
        with time_machine.travel(now, tick=False):
            return [job_running.run(pk) for pk in waiting.values_list("pk", flat=True)]

    def sends(self) -> list[MonthlySend]:
        return list(MonthlySend.objects.filter(organization=self.organization).order_by("month"))


@pytest.fixture
def world() -> World:
    return World()


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_after_a_months_end_each_recipient_gets_a_link_to_its_files_once(world: World) -> None:
    """J: the sums of the file are those of the page, to the last digit."""
    world.switch_on(world.finance, world.owner)
    assert world.advance(ENDED - timedelta(hours=2)) == 0, "the month is over, but what ran over it may not be booked"
    assert world.sends() == []
    assert world.advance(ENDED) == 0
    (send,) = world.sends()
    assert (send.month, send.state) == (date(2026, 10, 1), "making")
    assert world.make(ENDED) == ["done"]
    assert world.advance(ENDED) == 2
    assert world.advance(ENDED) == 0
    assert world.advance(ENDED + timedelta(days=3)) == 0
    (send,) = world.sends()
    assert (send.state, send.ended_at, [one["name"] for one in send.told]) == (
        "sent", ENDED, sorted([str(world.finance), str(world.owner)], key=str.casefold),
    )  # fmt: skip
    assert world.finance.user is not None
    mails = {message.to[0]: message for message in mail.outbox}
    assert len(mail.outbox) == len(mails) == 2
    message = mails[world.finance.user.email]
    assert not message.attachments
    assert message.subject == f"Export of 2026-10 · {world.organization.name}"
    links = re.findall(r"\S+/files/(\S+)", str(message.body))
    assert len(links) == 1
    assert "2026-11-15 06:30 CET" in str(message.body)

    with time_machine.travel(ENDED, tick=False):
        answer = Client().get(f"/files/{links[0]}")
        assert answer.status_code == 200
        content = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
    assert answer["content-type"] == "application/zip"
    assert answer["content-disposition"].endswith('-2026-10.zip"')
    archive = zipfile.ZipFile(io.BytesIO(content))
    slug = world.organization.slug
    files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert sorted(files) == [f"{slug}-{name}-2026-10-01-2026-10-31.csv" for name in ("invoice-lines", "ledger", "usage-by-member")]
    *rows, total = records(files[f"{slug}-usage-by-member-2026-10-01-2026-10-31.csv"])
    # What was used at the first moment of November, Berlin time, is not in it.
    assert (total["record"], total["credits"]) == ("total", "3.000002")
    assert [row["credits"] for row in rows] == ["3.000002"]
    *entries, closing = records(files[f"{slug}-ledger-2026-10-01-2026-10-31.csv"])
    assert closing["used"] == "3.000002"
    assert {entry["record"] for entry in entries} == {"entry"}
    assert send.job is not None
    assert send.job.result["rows"] == len(rows) + len(entries)
    chosen = usage_report.month("2026-10", statement.ZoneInfo("Europe/Berlin"))
    with time_machine.travel(ENDED, tick=False):
        report = usage_report.report(monthly_sight(world), "member", chosen, now=ENDED)
    assert report.total.credits == 3_000_002


def monthly_sight(world: World) -> Any:
    from billing import labels

    return labels.sight(world.finance)


def test_months_that_were_missed_are_caught_up_one_mail_each(world: World) -> None:
    world.switch_on()
    later = datetime(2027, 1, 5, tzinfo=UTC)
    world.advance(later)
    assert [f"{send.month:%Y-%m}" for send in world.sends()] == ["2026-10", "2026-11", "2026-12"]
    assert world.make(later) == ["done", "done", "done"]
    assert world.advance(later) == 3
    assert [message.subject[:17] for message in mail.outbox] == ["Export of 2026-10", "Export of 2026-11", "Export of 2026-12"]


def test_two_workers_at_once_make_one_month_and_send_one_mail(world: World) -> None:
    world.switch_on(world.finance, world.owner)

    def together() -> int:
        sent: list[int] = []
        barrier = threading.Barrier(4)

        def body() -> None:
            try:
                barrier.wait(20)
                sent.append(monthly_export.advance(world.organization, now=ENDED))
            finally:
                connection.close()

        threads = [threading.Thread(target=body) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(sent) == 4
        return sum(sent)

    assert together() == 0
    assert len(world.sends()) == Job.objects.filter(organization=world.organization).count() == 1
    assert world.make(ENDED) == ["done"]
    assert together() == 2
    assert sorted(message.to[0] for message in mail.outbox) == sorted(
        one.user.email for one in (world.finance, world.owner) if one.user
    )


def test_it_is_off_until_it_is_switched_on_and_begins_with_the_month_that_runs(world: World) -> None:
    assert not monthly_export.of(world.organization).is_on
    assert world.advance(ENDED) == 0
    assert world.sends() == []
    world.switch_on(now=ENDED)
    assert world.advance(ENDED + timedelta(days=1)) == 0
    assert world.sends() == [], "October was over before it was switched on"
    monthly_export.save(world.organization, is_on=False, files=[], recipients=[], by=world.owner.user, now=ENDED)
    assert world.advance(datetime(2026, 12, 2, tzinfo=UTC)) == 0
    assert world.sends() == []
    world.switch_on(now=datetime(2027, 2, 3, tzinfo=UTC))
    world.advance(datetime(2027, 3, 2, tzinfo=UTC))
    assert [f"{send.month:%Y-%m}" for send in world.sends()] == ["2027-02"], "what passed while it was off is not sent"


def test_what_cannot_be_set_up_is_refused_and_nothing_changes(world: World) -> None:
    row = world.switch_on()
    stranger = factories.member(factories.organization(plan=None), role="owner")
    of_team = factories.member(world.organization, role="finance", team=factories.team(world.organization))
    for files, people in (
        ((), [world.finance]),
        (("ledger", "secrets"), [world.finance]),
        (("ledger",), []),
        (("ledger",), [world.developer]),
        (("ledger",), [of_team]),
        (("ledger",), [world.finance, stranger]),
    ):
        with pytest.raises(MonthlyRefused):
            monthly_export.save(
                world.organization, is_on=True, files=files, recipients=[one.uuid for one in people], by=None, now=OCTOBER
            )
    assert MonthlyExport.objects.get(pk=row.pk).files == list(FILES)
    events = AuditEvent.objects.filter(organization=world.organization, action="monthly_export.changed")
    assert [event.actor for event in events] == [world.owner.user]


def test_who_lost_the_right_is_not_told_and_their_link_is_dead(world: World) -> None:
    world.switch_on(world.finance, world.owner)
    world.advance(ENDED)
    world.make(ENDED)
    members.remove(world.finance, by=world.owner.user, now=ENDED)
    assert world.advance(ENDED) == 1
    assert world.owner.user is not None
    assert mail.outbox[0].to == [world.owner.user.email]
    (send,) = world.sends()
    assert send.job is not None
    token = jobs.link(send.job, world.finance)
    assert Client().get(f"/files/{token}").status_code == 404


def test_with_nobody_left_to_tell_it_says_so_and_can_be_sent_again(world: World) -> None:
    world.switch_on()
    world.advance(ENDED)
    world.make(ENDED)
    Member.objects.filter(pk=world.finance.pk).update(role="developer")
    assert world.advance(ENDED) == 0
    (send,) = world.sends()
    assert (send.state, send.told) == ("nobody", [])
    world.switch_on(world.owner)
    assert monthly_export.try_again(send, now=ENDED)
    assert not monthly_export.try_again(send, now=ENDED), "it is under way"
    world.make(ENDED)
    assert world.advance(ENDED) == 1
    assert [send.state for send in world.sends()] == ["sent"]


def test_a_mail_that_is_not_taken_is_tried_again_and_told_apart(
    world: World, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.switch_on(world.finance, world.owner)
    world.advance(ENDED)
    world.make(ENDED)
    real = mail.EmailMessage.send

    def refuses(self: mail.EmailMessage, fail_silently: bool = False) -> int:
        assert world.owner.user is not None
        if self.to == [world.owner.user.email]:
            raise ConnectionRefusedError("no mail server")
        return real(self)

    monkeypatch.setattr(mail.EmailMessage, "send", refuses)
    sent = world.advance(ENDED)
    assert sent == 1, "one that is refused keeps nobody from theirs"
    (send,) = world.sends()
    expected = f"The mail server did not take the mail to {world.owner}."
    assert (send.state, send.tries, send.error) == ("telling", 1, expected)
    assert world.advance(ENDED + timedelta(minutes=19)) == 0
    assert world.sends()[0].tries == 1
    monkeypatch.setattr(mail.EmailMessage, "send", real)
    sent += world.advance(ENDED + timedelta(minutes=20))
    assert sent == len(mail.outbox) == 2
    assert world.sends()[0].state == "sent"


def test_a_file_that_cannot_be_made_is_tried_again_then_given_up_in_words(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.switch_on()
    now = ENDED
    world.advance(now)

    def full(self: job_files.Out, piece: bytes) -> None:
        from accounts.errors import JobBroken

        raise JobBroken("The server’s disk is full.")

    monkeypatch.setattr(job_files.Out, "write", full)
    for tries in range(1, monthly_export.MOST_TRIES + 1):
        assert world.make(now) == ["failed"]
        world.advance(now)
        (send,) = world.sends()
        if tries < monthly_export.MOST_TRIES:
            assert (send.state, send.tries) == ("making", tries)
            assert send.next_at is not None
            now = send.next_at
            world.advance(now)
    (send,) = world.sends()
    assert (send.state, send.error, mail.outbox) == ("failed", "The server’s disk is full.", [])


def test_the_task_walks_over_all_and_one_that_fails_keeps_nobody(world: World) -> None:
    world.switch_on()
    with time_machine.travel(ENDED, tick=False):
        tasks.send_monthly_exports()
    world.make(ENDED)
    with time_machine.travel(ENDED, tick=False):
        assert tasks.send_monthly_exports() >= 1
    assert [send.state for send in world.sends()] == ["sent"]
    assert len(mail.outbox) == 1
