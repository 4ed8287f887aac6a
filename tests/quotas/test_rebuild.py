"""Counters from the log and the stream: what was lost comes back, once."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections

from config.clock import utc_now
from config.redis import sync_client
from quotas import copies, engine, filters, limits, rebuild, reconcile, records, rings, staging, sweep, tally, views
from tests import factories
from tests.quotas import tenancy
from tests.quotas.tenancy import CREDIT, Tenant, request_id

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant() -> Tenant:
    return tenancy.make(team=True)


def spend(tenant: Tenant, credits: float, *, at: float | None = None, state: str = "S") -> str:
    """One request, admitted and ended at a time of its own, straight through the scripts."""
    from quotas import views

    loaded = tenant.snapshot()
    when = time.time() if at is None else at
    view = views.view_for(loaded, tenant.key_of(loaded), int(when)).packed
    probe, made = tenant.probe, request_id()
    amount = round(credits * CREDIT)
    if not probe.dump():
        assert rebuild.rebuild(tenant.organization.pk, now_ms=int(when * 1000))
    assert probe.admit(made, when, view, amount, 10, about=tenant.about)[0] == "OK"
    if state == "S":
        assert probe.settle(made, when, amount, 10, ack=when, body=tenant.body())[0] == "OK"
    elif state == "O":
        assert probe.renew(made, when, amount, 10, ack=when, lease=0) == ["OK"]
        assert probe.sweep(when + 0.001)[1] == 1
    return made


def counters(tenant: Tenant) -> dict[bytes, Any]:
    """Everything that a rebuild must bring back: cells with the open bucket in its place, totals, funding; not windows."""
    probe = tenant.probe
    found: dict[bytes, Any] = {}
    cells: dict[str, list[int]] = {}

    def add(name: str, values: list[int]) -> None:
        held = cells.setdefault(name, [0, 0, 0])
        for i in range(3):
            held[i] += values[i]

    code = records.unpack(probe.dump()[b"o"])[13]
    for name, raw in probe.dump().items():
        text = name.decode()
        if "|" in text:
            add(text, [int(part) for part in raw.split()])
        elif copies.RECORD.match(text):
            record = records.unpack(raw)
            for tag, at in (("f", record[2]), ("c", record[2] // 36), ("d", record[3])):
                add(f"{text}|{tag}{at}", record[4:7])
            # One that was idle since the period before has its total.
            is_current = record[13] == code
            found[name] = (record[0], record[7], record[8], probe.record(text).used[0] if is_current else (0, 0, 0))
        elif text.startswith("f:"):
            found[name] = records.unpack(raw)
        elif text.startswith("h:"):
            hold = records.unpack(raw)
            found[name] = (hold[0], hold[1], hold[9:11], hold[14:18], hold[19:])
    return {**found, **{name.encode(): values for name, values in cells.items() if any(values)}}


def test_everything_that_ended_comes_back(tenant: Tenant) -> None:
    """Invariant 13: the same counters, from rows of the log, entries of the stream, and both."""
    now = time.time()
    for days in (33.0, 12.0, 3.2, 1.1, 0.3):
        spend(tenant, 1 + days, at=now - days * 86400)
    tenant.drain()
    spend(tenant, 2)
    spend(tenant, 0.5, state="O")
    before = counters(tenant)
    tenant_events = len(tenant.probe.events())
    assert tenant_events == 2
    sync_client().delete(engine.counters_key(tenant.organization.pk), engine.leases_key(tenant.organization.pk))
    assert rebuild.rebuild(tenant.organization.pk)
    after = counters(tenant)
    for name in after.keys() | before.keys():
        assert after.get(name) == before.get(name), name
    assert tenant.probe.lease_ids() == tenant.probe.hold_ids()
    # The orphan can still be amended, the settled one not.
    usage = tenant.usage()
    assert usage.live == 0


def test_an_event_that_is_in_the_log_and_still_in_the_stream_counts_once(tenant: Tenant) -> None:
    spend(tenant, 3)
    entries: Any = sync_client().xrange(engine.stream_key(tenant.organization.pk))
    tenant.drain()
    for _, fields in entries:
        sync_client().xadd(engine.stream_key(tenant.organization.pk), fields)
    sync_client().delete(engine.counters_key(tenant.organization.pk))
    assert tenant.usage().plan.used == 3 * CREDIT


def test_ninety_of_a_hundred_used_stay_used(tenant: Tenant) -> None:
    tenant.set_limit("100", window="period")
    spend(tenant, 90)
    tenant.drain()
    tenant.lose_everything()
    usage = tenant.usage()
    assert (usage.limits[0].used, usage.limits[0].remaining, usage.plan.used) == (90 * CREDIT, 10 * CREDIT, 90 * CREDIT)


def test_settlements_that_came_while_everything_was_gone_count_after_it(tenant: Tenant) -> None:
    made = spend(tenant, 5, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    assert isinstance(ticket, bytes)
    tenant.lose_everything()
    now = time.time()
    answer = tenant.probe.settle(made, now, 4 * CREDIT, 40, ack=now, body=tenant.body(), ticket=ticket)
    assert answer == ["LOGGED"]
    assert tenant.probe.release(request_id(), now) == ["GONE"]
    usage = tenant.usage()
    assert (usage.plan.used, usage.tokens, usage.requests) == (4 * CREDIT, 40, 1)
    # Sent again after the rebuild: it has ended.
    assert tenant.probe.settle(made, now, 4 * CREDIT, 40, ack=now, ticket=ticket)[0] == "DUP"
    tenant.drain()
    assert [(row.credits, row.part) for row in tenant.log()] == [(4 * CREDIT, 0)]


def test_a_logged_settlement_that_is_sent_twice_counts_once(tenant: Tenant) -> None:
    made = spend(tenant, 5, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    assert isinstance(ticket, bytes)
    tenant.lose_everything()
    now = time.time()
    for _ in range(2):
        assert tenant.probe.settle(made, now, CREDIT, 1, ack=now, body=tenant.body(), ticket=ticket) == ["LOGGED"]
    assert tenant.usage().plan.used == CREDIT
    assert tenant.drain() == 2
    assert [row.credits for row in tenant.log()] == [CREDIT]


def test_a_stream_that_moved_is_folded_in_again(tenant: Tenant) -> None:
    """RETRY: an entry that comes between the read and the script does not fall between."""
    spend(tenant, 1)
    probe = tenant.probe
    last = sync_client().xinfo_stream(probe.keys[2])["last-generated-id"]
    probe.redis.hset(probe.keys[3], mapping={"$": records.pack([9, 1, 0, 0, 0, 0, 0])})
    assert probe.run(engine.REBUILD, "", str(probe.meta()[0]), "0-0", 0)[0] == "RETRY"
    assert probe.run(engine.REBUILD, "", "7777", last, 0) == ["LOST"]
    assert probe.run(engine.REBUILD, "", "", last, 0) == ["LOST"]
    assert probe.meta()[0] != 9
    probe.redis.delete(probe.keys[3])


def test_a_forced_rebuild_under_traffic_keeps_live_holds(tenant: Tenant) -> None:
    spend(tenant, 2)
    live = spend(tenant, 7, state="L")
    released = request_id()
    tenant.probe.release(released, time.time())
    epoch = tenant.probe.meta()[0]
    before = counters(tenant)
    assert rebuild.rebuild(tenant.organization.pk, expected_epoch=str(epoch), keep_holds=True)
    assert tenant.probe.meta()[0] == epoch + 1
    assert {name: value for name, value in counters(tenant).items() if not name.startswith(b"p:")} == before
    assert {live, released} <= tenant.probe.lease_ids()
    assert tenant.probe.lease_ids() == tenant.probe.hold_ids()
    assert tenant.probe.settle(live, time.time(), CREDIT, 1, ack=time.time(), body=tenant.body())[0] == "OK"
    usage = tenant.usage()
    assert (usage.plan.used, usage.plan.held, usage.live) == (3 * CREDIT, 0, 0)


def test_one_builder_at_a_time(tenant: Tenant) -> None:
    tenant.usage()
    tenant.lose_everything()
    entered, leave = threading.Event(), threading.Event()

    def hold_the_lock() -> None:
        with rebuild._builder(tenant.organization.pk) as is_ours:
            assert is_ours
            entered.set()
            leave.wait(5)
        connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        building = threads.submit(hold_the_lock)
        assert entered.wait(5)
        assert rebuild.rebuild(tenant.organization.pk) is False
        with pytest.raises(Exception, match="cannot count"):
            tenant.usage()
        leave.set()
        building.result(5)
    assert rebuild.rebuild(tenant.organization.pk) is True


def test_a_rebuild_of_counters_that_are_there_changes_nothing(tenant: Tenant) -> None:
    spend(tenant, 2)
    before = tenant.probe.dump()
    assert rebuild.rebuild(tenant.organization.pk)
    assert tenant.probe.dump() == before


def test_every_source_has_funding_of_both_periods_even_if_unused(tenant: Tenant) -> None:
    """Mistake 8: a hold that comes back must find its source's entry, or its held amount is lost."""
    factories.subscription(tenant.organization, plan="free", member=tenant.member)
    rebuild.rebuild(tenant.organization.pk)
    for source in ("o", f"m{tenant.member.pk}"):
        current, previous = tenant.probe.funding(source), tenant.probe.funding(source, previous=True)
        assert previous["start"] < current["start"] <= time.time()
        assert (current["used"], current["held"]) == (0, 0)
    assert tenant.probe.funding(f"m{tenant.member.pk}")["quota"] == 100_000 * CREDIT


def test_records_of_a_rebuild_carry_the_newest_second(tenant: Tenant) -> None:
    """Mistake 6: else a step back of the clock rolls them again, and the period's total becomes 0."""
    spend(tenant, 5)
    tenant.drain()
    tenant.lose_everything()
    now_ms = int(time.time() * 1000)
    rebuild.rebuild(tenant.organization.pk, now_ms=now_ms)
    assert tenant.probe.field("o")[1] == now_ms // 1000  # type: ignore[index]
    loaded = tenant.snapshot()
    from quotas import views

    view = views.view_for(loaded, tenant.key_of(loaded), now_ms // 1000).packed
    assert tenant.probe.admit("step-back", now_ms / 1000 - 4000, view, 1)[0] == "OK"
    assert tenant.probe.record().used[0] == (5 * CREDIT + 1, 10, 2)


def test_windows_are_summed_again_by_the_next_admission(tenant: Tenant) -> None:
    now = time.time()
    for hours in (200, 30, 3, 0):
        spend(tenant, 1, at=now - hours * 3600)
    tenant.drain()
    tenant.lose_everything()
    rebuild.rebuild(tenant.organization.pk)
    for window, amount in (("5h", "10"), ("1d", "10"), ("7d", "10"), ("30d", "10")):
        tenant.set_limit(amount, window=window)
    used = {limit.window: limit.used for limit in tenant.usage().limits}
    assert used == {"5h": 2 * CREDIT, "1d": 2 * CREDIT, "7d": 3 * CREDIT, "30d": 4 * CREDIT}


def test_the_sweeper_rebuilds_what_is_gone_so_that_leases_make_sense_again(tenant: Tenant) -> None:
    spend(tenant, 1, state="L")
    sync_client().delete(engine.counters_key(tenant.organization.pk))
    assert sweep.sweep_organization(sync_client(), tenant.organization.pk) == 0
    assert tenant.probe.lease_ids() == tenant.probe.hold_ids() == set()


def test_an_unknown_hold_of_before_the_rebuild_may_have_ended(tenant: Tenant) -> None:
    """Its ack is older than the rebuild by KEEP: it is not counted a second time, and what it cost is logged."""
    made = spend(tenant, 5, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    assert isinstance(ticket, bytes)
    tenant.probe.tickets[made] = ticket
    tenant.lose_everything()
    rebuild.rebuild(tenant.organization.pk)
    now = time.time()
    assert tenant.probe.renew(made, now, ack=now - 901) == ["UNKNOWN"]
    assert tenant.probe.settle(made, now, 1, 1, ack=now - 901, body=tenant.body(), ticket=ticket) == ["LOGGED"]
    assert tenant.usage().plan.used == 0


def test_connections_are_given_back(tenant: Tenant) -> None:
    """The lock is of this organization in this database: others rebuild theirs meanwhile."""
    rebuild.rebuild(tenant.organization.pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [rebuild.LOCK, tenant.organization.pk],
        )
        assert cursor.fetchone() == (0,)


# --------------------------------------------------------------------------------- what the reconciler would expect of nothing


BIG, SMALL = "gpt-5.5", "gpt-5.4-mini"


class Past:
    """Requests of a month, of two members, one of them without a team, for two models: settled, released, orphaned, amended."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tenant = tenancy.make(team=True, timezone=self.rng.choice(["UTC", "Asia/Kathmandu", "America/New_York"]))
        lone = factories.member(self.tenant.organization)
        seated = factories.member(self.tenant.organization)
        factories.subscription(self.tenant.organization, plan="plus", member=seated)
        self.tenants = [self.tenant, *(Tenant(self.tenant.organization, one, factories.api_key(one)) for one in (lone, seated))]
        self.now = time.time()
        self.second = self.now - 33 * 86400

    def play(self, number: int, *, until: float) -> None:
        """So many requests more, at ever later moments."""
        rng = self.rng
        for left in range(number, 0, -1):
            self.second += rng.random() * 2 * max(0, until - self.second) / left
            self.second = min(self.second, until)
            self._request(rng.choice(self.tenants), rng.choice([BIG, SMALL]), rng.choice("SSSSROOA"))
            if rng.random() < 0.1:
                self.tenant.drain()

    def _request(self, tenant: Tenant, model: str, end: str) -> None:
        rng, at, made, probe = self.rng, self.second, request_id(), self.tenant.probe
        loaded = tenant.snapshot()
        if not probe.dump():
            assert rebuild.rebuild(tenant.organization.pk, now_ms=int(at * 1000))
        view = views.view_for(loaded, tenant.key_of(loaded), int(at), model).packed
        credits, tokens = rng.randint(0, 3 * CREDIT), rng.randint(0, 900)
        about = tenant.body(status="orphaned", model_asked=model)
        assert probe.admit(made, at, view, credits, tokens, about=about)[0] == "OK"
        if end in "OA":
            assert probe.renew(made, at, credits // 2, tokens // 2, ack=at, lease=0) == ["OK"]
            assert probe.sweep(at + 0.001)[1] >= 1
        if end != "O":
            state = "R" if end == "R" else "S"
            body = tenant.body(model_asked=model)
            answer = probe.settle(made, at + 0.002, credits // 3, tokens // 3, state=state, ack=at, body=body)
            assert answer[0] == ("AMENDED" if end == "A" else "OK")


@pytest.fixture(params=range(6))
def past(request: pytest.FixtureRequest) -> Iterator[Past]:
    made = Past(request.param)
    made.play(12, until=made.now - 2 * 86400)
    organization = made.tenant.organization
    limits.set_limit(organization, scope="member", of=str(made.tenant.member.user), metric="credits", window="7d", amount="9999",
                     models=[BIG])  # fmt: skip
    limits.set_limit(
        organization, scope="organization", of=None, metric="tokens", window="5h", amount="999999", models=[BIG, SMALL]
    )
    made.play(8, until=made.now - 1000)
    yield made
    sync_client().delete(*engine.keys(organization.pk))


def test_the_reconciler_finds_nothing_right_after_a_rebuild(past: Past) -> None:
    """Counters that were made anew are what log, stream and filters make of an empty copy; and as if they had never been lost."""
    organization = past.tenant.organization
    # Orphans that may lack the filters can be amended no more.
    assert past.tenant.probe.sweep(past.now)[0] == "OK"
    assert len(filters.fill(organization.pk)) == 2
    past.play(9, until=time.time())
    before = counters(past.tenant)
    epoch = past.tenant.probe.meta()[0]
    assert rebuild.rebuild(organization.pk, expected_epoch=str(epoch), keep_holds=True)
    after = counters(past.tenant)
    low = rings.at(past.tenant.snapshot(), int(time.time())).low
    for name in before.keys() | after.keys():
        cell = copies.CELL.match(name.decode())
        # A record that is idle keeps cells that no window needs. A released request leaves no row, so its record may be missing.
        if not name.startswith((b"h:", b"p:")) and (cell is None or int(cell[3]) >= low[cell[2]]):
            assert after.get(name, (0, 0, 0, (0, 0, 0))) == before.get(name, (0, 0, 0, (0, 0, 0))), name
    assert reconcile.reconcile(organization.pk).differences == ()
    past.tenant.lose_everything()
    assert rebuild.rebuild(organization.pk)
    assert reconcile.reconcile(organization.pk).differences == ()
    past.play(3, until=time.time())
    assert reconcile.reconcile(organization.pk).differences == ()


# ------------------------------------------------------------------------------------------------- a stream that moves


def test_what_comes_while_the_log_is_read_is_added_without_reading_it_again(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RETRY: entries of the stream that came since are counted once, whether or not the drain has moved them."""
    live = [spend(tenant, 5, state="L") for _ in range(2)]
    tickets = [tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}") for made in live]
    spend(tenant, 3)
    tenant.drain()
    tenant.lose_everything()
    put, read, done = staging.put, tally.newest, []

    def settle(made: str, ticket: Any, credits: int) -> None:
        now = time.time()
        body = tenant.body()
        assert tenant.probe.settle(made, now, credits * CREDIT, 1, ack=now, body=body, ticket=ticket) == ["LOGGED"]

    def put_and_settle(*arguments: Any) -> None:
        put(*arguments)
        if "stage" not in done:
            done.append("stage")
            settle(live[0], tickets[0], 4)

    def read_again(organization_id: int) -> int:
        done.append("read")
        return read(organization_id)

    monkeypatch.setattr(staging, "put", put_and_settle)
    monkeypatch.setattr(tally, "newest", read_again)
    assert rebuild.rebuild(tenant.organization.pk)
    assert done == ["read", "stage"]
    monkeypatch.undo()
    assert tenant.usage().plan.used == 7 * CREDIT
    assert tenant.probe.settle(live[0], time.time(), CREDIT, 1, ack=time.time(), ticket=tickets[0])[0] == "DUP"  # type: ignore[arg-type]
    assert reconcile.reconcile(tenant.organization.pk).differences == ()


def test_what_came_and_was_trimmed_while_the_log_was_read_is_read_from_the_log(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be in neither: not in the stream any more, not in the log as of the snapshot."""
    live = spend(tenant, 5, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{live}")
    assert isinstance(ticket, bytes)
    spend(tenant, 3)
    tenant.drain()
    tenant.lose_everything()
    put = staging.put
    done: list[bool] = []

    def drain() -> None:
        tenant.drain()
        connections.close_all()

    def put_and_drain(*arguments: Any) -> None:
        put(*arguments)
        if not done:
            done.append(True)
            now = time.time()
            assert tenant.probe.settle(live, now, 4 * CREDIT, 1, ack=now, body=tenant.body(), ticket=ticket) == ["LOGGED"]
            with ThreadPoolExecutor(1) as threads:
                threads.submit(drain).result(20)

    monkeypatch.setattr(staging, "put", put_and_drain)
    assert rebuild.rebuild(tenant.organization.pk)
    assert len(tenant.log()) == 2
    assert tenant.usage().plan.used == 7 * CREDIT
    assert reconcile.reconcile(tenant.organization.pk).differences == ()


def test_a_logged_settlement_of_an_orphan_counts_as_its_amendment(tenant: Tenant) -> None:
    """Part 0 of a settlement that meets its own orphan in the log: the difference, as the drain will store it."""
    made = spend(tenant, 5, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    assert isinstance(ticket, bytes)
    now = time.time()
    assert tenant.probe.renew(made, now, 2 * CREDIT, 10, ack=now, lease=0) == ["OK"]
    assert tenant.probe.sweep(time.time() + 0.01)[1] == 1
    tenant.drain()
    tenant.lose_everything()
    assert tenant.probe.settle(made, now, 4 * CREDIT, 40, ack=now, body=tenant.body(), ticket=ticket) == ["LOGGED"]
    usage = tenant.usage()
    assert (usage.plan.used, usage.tokens, usage.requests) == (4 * CREDIT, 40, 1)
    assert reconcile.reconcile(tenant.organization.pk).differences == ()
    assert sorted((row.part, row.credits) for row in tenant.log()) == [(0, 2 * CREDIT), (1, 2 * CREDIT)]


def test_a_long_request_that_ended_lately_is_found_by_its_second_settlement() -> None:
    """Tombstones go by the end, not the admission. Both are of one period, at whatever hour this runs."""
    tenant = tenancy.make(anchor=(utc_now() - timedelta(days=3)).date())
    early = time.time() - 9 * 3600
    made = spend(tenant, 5, at=early, state="L")
    ticket = tenant.probe.redis.hget(tenant.probe.keys[0], f"h:{made}")
    assert isinstance(ticket, bytes)
    now = time.time()
    assert tenant.probe.settle(made, now, CREDIT, 1, ack=now, body=tenant.body())[0] == "OK"
    spend(tenant, 1, at=early)
    tenant.drain()
    tenant.lose_everything()
    assert rebuild.rebuild(tenant.organization.pk)
    assert tenant.probe.hold_ids() == {made}
    assert tenant.probe.settle(made, now, CREDIT, 1, ack=now, ticket=ticket)[0] == "DUP"
    assert tenant.usage().plan.used == 2 * CREDIT
