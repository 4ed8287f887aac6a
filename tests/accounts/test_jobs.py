"""Long work: one worker at a time does it, it is reported, stopped, taken up again, failed in words, and forgotten."""

import hashlib
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core import signing
from django.db import OperationalError, connection

from accounts import job_files, job_running, jobs, members, tasks
from accounts.errors import (
    JobBroken,
    JobForbidden,
    JobKindUnknown,
    JobNotFound,
    JobOver,
    LinkExpired,
    LinkInvalid,
    TooManyJobs,
)
from accounts.jobs import Kind, Work
from accounts.models import AuditEvent, Job, Member
from accounts.permissions import Action
from config.clock import utc_now
from tests import factories

pytestmark = pytest.mark.django_db(transaction=True)

Do = Callable[[Work], Mapping[str, Any]]


@pytest.fixture
def kind() -> Iterator[Callable[..., str]]:
    """Registers kinds of work for one test."""
    made: list[str] = []

    def register(do: Do, **fields: Any) -> str:
        name = f"test-{uuid4().hex[:8]}"
        made.append(name)
        jobs.register(Kind(name, do, fields.pop("may", lambda member, asked: True), **fields))
        return name

    yield register
    for name in made:
        del jobs._kinds[name]


@pytest.fixture
def member() -> Member:
    return factories.member(factories.organization(plan=None), role="owner")


def start(member: Member, kind: str, **asked: Any) -> Job:
    return jobs.start(member, kind=kind, title="A file", asked=asked, file_name="a.csv", now=utc_now())


def ten(work: Work) -> dict[str, Any]:
    for number in range(10):
        work.out.write(f"line {number}\r\n".encode())
        work.report(number + 1, 10)
    return {"rows": 10}


def text_of(job: Job) -> bytes:
    return job_files.path(job.uuid).read_bytes()


def test_a_job_ends_with_its_file_its_rows_and_its_digest(kind: Callable[..., str], member: Member) -> None:
    job = start(member, kind(ten))
    assert (job.state, jobs.has_file(job, now=utc_now())) == ("waiting", False)
    with pytest.raises(JobOver, match="not ready yet"):
        jobs.check_file(job, now=utc_now())
    assert tasks.run_job(job.pk) == "done"
    job.refresh_from_db()
    content = b"".join(b"line %d\r\n" % number for number in range(10))
    assert text_of(job) == content
    assert job.result == {"rows": 10, "sha256": hashlib.sha256(content).hexdigest()}
    assert (job.file_bytes, job.done, job.total, job.error) == (len(content), 10, 10, "")
    assert job.expires_at is not None
    assert abs(job.expires_at - utc_now() - timedelta(days=7)) < timedelta(minutes=1)
    assert stat.S_IMODE(job_files.path(job.uuid).stat().st_mode) == 0o600
    assert stat.S_IMODE(job_files.folder().stat().st_mode) == 0o700
    assert not list(job_files.folder().glob(f"{job.uuid}.*"))
    jobs.check_file(job, now=utc_now())
    event = AuditEvent.objects.get(organization=member.organization, action="job.started")
    assert (event.actor, event.object_id) == (member.user, str(job.uuid))
    # The message may come twice.
    before = job_files.path(job.uuid).stat().st_mtime_ns
    assert tasks.run_job(job.pk) == "done"
    assert job_files.path(job.uuid).stat().st_mtime_ns == before


def test_a_second_click_finds_the_same_job_and_another_wish_is_another(kind: Callable[..., str], member: Member) -> None:
    name = kind(ten)
    first = start(member, name, month="2026-10")
    assert start(member, name, month="2026-10") == first
    assert start(member, name, month="2026-11") != first
    tasks.run_job(first.pk)
    assert start(member, name, month="2026-10") != first


def test_only_so_many_wait_and_only_who_may_starts_one(kind: Callable[..., str], member: Member) -> None:
    name = kind(ten, may=lambda member, asked: member.role == "owner")
    for number in range(jobs.MOST_WAITING):
        start(member, name, number=number)
    with pytest.raises(TooManyJobs, match=r"20 jobs .* Wait for one to end, or stop one"):
        start(member, name, number="one more")
    with pytest.raises(JobForbidden):
        start(factories.member(member.organization), name)
    with pytest.raises(JobKindUnknown):
        start(member, "no-such")
    assert Job.objects.filter(organization=member.organization).count() == jobs.MOST_WAITING
    # Others have a count of their own.
    assert start(factories.member(factories.organization(plan=None), role="owner"), name).state == "waiting"


class Halted:
    """Work that waits in its middle, in a thread of its own, as a worker's process would."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.runs = 0
        self.ended: list[str] = []

    def do(self, work: Work) -> dict[str, Any]:
        self.runs += 1
        work.out.write(b"half ")
        work.report(1, 2)
        self.reached.set()
        assert self.go_on.wait(20)
        work.out.write(b"whole")
        work.report(2, 2)
        return {"run": self.runs}

    def run(self, job: Job) -> threading.Thread:
        def body() -> None:
            try:
                self.ended.append(job_running.run(job.pk))
            finally:
                connection.close()

        thread = threading.Thread(target=body)
        thread.start()
        return thread


def test_a_running_job_tells_how_far_it_is_and_nobody_else_does_it(kind: Callable[..., str], member: Member) -> None:
    halted = Halted()
    job = start(member, kind(halted.do))
    thread = halted.run(job)
    assert halted.reached.wait(20)
    job.refresh_from_db()
    assert (job.state, job.done, job.total) == ("running", 1, 2)
    assert job_running.run(job.pk) == "running"
    assert job_running.claim(job.pk) is None
    assert halted.runs == 1
    halted.go_on.set()
    thread.join(20)
    job.refresh_from_db()
    assert (job.state, text_of(job), halted.ended) == ("done", b"half whole", ["done"])


def test_a_running_job_is_stopped_and_leaves_nothing(
    kind: Callable[..., str], member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_running, "REPORT_SECONDS", 0.0)
    halted, discarded = Halted(), []
    job = start(member, kind(halted.do, discard=lambda job: discarded.append(job.uuid)))
    thread = halted.run(job)
    assert halted.reached.wait(20)
    assert jobs.stop(job, now=utc_now())
    halted.go_on.set()
    thread.join(20)
    job.refresh_from_db()
    assert (job.state, job.result.get("run"), job.file_bytes) == ("stopped", None, None)
    assert not list(job_files.folder().glob(f"{job.uuid}*"))
    assert discarded == [job.uuid]
    assert not jobs.stop(job, now=utc_now())
    assert tasks.run_job(job.pk) == "stopped"


def test_a_job_of_a_dead_worker_is_taken_up_and_the_late_one_changes_nothing(
    kind: Callable[..., str], member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker is silent for longer than its lease, then comes back while the second has ended the job."""
    monkeypatch.setattr(job_running, "REPORT_SECONDS", 0.0)
    halted = Halted()
    job = start(member, kind(halted.do))
    thread = halted.run(job)
    assert halted.reached.wait(20)
    assert job_running.take_up(utc_now()) == 0 or job.pk not in due(utc_now())
    Job.objects.filter(pk=job.pk).update(moved_at=utc_now() - job_running.LEASE - timedelta(seconds=1))
    assert job.pk in due(utc_now())
    second = Halted()
    second.runs = halted.runs
    second.go_on.set()
    monkeypatch.setitem(jobs._kinds, job.kind, Kind(job.kind, second.do, lambda member, asked: True))
    assert job_running.run(job.pk) == "done"
    halted.go_on.set()
    thread.join(20)
    job.refresh_from_db()
    assert (job.state, job.result["run"], text_of(job)) == ("done", 2, b"half whole")
    assert not list(job_files.folder().glob(f"{job.uuid}.*"))


def due(now: Any) -> set[int]:
    """The jobs that the walk tells the workers of."""
    told: set[int] = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "enqueue", lambda job_id, seconds=0: told.add(job_id))
        job_running.take_up(now)
    return told


def test_a_job_that_never_ends_fails_after_three_attempts(kind: Callable[..., str], member: Member) -> None:
    attempts: list[int] = []

    def dies(work: Work) -> dict[str, Any]:
        attempts.append(1)
        work.out.write(b"something")
        raise OperationalError("the server went away")

    job = start(member, kind(dies))
    for _ in range(job_running.MOST_ATTEMPTS):
        with pytest.raises(OperationalError):
            job_running.run(job.pk)
        assert job_running.run(job.pk) == "running"
        Job.objects.filter(pk=job.pk).update(moved_at=utc_now() - timedelta(minutes=2))
    assert job_running.run(job.pk) == "failed"
    job.refresh_from_db()
    assert job.error == "It was begun 3 times and never ended. Choose less at once, or tell your operator."
    assert len(attempts) == 3
    assert not list(job_files.folder().glob(f"{job.uuid}*"))


def test_what_fails_says_why_in_words_and_never_how(kind: Callable[..., str], member: Member) -> None:
    def refuses(work: Work) -> dict[str, Any]:
        raise JobBroken("There is nothing to export. Choose another month.")

    def breaks(work: Work) -> dict[str, Any]:
        raise ValueError("a secret sk-123 in an exception")

    told = []
    for do in (refuses, breaks):
        job = start(member, kind(do))
        assert job_running.run(job.pk) == "failed"
        job.refresh_from_db()
        told.append(job.error)
        assert job.finished_at is not None
    assert told == [
        "There is nothing to export. Choose another month.",
        "It broke off by a fault on the server. Start it again; if it breaks off again, tell your operator.",
    ]


@pytest.mark.parametrize("trouble", ["full", "unwritable"])
def test_a_disk_that_takes_nothing_is_told_in_words(
    trouble: str, kind: Callable[..., str], member: Member, settings: Any, tmp_path: Path
) -> None:
    def much(work: Work) -> dict[str, Any]:
        work.out.write(b"x" * 1000)
        return {}

    settings.WEIR_VAR = tmp_path
    job = start(member, kind(much))
    if trouble == "full":
        # A device on which every write fails for want of room.
        (tmp_path / "exports").mkdir()
        (tmp_path / "exports" / f"{job.uuid}.1.part").symlink_to("/dev/full")
        expected = "The server’s disk is full, so the file could not be written. Tell your operator, and start it again after that."
    else:
        (tmp_path / "exports").write_text("a file where the folder should be")
        expected = "The server could not write the file into its data folder. Tell your operator, and start it again after that."
    assert job_running.run(job.pk) == "failed"
    job.refresh_from_db()
    assert (job.error, job.file_bytes) == (expected, None)
    assert not job_files.path(job.uuid).exists()


def test_only_two_of_an_organization_run_at_once_and_the_next_gets_its_turn(
    kind: Callable[..., str], member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    halted = [Halted() for _ in range(2)]
    running = [start(member, kind(one.do)) for one in halted]
    threads = [one.run(job) for one, job in zip(halted, running, strict=True)]
    assert all(one.reached.wait(20) for one in halted)
    third = start(member, kind(ten))
    assert job_running.run(third.pk) == "waiting"
    told: list[int] = []
    monkeypatch.setattr(jobs, "enqueue", lambda job_id, seconds=0: told.append(job_id))
    for one in halted:
        one.go_on.set()
    for thread in threads:
        thread.join(20)
    assert set(told) == {third.pk}
    assert job_running.run(third.pk) == "done"


def test_a_job_of_who_has_left_is_not_done(kind: Callable[..., str], member: Member) -> None:
    leaver = factories.member(member.organization)
    job = start(leaver, kind(ten))
    members.remove(leaver, by=member.user, now=utc_now())
    assert job_running.run(job.pk) == "failed"
    job.refresh_from_db()
    assert job.error == "Who asked for it may not have it any more."
    assert not job_files.path(job.uuid).exists()


def test_who_sees_and_opens_a_job(kind: Callable[..., str], member: Member) -> None:
    own = start(member, kind(ten))
    shared = start(member, kind(ten, shared_by=Action.SEE_MONEY))
    finance = factories.member(member.organization, role="finance")
    of_team = factories.member(member.organization, role="finance", team=factories.team(member.organization))
    stranger = factories.member(factories.organization(plan=None), role="owner")
    seen = {
        name: set(jobs.seen_by(one))
        for name, one in (("owner", member), ("finance", finance), ("team", of_team), ("far", stranger))
    }
    assert seen == {"owner": {own, shared}, "finance": {shared}, "team": set(), "far": set()}
    assert jobs.find(finance, shared.uuid) == shared
    for one in (of_team, stranger):
        with pytest.raises(JobNotFound):
            jobs.find(one, shared.uuid)
        assert not jobs.may_open(one, shared)
    assert jobs.may_open(finance, shared)
    assert not jobs.may_open(finance, own)


def test_files_go_when_their_time_is_over_or_the_right_is_lost(kind: Callable[..., str], member: Member) -> None:
    leaver = factories.member(member.organization)
    name = kind(ten)
    kept, over, lost = start(member, name), start(member, name, which="over"), start(leaver, name)
    for job in (kept, over, lost):
        job_running.run(job.pk)
    Job.objects.filter(pk=over.pk).update(expires_at=utc_now())
    members.remove(leaver, by=member.user, now=utc_now())
    stray = job_files.folder() / f"{uuid4()}.1.part"
    stray.write_bytes(b"of nobody")
    young = job_files.folder() / f"{uuid4()}.1.part"
    young.write_bytes(b"of a moment ago")
    import os

    os.utime(stray, (0, 0))
    tasks.forget_old_jobs()
    assert [job_files.path(job.uuid).exists() for job in (kept, over, lost)] == [True, False, False]
    assert (stray.exists(), young.exists()) == (False, True)
    young.unlink()
    over.refresh_from_db()
    assert (over.state, jobs.has_file(over, now=utc_now())) == ("done", False)
    with pytest.raises(JobOver, match="Start the export again"):
        jobs.check_file(over, now=utc_now())
    Job.objects.filter(pk=over.pk).update(finished_at=utc_now() - timedelta(days=91))
    tasks.forget_old_jobs()
    assert not Job.objects.filter(pk=over.pk).exists()
    assert Job.objects.filter(pk=kept.pk).exists()


def test_a_link_opens_its_file_for_its_member_until_it_expires(kind: Callable[..., str], member: Member) -> None:
    finance = factories.member(member.organization, role="finance")
    job = start(member, kind(ten, shared_by=Action.SEE_MONEY))
    token = jobs.link(job, finance)
    assert jobs.opened(token) == (job, finance)
    for wrong in (token[:-1], token + "x", "x", "", token.replace(":", "", 1), jobs.link(job, finance).swapcase()):
        with pytest.raises(LinkInvalid, match=r"^This link does not work\.$"):
            jobs.opened(wrong)
    other_salt = signing.TimestampSigner(salt="another").sign_object([str(job.uuid), str(finance.uuid)])
    with pytest.raises(LinkInvalid):
        jobs.opened(other_salt)
    import time_machine

    with time_machine.travel(utc_now() + timedelta(days=14, minutes=1)), pytest.raises(LinkExpired) as raised:
        jobs.opened(token)
    assert raised.value.facts == {"slug": member.organization.slug}
    # No right, no link: by another role, by leaving, by the job's end.
    assert finance.team_id is None
    Member.objects.filter(pk=finance.pk).update(role="developer")
    with pytest.raises(LinkInvalid, match=r"^This link does not work\.$"):
        jobs.opened(token)
    Member.objects.filter(pk=finance.pk).update(role="finance")
    assert jobs.opened(token)[1] == finance
    members.remove(finance, by=member.user, now=utc_now())
    with pytest.raises(LinkInvalid):
        jobs.opened(token)
    own = jobs.link(job, member)
    Job.objects.filter(pk=job.pk).delete()
    with pytest.raises(LinkInvalid):
        jobs.opened(own)
