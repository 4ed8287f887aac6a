"""After the race: the journals, the counters, the log, the ledger, the read models and the hourly sums, each against the others.

Nothing here uses the product's own reconciler, but for the last line, which asks it for its opinion too.
"""

from bisect import bisect_left
from collections import defaultdict
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any
from zoneinfo import ZoneInfo

from accounts.models import ApiKey
from billing import ledger
from billing.models import CreditLot, LedgerEntry, SubscriptionPeriod, UsageHour, UsageRecord
from config import redis as weir_redis
from config import snapshot
from quotas import admission, engine, reconcile, records, windows
from quotas.models import DeadLetter
from tests.races import journal
from tests.races.journal import Told
from tests.races.stage import Stage, Standing, Tenant

FUNDS = ("from_quota", "from_purchased", "from_overage", "overdraft")
ROLLING = {"5h": (18_000, 300), "1d": (86_400, 300), "7d": (604_800, 10_800), "30d": (2_592_000, 10_800)}
ENDED = {"OK", "LATE", "AMENDED", "DUP"}


def check(stage: Stage) -> dict[str, Any]:
    """What was counted, for people. Raises AssertionError with what differs."""
    told = journal.read(stage.folder)
    counted: dict[str, Any] = {"requests": len(told), **stage.done}
    for tenant in stage.tenants:
        own = {name: one for name, one in told.items() if one.organization == tenant.organization.pk}
        log = list(UsageRecord.objects.for_organization(tenant.organization).order_by("admitted_at", "request_id", "part"))
        counted[tenant.kind] = {
            "tried": len(own),
            "admitted": sum(one.ack is not None for one in own.values()),
            "refused": sum(one.is_refused for one in own.values()),
            "rows": len(log),
            "orphaned": sum(row.status == "orphaned" for row in log),
            "amended": sum(row.part == 1 for row in log),
            "credits": sum(row.credits for row in log),
            "overdraft": sum(row.overdraft for row in log),
            **{name: sum(getattr(row, name) for row in log) for name in FUNDS[1:3]},
        }
        _check_journal(own, log)
        check_sums(tenant)
        _check_refusals(own)
        _check_revocations(tenant, own)
        counted[tenant.kind]["checked under limits"] = _check_limits(tenant, own, log)
        _check_overdraft(tenant, log)
    return counted


def check_sums(tenant: Tenant) -> None:
    """Counters = log = periods = ledger = hourly sums, no hold, no dead letter. Raises AssertionError with what differs."""
    log = list(UsageRecord.objects.for_organization(tenant.organization).order_by("admitted_at", "request_id", "part"))
    assert not DeadLetter.objects.filter(organization_id=tenant.organization.pk).exists()
    _check_counters(tenant, log)
    _check_funds(tenant, log)
    _check_books(tenant, log)
    assert reconcile.reconcile(tenant.organization.pk).differences == ()


# --------------------------------------------------------------------------------------- what was said, and what was logged


def _check_journal(told: dict[str, Told], log: list[UsageRecord]) -> None:
    """Every settled request is in the log once at its cost, every other one at what was observed, a released one not at all."""
    rows: dict[str, list[UsageRecord]] = defaultdict(list)
    for row in log:
        rows[row.request_id].append(row)
    assert set(rows) <= set(told), "the log knows what nobody asked"
    for request, one in told.items():
        own = rows.get(request, [])
        assert [row.part for row in own] in ([], [0], [0, 1]), (request, own)
        if len(own) == 2:
            assert own[0].status == "orphaned", request
        total = (sum(row.credits for row in own), sum(row.counted_tokens for row in own))
        count = sum(row.counted_requests for row in own)
        settled = [amount for state, *amount in one.endings if state == "S"]
        released = any(state == "R" for state, *_ in one.endings)
        if one.is_refused:
            assert not own, (request, one)
        elif settled and any(state == "S" and outcome in ENDED for state, outcome in one.answers):
            assert own, (request, one)
            assert (total, count) == (tuple(settled[0]), 1), (request, one, own)
        elif released and one.answers:
            assert (total, count) == ((0, 0), 0), (request, one, own)
        elif one.ack is not None and not released:
            # Nobody heard how it ended: its process was killed, or let it go.
            assert count == 1, (request, one, own)
            assert total in one.observed | {tuple(amount) for amount in settled}, (request, one, own)
        else:
            assert count in (0, 1), (request, one, own)
            assert total == (0, 0), (request, one, own)


def _check_refusals(told: dict[str, Told]) -> None:
    """Nobody was refused who would have fit."""
    for one in told.values():
        if one.is_refused and one.facts["metric"] != "requests_per_second":
            facts = one.facts
            if facts["scope"] != "plan":
                assert facts["used"] + facts["held"] + facts["need"] > facts["limit"], one


def _check_revocations(tenant: Tenant, told: dict[str, Told]) -> None:
    """From the moment that `revoke` has returned nothing is admitted with the key, on any process."""
    for one in told.values():
        until = tenant.revoked.get(one.public_id)
        if until is not None and one.ack is not None:
            assert one.ack <= until, one


# ------------------------------------------------------------------------------------------------------------ counters


def _names(row: UsageRecord) -> tuple[str, ...]:
    team = () if row.team_id is None else (f"t{row.team_id}",)
    return ("o", *team, f"m{row.member_id}", f"k{row.key_id}")


def _second(row: UsageRecord) -> int:
    return int(row.admitted_at.timestamp())


def _check_counters(tenant: Tenant, log: list[UsageRecord]) -> None:
    """No hold, only tombstones; every ring cell, period total and window is the sum of the log's rows."""
    redis: Any = weir_redis.sync_client()
    pk = tenant.organization.pk
    stored: dict[bytes, bytes] = redis.hgetall(engine.counters_key(pk))
    holds = {name[2:] for name in stored if name.startswith(b"h:")}
    assert holds == set(redis.zrange(engine.leases_key(pk), 0, -1))
    assert {records.unpack(stored[b"h:" + name])[0] for name in holds} <= {"S", "R", "O"}
    zone = ZoneInfo(tenant.organization.timezone)
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in log:
        second = _second(row)
        for name in _names(row):
            for tag, at in (("f", second // 300), ("c", second // 10_800), ("d", windows.day_of(second, zone))):
                _add(expected[f"{name}|{tag}{at}"], row)
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for field, raw in stored.items():
        name, bar, cell = field.decode().partition("|")
        if "~" in name:
            continue
        if bar and cell[0] in "fcd":
            found[field.decode()] = [a + int(b) for a, b in zip(found[field.decode()], raw.split(), strict=True)]
        elif not bar and name[0] in "otmk":
            values = records.unpack(raw)
            assert (values[0], values[7], values[8]) == (0, 0, 0), (name, values)
            for tag, at in (("f", values[2]), ("c", values[2] // 36), ("d", values[3])):
                place = f"{name}|{tag}{at}"
                found[place] = [a + b for a, b in zip(found[place], values[4:7], strict=True)]
    differing = {
        place: (expected[place], found[place])
        for place in sorted(expected.keys() | found.keys())
        if expected[place] != found[place]
    }
    assert not differing, differing
    _check_usage(tenant, log)


def _add(sums: list[int], row: UsageRecord) -> None:
    sums[0] += row.credits
    sums[1] += row.counted_tokens
    sums[2] += row.counted_requests


def _check_usage(tenant: Tenant, log: list[UsageRecord]) -> None:
    """What each key is told of its limits and its plan, as pages and `/v1/usage` ask."""
    loaded = snapshot.load(tenant.organization.pk)
    now = int(datetime.now(UTC).timestamp())
    for key in loaded.accounts.keys.values():
        usage = admission.usage_sync(loaded, key, now_s=now)
        mine = [row for row in log if row.key_id == key.key_id]
        since = datetime.fromtimestamp(_period_start(loaded, now), UTC)
        period = [row for row in mine if row.admitted_at >= since]
        assert (usage.live, usage.plan.held) == (0, 0)
        assert usage.credits == sum(row.credits for row in period)
        assert usage.tokens == sum(row.counted_tokens for row in period)
        assert usage.requests == sum(row.counted_requests for row in period)


def _period_start(loaded: Any, now: int) -> int:
    from quotas import views

    start, _ = views.organization_period(loaded, now)
    return start


def _check_funds(tenant: Tenant, log: list[UsageRecord]) -> None:
    """Funding entries of the engine, and the periods' read models, against the log; purchased credits against both."""
    redis: Any = weir_redis.sync_client()
    pk = tenant.organization.pk
    stored: dict[bytes, bytes] = redis.hgetall(engine.counters_key(pk))
    booked: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in log:
        own = booked[row.source, int(row.period_starts_at.timestamp())]
        for at, name in enumerate(FUNDS):
            own[at] += getattr(row, name)
        assert sum(getattr(row, name) for name in FUNDS) == row.credits, row.request_id
    entries: dict[str, list[list[int]]] = defaultdict(list)
    for field, raw in stored.items():
        if field[:2] in (b"f:", b"p:"):
            start, quota, _, _, used, held, reserved, *rest = records.unpack(raw)
            source = field[2:].decode()
            assert (held, reserved) == (0, 0), (field, held, reserved)
            assert [used, *rest] == booked[source, start], (field, start)
            assert used <= quota or tenant.kind != "exact"
            entries[source].append([start])
    meta = records.unpack(stored[b"$"])
    assert meta[3] == sum(row.from_purchased for row in log)
    assert meta[4] == 0
    granted = ledger.granted(pk)
    assert meta[5:7] == [granted.total, granted.version]
    periods: dict[tuple[str, int], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for period in SubscriptionPeriod.objects.filter(organization_id=pk).select_related("subscription"):
        member = period.subscription.member_id
        own = periods["o" if member is None else f"m{member}", int(period.starts_at.timestamp())]
        for at, amount in enumerate((period.used_from_quota, period.used_from_purchased, period.overage, period.overdraft)):
            own[at] += amount
    for fund in booked.keys() | periods.keys():
        assert booked[fund] == periods[fund], fund


def _check_books(tenant: Tenant, log: list[UsageRecord]) -> None:
    """Ledger entries of each request sum to its rows, by fund; lots hold what was drawn of them; hours hold all of it."""
    pk = tenant.organization.pk
    kinds = {"usage_quota": 0, "usage_purchased": 1, "overage": 2, "overdraft": 3}
    posted: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    drawn: dict[int, int] = defaultdict(int)
    for entry in LedgerEntry.objects.filter(organization_id=pk, kind__in=kinds):
        amount = entry.amount if entry.debit == "usage" else -entry.amount
        posted[entry.request_id][kinds[entry.kind]] += amount
        if entry.lot_id is not None:
            drawn[entry.lot_id] += amount
    booked: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in log:
        for at, name in enumerate(FUNDS):
            booked[row.request_id][at] += getattr(row, name)
    differing = {name: (booked[name], posted[name]) for name in booked.keys() | posted.keys() if booked[name] != posted[name]}
    assert not differing, differing
    without_lot = sum(one[1] for one in booked.values()) - sum(drawn.values())
    for lot in CreditLot.objects.filter(organization_id=pk):
        # What was drawn before there was a lot is covered by the next one.
        assert drawn[lot.pk] <= lot.drawn <= lot.amount, lot
        without_lot -= lot.drawn - drawn[lot.pk]
    assert without_lot >= 0
    assert without_lot == 0 or tenant.kind != "exact"
    hours = list(UsageHour.objects.filter(organization_id=pk))
    for name in ("credits", "counted_tokens", *FUNDS, "input_tokens"):
        assert sum(getattr(hour, name) for hour in hours) == sum(getattr(row, name) for row in log), name
    assert sum(hour.requests for hour in hours) == sum(row.counted_requests for row in log)
    for column in ("member_id", "key_id"):
        by_log: dict[int, int] = defaultdict(int)
        by_hour: dict[int, int] = defaultdict(int)
        for row in log:
            by_log[getattr(row, column)] += row.credits
        for hour in hours:
            by_hour[getattr(hour, column)] += hour.credits
        assert {k: v for k, v in by_log.items() if v} == {k: v for k, v in by_hour.items() if v}, column


# -------------------------------------------------------------------------------------------------------------- limits


def _check_overdraft(tenant: Tenant, log: list[UsageRecord]) -> None:
    """Reserve mode with exact costs: only an orphan that had cost more than was observed can overdraw."""
    if tenant.kind == "exact":
        amended = sum(row.credits for row in log if row.part == 1 and row.credits > 0)
        assert sum(row.overdraft for row in log) <= amended


def _check_limits(tenant: Tenant, told: dict[str, Told], log: list[UsageRecord]) -> int:
    """At no admission a limit was passed: what earlier ones counted at least, and this one's need, fit. How many were looked at.

    An earlier request counts its hold until it ends, then its cost; an orphan meanwhile what was observed. The least of these is
    what it surely counted.
    """
    if tenant.kind == "postpaid":
        return 0
    names = {f"{key.public_id}": key for key in ApiKey.objects.filter(organization=tenant.organization).select_related("member")}
    rows: dict[str, list[UsageRecord]] = defaultdict(list)
    for row in log:
        rows[row.request_id].append(row)
    admitted = sorted((one for one in told.values() if one.ack is not None), key=lambda one: one.ack or 0)
    by_record: dict[str, list[Told]] = defaultdict(list)
    for one in admitted:
        key = names[one.public_id]
        team = () if key.member.team_id is None else (f"t{key.member.team_id}",)
        for record in ("o", *team, f"m{key.member_id}", f"k{key.pk}"):
            by_record[record].append(one)
    looked = 0
    for standing in tenant.standing:
        if standing.metric in ("credits", "tokens", "requests"):
            looked += _check_standing(standing, by_record[standing.record], rows)
    return looked


def _check_standing(standing: Standing, admitted: list[Told], rows: dict[str, list[UsageRecord]]) -> int:
    at = ("credits", "tokens", "requests").index(standing.metric)

    def least(one: Told) -> int:
        own = rows.get(one.request, [])
        if not own:
            return 0
        parts = [(row.credits, row.counted_tokens, row.counted_requests)[at] for row in own]
        return min(parts[0], sum(parts), (*one.need, 1)[at])

    acks = [one.ack or 0 for one in admitted]
    sums = [0, *accumulate(least(one) for one in admitted)]
    looked = 0
    for one in admitted:
        assert one.ack is not None
        need = (*one.need, 1)[at]
        if need == 0 or one.ack <= standing.since or (standing.until is not None and one.ack >= standing.until):
            continue
        # The whole race lies in the window, unless a calendar window began meanwhile: then only what is surely in it.
        first = bisect_left(acks, _window_start(standing.window, one.ack))
        before = sums[bisect_left(acks, one.ack)] - sums[first]
        assert before + need <= standing.amount, (standing, one, before)
        looked += 1
    return looked


def _window_start(window: str, ack: int) -> int:
    """In ms, a moment at which the window that holds at `ack` has surely begun already."""
    if window in ROLLING:
        return ack - ROLLING[window][0] * 1000
    # Calendar windows and periods of all zones of the race begin at half or full hours; a plan's change may begin a period.
    return ack - ack % 1_800_000 if window != "period" else ack
