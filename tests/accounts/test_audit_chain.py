"""The audit trail as a chain: what races leave, and what a person with the database's keys cannot hide."""

import io
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts import audit
from accounts.audit import BEGINNING, NO_HEAD, Head, Link
from accounts.models import AuditEvent, AuditHead, Organization, User
from config import scope, snapshot
from tests import factories


def sql(statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


def told(organization: Organization | None, number: int, **data: Any) -> AuditEvent:
    return audit.record(
        organization, actor=None, action="thing.changed", object_type="thing", object_id=str(number), data=data or {"n": number}
    )


def chain(organization: Organization | None) -> list[AuditEvent]:
    whose = {"organization__isnull": True} if organization is None else {"organization": organization}
    return list(AuditEvent.objects.filter(**whose, number__isnull=False).order_by("number"))


@pytest.fixture
def acme(db: None) -> Organization:
    """An organization with six chained events: what making it told, and five more."""
    made = factories.organization(plan=None)
    for number in range(5):
        told(made, number)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    return made


@pytest.fixture
def keyholder(acme: Organization) -> Iterator[None]:
    """The tables' owner turns the triggers off, as nobody of the product does; the test's transaction is taken back."""
    sql("ALTER TABLE accounts_auditevent DISABLE TRIGGER USER")
    sql("ALTER TABLE accounts_audithead DISABLE TRIGGER USER")
    yield
    sql("ALTER TABLE accounts_auditevent ENABLE TRIGGER USER")
    sql("ALTER TABLE accounts_audithead ENABLE TRIGGER USER")


class TestChaining:
    def test_each_event_holds_the_digest_of_the_one_before(self, acme: Organization) -> None:
        events = chain(acme)
        assert [event.number for event in events] == [1, 2, 3, 4, 5, 6]
        assert [event.previous for event in events] == [BEGINNING, *(event.digest for event in events[:-1])]
        assert audit.head(acme) == Head(6, events[-1].digest or "")
        assert audit.verify(acme) == audit.Verdict(6, audit.head(acme), ())

    def test_chains_are_apart_and_the_install_has_its_own(self, acme: Organization) -> None:
        other = factories.organization(plan=None)
        before = audit.head(None)
        told(None, 1)
        told(other, 1)
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        assert [event.number for event in chain(other)] == [1, 2]
        assert audit.head(None).number == before.number + 1
        assert audit.head(acme).number == 6
        assert audit.verify(None).is_whole

    def test_a_transaction_that_is_taken_back_leaves_no_gap(self, acme: Organization) -> None:
        with transaction.atomic():
            told(acme, 7)
            sql("SET CONSTRAINTS ALL IMMEDIATE")
            transaction.set_rollback(True)
        sql("SET CONSTRAINTS ALL DEFERRED")
        told(acme, 8)
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        assert [event.object_id for event in chain(acme)][-2:] == ["4", "8"]
        assert audit.verify(acme).is_whole

    def test_who_writes_numbers_of_their_own_is_not_believed(self, acme: Organization) -> None:
        AuditEvent.objects.create(organization=acme, action="x", object_type="x", object_id="x", number=99, digest="f" * 64)
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        assert chain(acme)[-1].number == 7
        assert audit.verify(acme).is_whole

    def test_a_person_who_goes_leaves_the_chain_whole(self, acme: Organization) -> None:
        person = User.objects.create_user(f"{factories.unique('gone')}@example.org")
        audit.record(acme, actor=person, action="x", object_type="x", object_id="x")
        sql("SET CONSTRAINTS ALL IMMEDIATE")
        number, email = person.pk, person.email
        person.delete()
        event = chain(acme)[-1]
        assert (event.actor_id, event.actor_number, event.actor_label) == (None, number, email)
        assert audit.verify(acme).is_whole

    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE accounts_auditevent SET action = 'x' WHERE organization_id = %s",
            "UPDATE accounts_auditevent SET number = number + 100 WHERE organization_id = %s",
            "UPDATE accounts_auditevent SET digest = NULL WHERE organization_id = %s",
            "DELETE FROM accounts_auditevent WHERE organization_id = %s",
            "UPDATE accounts_audithead SET number = number + 1 WHERE organization_id = %s",
            "DELETE FROM accounts_audithead WHERE organization_id = %s",
            "TRUNCATE accounts_auditevent",
            "TRUNCATE accounts_audithead",
        ],
    )
    def test_the_database_refuses(self, acme: Organization, statement: str) -> None:
        before = audit.verify(acme)
        with pytest.raises(IntegrityError, match=r"append-only|move with their events"), transaction.atomic():
            sql(statement, *([acme.pk] if "%s" in statement else []))
        assert audit.verify(acme) == before


class TestTampering:
    """What somebody does who turned the triggers off; each is found and named."""

    CASES: tuple[tuple[str, str, str], ...] = (
        ("a value", "UPDATE accounts_auditevent SET data = '{\"n\": 9}' WHERE number = 3", r"Event 3 \(.+\) was changed\."),
        ("the time", "UPDATE accounts_auditevent SET created_at = created_at + interval '1 us' WHERE number = 6", "Event 6 "),
        ("who it was", "UPDATE accounts_auditevent SET actor_label = 'eve@example.org' WHERE number = 1", "Event 1 "),
        ("whom it points to", "UPDATE accounts_auditevent SET actor_id = {user} WHERE number = 2", "Event 2 "),
        ("one in the middle goes", "DELETE FROM accounts_auditevent WHERE number = 4", r"Event 4 is missing\."),
        ("two in the middle go", "DELETE FROM accounts_auditevent WHERE number IN (2, 3)", r"Events 2 to 3 are missing\."),
        ("the newest goes", "DELETE FROM accounts_auditevent WHERE number = 6", r"The newest event, 6, is missing\."),
        ("the newest go", "DELETE FROM accounts_auditevent WHERE number > 4", r"The newest events, 5 to 6, are missing\."),
        ("all go", "DELETE FROM accounts_auditevent", r"The newest events, 1 to 6, are missing\."),
        ("the head is gone", "DELETE FROM accounts_audithead", r"Event 1 was put in past the chain: its head is number 0\."),
        ("the head is other", "UPDATE accounts_audithead SET digest = repeat('a', 64)", r"The head is 6:a{64}, "),
    )

    @pytest.mark.parametrize(("statement", "fault"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
    def test_it_is_found(self, acme: Organization, keyholder: None, statement: str, fault: str) -> None:
        user = User.objects.create_user(f"{factories.unique('eve')}@example.org")
        statement = statement.replace("{user}", str(user.pk))
        where = " AND " if " WHERE " in statement else " WHERE "
        sql(f"{statement}{where}organization_id = {acme.pk}")
        verdict = audit.verify(acme)
        assert not verdict.is_whole
        assert re.match(fault, verdict.faults[0]), verdict.faults

    def test_one_put_in_the_middle_is_found(self, acme: Organization, keyholder: None) -> None:
        sql("UPDATE accounts_auditevent SET number = -number WHERE number > 3 AND organization_id = %s", acme.pk)
        sql("UPDATE accounts_auditevent SET number = 1 - number WHERE number < 0 AND organization_id = %s", acme.pk)
        fourth = AuditEvent.objects.get(organization=acme, number=5)
        AuditEvent.objects.create(
            organization=acme, action="x", object_type="x", object_id="x", number=4, previous=fourth.previous, digest="e" * 64
        )
        faults = audit.verify(acme).faults
        assert faults[0].startswith("Event 4 ")
        assert "Event 5 does not follow event 4: one of the two was replaced." in faults

    def test_one_put_at_the_end_or_without_a_number_is_found(self, acme: Organization, keyholder: None) -> None:
        stray = AuditEvent.objects.create(organization=acme, action="x", object_type="x", object_id="x")
        assert audit.verify(acme).faults == (f"Event {stray.uuid} was put in past the chain: it has no number.",)
        previous = audit.head(acme).digest
        AuditEvent.objects.create(
            organization=acme, action="x", object_type="x", object_id="y", number=7, previous=previous, digest="e" * 64
        )
        assert "Event 7 was put in past the chain: its head is number 6." in audit.verify(acme).faults

    def test_a_chain_that_was_written_anew_does_not_hold_the_head_that_was_noted(self, acme: Organization, keyholder: None) -> None:
        noted = audit.head(acme)
        assert audit.verify(acme, noted=noted).is_whole
        sql("UPDATE accounts_auditevent SET data = '{\"n\": 9}', number = NULL WHERE organization_id = %s", acme.pk)
        sql("UPDATE accounts_audithead SET number = 0, digest = repeat('0', 64) WHERE organization_id = %s", acme.pk)
        sql(
            "SELECT accounts_audit_link(e) FROM (SELECT * FROM accounts_auditevent ORDER BY id) e WHERE organization_id = %s",
            acme.pk,
        )
        assert audit.verify(acme).is_whole
        verdict = audit.verify(acme, noted=noted)
        assert verdict.faults == ("Event 6 is not the one that was noted: the chain was written anew.",)
        assert audit.verify(acme, noted=Head(9, noted.digest)).faults == ("Event 9, which was noted, is not there.",)


class TestCommand:
    def run(self, *arguments: str) -> str:
        out = io.StringIO()
        call_command("verify_audit", *arguments, stdout=out)
        return out.getvalue()

    def test_it_says_how_many_and_the_head(self, acme: Organization) -> None:
        head = audit.head(acme)
        assert self.run("--organization", acme.slug) == f"{acme.slug}: 6 events, chain whole, head {head.text}\n"
        assert self.run("--organization", acme.slug, "--noted", head.text).endswith(f"head {head.text}\n")
        everything = self.run()
        assert everything.startswith("(install): ")
        assert f"\n{acme.slug}: 6 events, chain whole" in everything

    def test_it_fails_and_names_what_is_wrong(self, acme: Organization, keyholder: None) -> None:
        sql("DELETE FROM accounts_auditevent WHERE number = 3 AND organization_id = %s", acme.pk)
        out = io.StringIO()
        with pytest.raises(CommandError, match="The audit trail is not what was written"):
            call_command("verify_audit", "--organization", acme.slug, stdout=out)
        assert out.getvalue() == f"{acme.slug}: 5 events, chain broken\n  Event 3 is missing.\n"

    @pytest.mark.parametrize("noted", ["x", "1:", "1:zz", f"+1:{'a' * 64}", f"1:{'A' * 64}"])
    def test_what_is_no_head_is_refused(self, acme: Organization, noted: str) -> None:
        with pytest.raises(CommandError, match="is not a head"):
            call_command("verify_audit", "--organization", acme.slug, "--noted", noted)

    def test_a_noted_head_is_of_one_chain(self, acme: Organization) -> None:
        with pytest.raises(CommandError, match="name its --organization"):
            call_command("verify_audit", "--noted", NO_HEAD.text)


# ------------------------------------------------------------------------------------------------------------ encoding

TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
IDS = st.none() | st.integers(1, 2**63 - 1)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
LINKS = st.builds(
    Link,
    organization_id=IDS,
    number=st.integers(1, 2**63 - 1),
    previous=st.text("0123456789abcdef", min_size=64, max_size=64),
    uuid=st.uuids().map(str),
    actor_number=IDS,
    actor_label=TEXT,
    action=TEXT,
    object_type=TEXT,
    object_id=TEXT,
    data=TEXT,
    created_at=MOMENTS,
)


def decoded(raw: bytes) -> list[str | None]:
    """The fields again: where this is possible for every event, no two of them encode alike."""
    found: list[str | None] = []
    while raw:
        if raw.startswith(b"-,"):
            found.append(None)
            raw = raw[2:]
            continue
        length, _, rest = raw.partition(b":")
        found.append(rest[: int(length)].decode())
        assert rest[int(length) : int(length) + 1] == b","
        raw = rest[int(length) + 1 :]
    return found


@settings(max_examples=200, deadline=None)
@given(LINKS)
def test_an_encoding_tells_every_field(link: Link) -> None:
    form, organization_id, number, previous, uuid, actor_number, *texts, micros = decoded(audit.encode(link))
    assert (form, number, previous, uuid) == (audit.FORM, str(link.number), link.previous, link.uuid)
    assert organization_id == (None if link.organization_id is None else str(link.organization_id))
    assert actor_number == (None if link.actor_number is None else str(link.actor_number))
    assert texts == [link.actor_label, link.action, link.object_type, link.object_id, link.data]
    assert int(micros or "") == int(link.created_at.replace(microsecond=0).timestamp()) * 10**6 + link.created_at.microsecond


def test_what_runs_together_as_text_does_not_encode_alike() -> None:
    link = Link(1, 1, BEGINNING, "u", None, "ab", "c", "", "", "{}", datetime(2026, 1, 1, tzinfo=UTC))
    near = [
        replace(link, actor_label="a", action="bc"),
        replace(link, actor_label="ab,1:c", action=""),
        replace(link, organization_id=None),
        replace(link, actor_number=0),
        replace(link, object_type="-"),
        replace(link, created_at=datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ]
    assert len({audit.encode(one) for one in (link, *near)}) == 7


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.django_db
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(label=TEXT.filter(bool), action=TEXT, object_id=TEXT, data=st.dictionaries(TEXT, JSON, max_size=3))
def test_the_database_encodes_as_python_does(label: str, action: str, object_id: str, data: dict[str, Any]) -> None:
    before = audit.head(None).number
    audit.record(None, actor=None, actor_label=label, action=action, object_type="x", object_id=object_id, data=data)
    sql("SET CONSTRAINTS ALL IMMEDIATE")
    sql("SET CONSTRAINTS ALL DEFERRED")
    assert audit.head(None).number == before + 1
    newest = AuditEvent.objects.get(organization=None, number=before + 1)
    sql_data = AuditEvent.objects.filter(pk=newest.pk).extra(select={"text": "data::text"}).values_list("text", flat=True)[0]
    link = Link(
        None, before + 1, newest.previous or "", str(newest.uuid), None, label, action, "x", object_id, sql_data, newest.created_at
    )
    assert audit.digest(link) == newest.digest


# --------------------------------------------------------------------------------------------------------------- races


@pytest.mark.django_db(transaction=True)
def test_rivals_neither_fork_nor_gap_a_chain_nor_wait_for_each_other() -> None:
    """Twelve threads tell of two organizations and of the install, in every order of the locks that callers hold."""
    first, second = factories.organization(plan=None), factories.organization(plan=None)
    rounds, troubles = 12, list[BaseException]()
    start = threading.Barrier(12)

    def holds_the_row_and_tells(own: Organization, other: Organization) -> None:
        snapshot.bump(own.pk)
        told(own, 1)
        told(other, 2)

    def tells_and_takes_the_row(own: Organization, other: Organization) -> None:
        told(other, 3)
        told(own, 4)
        told(None, 5)
        snapshot.bump(own.pk)

    def tells_alone(own: Organization, other: Organization) -> None:
        told(own, 6)
        with transaction.atomic():
            told(other, 7)
            transaction.set_rollback(True)

    def run(act: Callable[[Organization, Organization], None], own: Organization, other: Organization) -> None:
        try:
            start.wait()
            for _ in range(rounds):
                with scope.everything(), transaction.atomic():
                    act(own, other)
        except BaseException as error:
            troubles.append(error)
        finally:
            connection.close()

    acts = (holds_the_row_and_tells, tells_and_takes_the_row, tells_alone)
    pairs = ((first, second), (second, first))
    before = audit.head(None).number
    threads = [threading.Thread(target=run, args=(act, *pair)) for act in acts for pair in pairs for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert troubles == []
    # Of its own two row holders, two row takers and two others 1 each round; of the other organization's 1, 1 and 0.
    each = 1 + 2 * rounds * (1 + 1 + 1 + 1 + 1)
    for organization in (first, second):
        verdict = audit.verify(organization)
        assert (verdict.events, verdict.head.number, verdict.faults) == (each, each, ())
        assert [event.number for event in chain(organization)] == list(range(1, each + 1))
    assert audit.verify(None).is_whole
    assert audit.head(None).number == before + 4 * rounds
    assert AuditHead.objects.filter(organization__in=(first, second)).count() == 2
