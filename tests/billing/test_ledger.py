"""The ledger: once, double entry, never changed, and equal to the log."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.models import AuditEvent, Organization
from billing import ledger, lots, subscriptions, usage
from billing.errors import CreditsRefused, NotEnoughCredits, OperatorsOnly, ReferenceReused
from billing.ledger import Entry
from billing.models import CreditLot, LedgerEntry, Plan, SubscriptionPeriod, UsageRecord
from tests import factories
from tests.billing.credit_books import NOW, Books, assert_books_agree
from tests.billing.usage_events import event_for

pytestmark = pytest.mark.django_db


@pytest.fixture
def books() -> Books:
    return Books()


def entry(amount: int = 5, reference: str = "one", **fields: Any) -> Entry:
    return Entry(kind="adjustment", amount=amount, reference=reference, occurred_at=NOW, **fields)


# -------------------------------------------------------------------------------------------------------------- posting


def test_a_reference_is_posted_once(books: Books) -> None:
    assert ledger.post(books.pk, [entry(), entry(7, "two")]) == 2
    assert ledger.post(books.pk, [entry(), entry(9, "three")]) == 1
    assert [amount for *_, amount in books.entries(kind="adjustment")] == [5, 7, 9]
    other = Books()
    assert ledger.post(other.pk, [entry()]) == 1


def test_a_reference_that_stands_for_something_else_is_refused(books: Books) -> None:
    ledger.post(books.pk, [entry()])
    for wrong in (entry(6), entry(-5), replace(entry(), kind="grant")):
        with pytest.raises(ReferenceReused), transaction.atomic():
            ledger.post(books.pk, [wrong, entry(1, "new")])
    assert [amount for *_, amount in books.entries(kind="adjustment")] == [5]


def test_a_negative_amount_swaps_the_sides_and_zero_is_left_out(books: Books) -> None:
    assert ledger.post(books.pk, [entry(-5), entry(0, "zero"), entry(3, "three")]) == 2
    assert books.entries(kind="adjustment") == [("adjustment", "issued", "credits", 5), ("adjustment", "credits", "issued", 3)]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"kind": "grant", "debit": "usage", "credit": "credits"}, "ledger_accounts_fit_kind"),
        ({"kind": "no such kind", "debit": "usage", "credit": "credits"}, "ledger_accounts_fit_kind"),
        ({"debit": "credits", "credit": "credits"}, "ledger_two_accounts"),
    ],
)
def test_the_database_refuses_what_is_no_entry(books: Books, fields: dict[str, Any], name: str) -> None:
    with pytest.raises(IntegrityError, match=name), transaction.atomic():
        ledger.post(books.pk, [replace(entry(), **fields)])
    with pytest.raises(IntegrityError, match="ledger_amount_positive"), transaction.atomic():
        LedgerEntry.objects.create(
            organization=books.organization,
            kind="grant",
            debit="credits",
            credit="issued",
            amount=0,
            reference="x",
            occurred_at=NOW,
        )


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE billing_ledgerentry SET reason = 'changed'",
        "DELETE FROM billing_ledgerentry",
        "TRUNCATE billing_ledgerentry CASCADE",
    ],
)
def test_nobody_changes_an_entry_the_tables_owner_neither(books: Books, statement: str) -> None:
    ledger.post(books.pk, [entry()])
    with connection.cursor() as cursor:
        cursor.execute("SELECT tableowner = current_user FROM pg_tables WHERE tablename = 'billing_ledgerentry'")
        assert cursor.fetchone() == (True,)
        # What foreign keys still have to check would keep TRUNCATE from being tried.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with pytest.raises(DatabaseError, match="added, never changed"), transaction.atomic():
            cursor.execute(statement)
    assert [amount for *_, amount in books.entries(kind="adjustment")] == [5]


# ---------------------------------------------------------------------------------------------------------------- usage


def test_the_entries_of_a_record_sum_to_its_credits(books: Books) -> None:
    books.grant(300)
    request_id = books.use(700, 300, 50, 150)
    rows = LedgerEntry.objects.for_organization(books.organization).filter(request_id=request_id)
    lot = CreditLot.objects.get(organization_id=books.pk)
    assert dict(rows.values_list("reference", "amount")) == {
        f"usage:{request_id}:0:quota": 700,
        f"usage:{request_id}:0:purchased:{lot.uuid}": 300,
        f"usage:{request_id}:0:overage": 50,
        f"usage:{request_id}:0:overdraft": 150,
    }
    period = books.subscription.periods.get()
    assert {(row.period_id, row.member_id, row.occurred_at) for row in rows} == {(period.pk, books.key.member_id, NOW)}
    assert UsageRecord.objects.get(request_id=request_id).credits == 1200
    assert_books_agree(books.pk)


def test_an_amendment_swaps_the_sides_of_what_it_gives_back(books: Books) -> None:
    request_id = books.use(120, state="O")
    books.use(-20, 0, 0, 5, request_id=request_id, part=1)
    assert books.entries(request_id=request_id) == [
        ("usage_quota", "usage", "allowance", 120),
        ("usage_quota", "allowance", "usage", 20),
        ("overdraft", "usage", "overdraft", 5),
    ]
    assert_books_agree(books.pk)


def test_an_event_that_comes_again_posts_nothing(books: Books) -> None:
    """C20: log, ledger and lots move once."""
    books.grant(100)
    event = event_for(books.key, credits=30, funds=(10, 20, 0, 0), admitted_at=NOW)
    assert [usage.record(books.pk, [event, event]) for _ in range(3)] == [1, 0, 0]
    assert books.lots() == [(100, 20, 0)]
    assert_books_agree(books.pk)


def test_a_request_without_a_price_posts_nothing(books: Books) -> None:
    request_id = books.use(0)
    assert books.entries(request_id=request_id) == []


def test_usage_that_the_ledger_has_already_takes_its_batch_with_it(books: Books) -> None:
    """The same request, told with another admission: the log would take it twice, the ledger does not."""
    request_id = books.use(10)
    with pytest.raises(IntegrityError, match="ledger_once_per_reference"), transaction.atomic():
        books.use(10, request_id=request_id, at=NOW + timedelta(seconds=1))
    assert UsageRecord.objects.filter(request_id=request_id).count() == 1
    assert_books_agree(books.pk)


def logged(books: Books, *credits: int, **fields: Any) -> list[tuple[int, ...]]:
    """Books events whose funds the engine did not know; what each was split into."""
    events = [event_for(books.key, credits=amount, admitted_at=NOW, outcome="LOGGED", **fields) for amount in credits]
    assert usage.record(books.pk, events) == len(events)
    found = {row.request_id: row for row in UsageRecord.objects.filter(request_id__in=[event.request_id for event in events])}
    rows = [found[event.request_id] for event in events]
    return [(row.from_quota, row.from_purchased, row.from_overage, row.overdraft) for row in rows]


def with_policy(policy: str, **fields: Any) -> Books:
    plan = Plan.objects.create(
        slug=factories.unique("plan"),
        name="Plan",
        reset_period="weekly",
        base_quota=250,
        overage_policy=policy,
        overage_price=1,
        **fields,
    )
    return Books(plan.slug)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("block", [(100, 0, 0, 0), (150, 0, 0, 50), (0, 0, 0, 50)]),
        ("purchased", [(100, 0, 0, 0), (150, 50, 0, 0), (0, 30, 0, 20)]),
        ("invoice", [(100, 0, 0, 0), (150, 0, 50, 0), (0, 0, 20, 30)]),
    ],
)
def test_funds_that_the_engine_did_not_know_are_split_by_the_periods_terms(policy: str, expected: list[tuple[int, ...]]) -> None:
    """A3: quota, purchased credits and the cap are drawn to the end and not below; the rest is overdraft."""
    books = with_policy(policy, overage_cap=70 if policy == "invoice" else None)
    books.grant(80)
    assert logged(books, 100, 200, 50) == expected
    assert_books_agree(books.pk)


def test_a_subscriptions_own_cap_goes_before_its_plans() -> None:
    books = with_policy("invoice", overage_cap=70)
    type(books.subscription).objects.filter(pk=books.subscription.pk).update(overage_cap=10)
    assert logged(books, 300) == [(250, 0, 10, 40)]


def test_a_batch_of_unknown_funds_takes_as_many_statements_as_one(django_assert_max_num_queries: Any) -> None:
    books = with_policy("purchased")
    books.grant(200)
    start = books.subscription.periods.get().starts_at
    events = [event_for(books.key, credits=1, admitted_at=NOW, outcome="LOGGED", period_start=start) for _ in range(500)]
    with django_assert_max_num_queries(20):
        assert usage.record(books.pk, events) == 500
    period = books.subscription.periods.get()
    assert (period.used_from_quota, period.used_from_purchased, period.overdraft) == (250, 200, 50)
    assert_books_agree(books.pk)


def test_a_settlement_of_unknown_funds_gives_back_what_its_orphan_drew() -> None:
    books = with_policy("purchased")
    books.grant(100)
    orphan = event_for(books.key, state="O", credits=300, funds=(250, 50, 0, 0), admitted_at=NOW)
    usage.record(books.pk, [orphan])
    settled = replace(orphan, state="S", credits=260, from_quota=260, from_purchased=0, outcome="LOGGED", stream_id="9-1")
    assert usage.record(books.pk, [settled, replace(settled, stream_id="9-2")]) == 1
    amendment = UsageRecord.objects.get(request_id=orphan.request_id, part=1)
    assert (amendment.credits, amendment.from_quota, amendment.from_purchased, amendment.overdraft) == (-40, 0, -40, 0)
    assert books.lots() == [(100, 10, 0)]
    assert_books_agree(books.pk)


# --------------------------------------------------------------------------------------------------- grants, adjustments


def test_a_grant_makes_a_lot_an_entry_and_a_version(books: Books) -> None:
    before = books.version()
    lot = ledger.grant(books.organization, 100, reason="Welcome", actor=None, now=NOW, reference="grant:welcome")
    assert (lot.kind, lot.amount, lot.drawn, lot.expired, lot.note) == ("grant", 100, 0, 0, "Welcome")
    # The end of the day, twelve months later.
    assert lot.expires_at == datetime(2027, 12, 1, tzinfo=UTC)
    assert books.entries(lot=lot) == [("grant", "credits", "issued", 100)]
    assert ledger.granted(books.pk) == ledger.Granted(version=before + 1, total=100)
    again = ledger.grant(books.organization, 100, reason="Welcome", actor=None, now=NOW, reference="grant:welcome")
    assert again == lot
    assert ledger.granted(books.pk) == ledger.Granted(version=before + 1, total=100)
    with pytest.raises(ReferenceReused):
        ledger.grant(books.organization, 101, reason="Welcome", actor=None, now=NOW, reference="grant:welcome")
    event = AuditEvent.objects.get(organization=books.organization, action="credits.granted")
    assert (event.object_id, event.data) == (str(lot.uuid), {"credits": "0.0001", "reason": "Welcome"})


@pytest.mark.parametrize(
    "fields",
    [{"amount": 0}, {"amount": -1}, {"amount": 10**15 + 1}, {"reason": " "}, {"reason": "x" * 201}, {"expires_at": NOW}],
)
def test_a_grant_that_makes_no_sense_changes_nothing(books: Books, fields: dict[str, Any]) -> None:
    asked = {"amount": 5, "reason": "Welcome", "expires_at": None, **fields}
    with pytest.raises(CreditsRefused):
        ledger.grant(books.organization, asked.pop("amount"), actor=None, now=NOW, **asked)
    assert (books.lots(), books.version(), ledger.balance(books.pk).left) == ([], 0, 0)


def test_only_operators_move_credits(books: Books) -> None:
    """An owner sees money and does not make it."""
    owner = factories.member(books.organization, role="owner").user
    assert owner is not None
    for move in (
        lambda: ledger.grant(books.organization, 5, reason="Me", actor=owner, now=NOW),
        lambda: ledger.adjust(books.organization, 5, reason="Me", actor=owner, now=NOW),
        lambda: ledger.adjust(books.organization, -5, reason="Me", actor=owner, now=NOW),
    ):
        with pytest.raises(OperatorsOnly):
            move()
    assert books.lots() == []
    owner.is_superuser = True
    ledger.grant(books.organization, 5, reason="Me", actor=owner, now=NOW)
    assert LedgerEntry.objects.for_organization(books.organization).get(kind="grant").actor == owner


def test_an_adjustment_adds_a_lot_or_takes_from_what_is_left(books: Books) -> None:
    first = books.grant(100, expires_at=NOW + timedelta(days=30))
    second = books.grant(100, expires_at=NOW + timedelta(days=10))
    assert books.adjust(40) == 40
    books.use(0, 70)
    assert books.adjust(-50, reference="adjustment:1") == -50
    assert books.adjust(-50, reference="adjustment:1") == 0
    assert books.lots() == [(first.amount, 0, 20), (second.amount, 70, 30), (40, 0, 0)]
    assert books.entries(kind="adjustment") == [
        ("adjustment", "credits", "issued", 40),
        ("adjustment", "issued", "credits", 30),
        ("adjustment", "issued", "credits", 20),
    ]
    assert AuditEvent.objects.filter(organization=books.organization, action="credits.adjusted").count() == 2
    assert ledger.balance(books.pk).left == 120
    assert_books_agree(books.pk)


def test_a_correction_names_the_entry_that_was_wrong_and_takes_from_its_lot(books: Books) -> None:
    books.grant(100, expires_at=NOW + timedelta(days=1))
    wrong = books.grant(100)
    named = LedgerEntry.objects.get(lot=wrong)
    assert books.adjust(-60, corrects=named) == -60
    assert books.lots() == [(100, 0, 0), (100, 0, 60)]
    assert LedgerEntry.objects.get(organization=books.organization, kind="adjustment").corrects == named
    event = AuditEvent.objects.get(organization=books.organization, action="credits.adjusted")
    assert event.data == {"credits": "-0.00006", "reason": "Put right", "corrects": str(named.uuid)}
    with pytest.raises(ValueError, match="another organization"):
        Books().adjust(-1, corrects=named)


def test_more_than_is_left_is_not_taken_back(books: Books) -> None:
    """A3: what was drawn stays drawn; the balance does not go below zero."""
    books.grant(3)
    books.use(0, 1)
    version = books.version()
    with pytest.raises(NotEnoughCredits) as refused:
        books.adjust(-3)
    assert refused.value.facts == {"left": "0.000002", "asked": "0.000003"}
    assert (books.lots(), books.version()) == ([(3, 1, 0)], version)
    with pytest.raises(IntegrityError, match="lot_not_overdrawn"), transaction.atomic():
        CreditLot.objects.filter(organization_id=books.pk).update(drawn=4)


def test_a_top_up_inside_the_period_grants_no_second_allowance(books: Books) -> None:
    """E11: allowance 100 and 50 on the tenth day are 150, not 250."""
    plan = Plan.objects.create(slug=factories.unique("plan"), name="Plan", reset_period="monthly", base_quota=100)
    books = Books(plan.slug)
    books.grant(50, now=NOW + timedelta(days=10))
    for _ in range(2):
        subscriptions.open_period(books.subscription, NOW + timedelta(days=10))
    period = books.subscription.periods.get()
    assert (period.quota, ledger.balance(books.pk).left) == (100, 50)
    balances = ledger.balances(books.pk)
    assert (balances["allowance"], balances["credits"], balances["issued"]) == (100, 50, -150)


def test_a_plan_that_starts_at_its_own_anchor_grants_once() -> None:
    """E13: the first grant is not counted twice."""
    plan = Plan.objects.create(slug=factories.unique("plan"), name="Plan", reset_period="monthly", base_quota=100)
    organization = factories.organization(plan=None)
    midnight = datetime(2026, 11, 30, tzinfo=UTC)
    subscription = subscriptions.start(organization, plan, now=midnight, anchor=midnight.date())
    subscriptions.open_period(subscription, midnight)
    assert SubscriptionPeriod.objects.filter(organization=organization).count() == 1
    assert ledger.balances(organization.pk) == {"allowance": 100, "issued": -100}


def test_a_request_is_taken_from_the_allowance_while_there_is_some() -> None:
    """A8: allowance 200, purchased 0, a request of 3: purchased stays 0."""
    plan = Plan.objects.create(
        slug=factories.unique("plan"), name="Plan", reset_period="monthly", base_quota=200, overage_policy="purchased"
    )
    books = Books(plan.slug)
    assert logged(books, 3) == [(3, 0, 0, 0)]
    assert ledger.balances(books.pk)["allowance"] == 197
    assert ledger.balance(books.pk) == ledger.Balance(granted=0, drawn=0, expires_at=None, expiring=0)


def test_removing_an_overdrawn_key_moves_no_money(books: Books) -> None:
    """D7: nothing is returned, for nothing was set aside."""
    from accounts import keys

    books.grant(10)
    books.use(5, 2, 0, 1)
    before = (ledger.balances(books.pk), LedgerEntry.objects.for_organization(books.organization).count())
    keys.revoke(books.key, by=None, now=NOW)
    assert (ledger.balances(books.pk), LedgerEntry.objects.for_organization(books.organization).count()) == before


# ------------------------------------------------------------------------------------------------------------- rivals


@pytest.mark.django_db(transaction=True)
def test_two_hundred_settlements_at_once_wait_for_each_other() -> None:
    """H3: five members, two teams, eight writers that bring the same rows in different order: no deadlock, exact totals."""
    organization = factories.organization()
    teams = [factories.team(organization) for _ in range(2)]
    keys = [factories.api_key(factories.member(organization, team=teams[n % 2])).row for n in range(5)]
    for _ in range(3):
        ledger.grant(organization, 250, reason="Gift", actor=None, now=NOW, expires_at=None)
    start = organization.subscriptions.get().periods.get().starts_at
    events = [
        event_for(keys[n % 5], credits=10, funds=(5, 3, 1, 1), period_start=start, team_id=keys[n % 5].member.team_id)
        for n in range(200)
    ]
    failures: list[BaseException] = []
    added: list[int] = []

    def write(number: int) -> None:
        try:
            own = events if number % 2 else events[::-1]
            for at in range(number * 25, number * 25 + 200, 20):
                batch = [own[(at + offset) % 200] for offset in range(20)]
                added.append(usage.record(organization.pk, batch))
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    granted = ledger.grant(organization, 100, reason="In the middle", actor=None, now=NOW, expires_at=None)
    for thread in threads:
        thread.join(60)
    assert not failures
    assert sum(added) == 200
    period = SubscriptionPeriod.objects.get(organization=organization)
    assert (period.used_from_quota, period.used_from_purchased, period.overage, period.overdraft) == (1000, 600, 200, 200)
    assert ledger.balance(organization.pk).left == 3 * 250 + granted.amount - 600
    assert_books_agree(organization.pk)


# ---------------------------------------------------------------------------------------------------------- histories

ACTS = st.one_of(
    st.tuples(st.just("grant"), st.integers(1, 50), st.sampled_from([None, 1, 2, 5])),
    st.tuples(st.just("draw"), st.integers(1, 60), st.sampled_from(["S", "O"])),
    st.tuples(st.just("amend"), st.integers(-40, 40), st.integers(0, 5)),
    st.tuples(st.just("adjust"), st.integers(-60, 30).filter(bool), st.none()),
    st.tuples(st.just("expire"), st.integers(0, 6), st.booleans()),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(acts=st.lists(ACTS, max_size=14))
def test_any_history_leaves_books_that_agree(acts: list[tuple[str, int, Any]]) -> None:
    """Grants, draws, gifts back, adjustments and expiries in any order, against a list of lots kept by hand."""
    with transaction.atomic():
        books = Books()
        orphans: dict[str, int] = {}
        for kind, number, detail in acts:
            if kind == "grant":
                books.grant(number, expires_at=None if detail is None else NOW + timedelta(days=detail))
            elif kind == "draw":
                expected = in_order(books.pk, number)
                request_id = books.use(0, number, state=detail)
                assert drawn_by(request_id) == expected
                if detail == "O":
                    orphans[request_id] = number
            elif kind == "amend" and orphans:
                request_id = sorted(orphans)[detail % len(orphans)]
                change = max(number, -orphans.pop(request_id))
                if change:
                    books.use(0, change, request_id=request_id, part=1)
            elif kind == "adjust":
                left = sum(lot.left for lot in lots.shelf(books.pk).lots)
                if number < 0 and left < -number:
                    with pytest.raises(NotEnoughCredits):
                        books.adjust(number)
                else:
                    books.adjust(number)
            elif kind == "expire":
                at = NOW + timedelta(days=number, seconds=1)
                drained = at if detail else NOW
                before = ledger.balance(books.pk).left
                taken = ledger.expire_due(books.pk, at, f"{int(drained.timestamp() * 1000)}-0")
                assert detail or not taken
                assert ledger.balance(books.pk).left == before - taken
                assert ledger.expire_due(books.pk, at, f"{int(drained.timestamp() * 1000)}-0") == 0
            assert_books_agree(books.pk)
        transaction.set_rollback(True)


def in_order(organization_id: int, amount: int) -> dict[int | None, int]:
    """What a draw must take of which lot: first what was given back without one, then by expiry, then by age, then on credit."""
    taken: dict[int | None, int] = {}
    surplus = max(0, -lots.without_lot(organization_id))
    if part := min(surplus, amount):
        taken[None] = part
        amount -= part
    never = datetime.max.replace(tzinfo=UTC)
    found = sorted(CreditLot.objects.filter(organization_id=organization_id), key=lambda lot: (lot.expires_at or never, lot.pk))
    for lot in found:
        if part := min(amount, lot.amount - lot.drawn - lot.expired):
            taken[lot.pk] = part
            amount -= part
    if amount:
        taken[None] = taken.get(None, 0) + amount
    return taken


def drawn_by(request_id: str) -> dict[int | None, int]:
    rows = LedgerEntry.objects.filter(request_id=request_id, kind="usage_purchased")
    return dict(rows.values_list("lot_id", "amount"))


def test_an_unknown_organization_has_no_grants() -> None:
    with pytest.raises(LookupError):
        ledger.granted(10**12)
    with pytest.raises(LookupError):
        ledger.grant(Organization(pk=10**12, timezone="UTC"), 5, reason="Nobody", actor=None, now=NOW)


def test_a_reference_takes_back_once_and_stands_for_nothing_else(books: Books) -> None:
    """A form that is sent again changed (the browser's back) must not look as if it had moved something."""
    books.grant(50)
    books.grant(50)
    assert books.adjust(-70, reference="adjustment:form") == -70
    assert books.adjust(-70, reference="adjustment:form") == 0
    for again in (-60, -10, 5):
        with pytest.raises(ReferenceReused):
            books.adjust(again, reference="adjustment:form")
    assert books.adjust(5, reference="adjustment:other") == 5
    with pytest.raises(ReferenceReused):
        books.adjust(-5, reference="adjustment:other")
    assert ledger.balance(books.pk).left == 35
    assert_books_agree(books.pk)
