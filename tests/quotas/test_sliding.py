"""What is finer than buckets, at the engine: requests per second, windows counted by the second, plans whose quota rolls."""

import random
from collections import deque
from collections.abc import Iterator

import pytest

from quotas import adjusting, engine, records
from quotas.adjusting import Cell
from quotas.records import BY_SECOND, CREDITS, PER_SECOND, PLAN_PAID, REQUESTS, TOKENS, Question, RecordView
from tests.quotas.engine_probe import Probe, T, ms

FIVE_HOURS = records.code(records.FIVE_HOURS)
SEVEN_DAYS = records.code(records.SEVEN_DAYS)
WEEK = 7 * 86400


@pytest.fixture
def probe() -> Iterator[Probe]:
    made = Probe(organization=1077)
    made.warm()
    yield made
    made.wipe()


# -------------------------------------------------------------------------------------------------- requests per second


def paced(rate: int, name: str = "o") -> RecordView:
    return RecordView(name, (), (Question(PER_SECOND, 0, rate),))


def test_two_seconds_worth_may_come_at_once_then_one_for_each_step(probe: Probe) -> None:
    view = probe.view([paced(3)])
    for number in range(6):
        assert probe.admit(f"r{number}", T, view) == ["OK", 1]
    assert probe.admit("x", T, view) == ["NO", "o", 6, 0, 3, 3, 0, T + 1]
    assert probe.admit("x", T + 0.333, view)[0] == "NO"
    assert probe.admit("x", T + 0.334, view) == ["OK", 1]
    assert probe.admit("y", T + 0.334, view)[0] == "NO"
    # After a pause of two seconds all of it is there again, and no more.
    for number in range(6):
        assert probe.admit(f"s{number}", T + 10, view) == ["OK", 1]
    assert probe.admit("z", T + 10, view)[0] == "NO"


def test_a_refused_request_takes_no_place_and_zero_blocks(probe: Probe) -> None:
    """A20 for requests per second; a refusal leaves the pace as it was."""
    assert probe.admit("a", T, probe.view([paced(0)])) == ["NO", "o", 6, 0, 0, 0, 0, -1]
    view = probe.view([paced(1), RecordView("k1", (), (Question(CREDITS, 0, 10),))])
    assert [probe.admit(f"r{number}", T, view, 11)[1] for number in range(5)] == ["k1"] * 5
    assert [probe.admit(f"s{number}", T, view)[0] for number in range(3)] == ["OK", "OK", "NO"]


def test_the_free_second_is_the_earliest_whole_one(probe: Probe) -> None:
    view = probe.view([paced(1)])
    for number in range(2):
        probe.admit(f"r{number}", T + 0.5, view)
    answer = probe.admit("x", T + 0.5, view)
    assert answer[-1] == T + 2
    assert probe.admit("x", T + 1.499, view)[0] == "NO"
    assert probe.admit("x", T + 1.5, view) == ["OK", 1]


def test_the_pace_stands_still_while_the_clock_is_behind(probe: Probe) -> None:
    """Invariant 10's kind: never more than the clock has allowed already."""
    view = probe.view([paced(2)])
    assert [probe.admit(f"r{number}", T, view)[0] for number in range(4)] == ["OK"] * 4
    assert probe.admit("x", T - 7200, view)[0] == "NO"
    assert probe.admit("x", T + 1, view) == ["OK", 1]


def test_a_release_gives_no_place_back_and_every_record_has_its_own(probe: Probe) -> None:
    view = probe.view([RecordView("o"), paced(1, "k1")])
    other = probe.view([RecordView("o"), paced(1, "k2")])
    for number in range(2):
        probe.admit(f"r{number}", T, view)
        probe.release(f"r{number}", T, ack=T)
    assert probe.admit("x", T, view)[1:3] == ["k1", 6]
    assert probe.admit("y", T, other) == ["OK", 1]


@pytest.mark.parametrize("rate", [1, 3, 7, 600, 1_000_000, 10**12])
def test_no_stretch_of_time_sees_more_than_the_rate_and_the_burst(probe: Probe, rate: int) -> None:
    """Against a log of admissions: in any stretch at most rate x length + 2 x rate requests."""
    rng = random.Random(rate)
    view = probe.view([paced(rate)])
    now, admitted = float(T), []
    for number in range(400):
        now += rng.choice([0, 0, 0.001, 0.01, 0.3, 1])
        answer = probe.admit(f"r{number}", now, view)
        if answer[0] == "OK":
            admitted.append(now)
        else:
            assert answer[-1] > now
            fits = [probe.admit(f"t{number}", answer[-1], probe.view([paced(rate)])), answer[-1]]
            assert fits[0] == ["OK", 1]
            now = fits[1]
            admitted.append(now)
    for first in range(0, len(admitted), 7):
        for last in range(first, len(admitted)):
            assert last - first + 1 <= rate * (admitted[last] - admitted[first]) + 2 * rate + 1e-6


# -------------------------------------------------------------------------------------------------------- by the second


def exact(amount: int, *, code: int = FIVE_HOURS, metric: int = CREDITS, name: str = "o") -> RecordView:
    return RecordView(name, (code,), (Question(metric + BY_SECOND, 1, amount),))


def test_a_window_by_the_second_gives_back_what_buckets_would_keep(probe: Probe) -> None:
    """V2, where a bucket keeps it for a second more, and up to five minutes: by the second it leaves when five hours are over."""
    t0 = T + 7
    view = probe.view([exact(100)])
    assert probe.admit("a", t0, view, 100) == ["OK", 1]
    assert probe.settle("a", t0, 100, ack=t0) == ["OK", 100, 0, 0, 0]
    assert probe.admit("b", t0 + 17_999, view, 1) == ["NO", "o", 1, FIVE_HOURS, 100, 100, 0, t0 + 18_000]
    assert probe.admit("c", t0 + 18_000, view, 1) == ["OK", 1]
    ring = probe.view([RecordView("o", (FIVE_HOURS,), (Question(CREDITS, 1, 100),))], version=2)
    assert probe.admit("d", t0 + 18_000, ring, 1)[0] == "NO"


def test_the_log_follows_renewals_settlements_releases_and_amendments(probe: Probe) -> None:
    view = probe.view([exact(10**9)])
    for name, at in (("a", 1), ("b", 1), ("c", 2), ("d", 3)):
        assert probe.admit(name, T + at, view, 100, 10, lease=60) == ["OK", 1]
    probe.renew("a", T + 4, 150, 20, ack=T + 1)
    assert [probe.cell(f"o|s{T + at}") for at in (1, 2, 3)] == ["250 30 2", "100 10 1", "100 10 1"]
    probe.settle("a", T + 5, 90, 9, ack=T + 4)
    probe.release("b", T + 5, ack=T + 1)
    probe.sweep(T + 70)
    probe.settle("d", T + 71, 40, 4, ack=T + 3)
    assert [probe.cell(f"o|s{T + at}") for at in (1, 2, 3)] == ["90 9 1", "0 0 1", "40 4 1"]


def test_many_histories_agree_with_an_exact_log(probe: Probe) -> None:
    """sliding_log is exact for every metric: a random history answers as a list of requests does, second by second."""
    for seed in range(12):
        rng = random.Random(seed)
        code, width = rng.choice([(FIVE_HOURS, 18_000), (SEVEN_DAYS, WEEK)])
        metric = rng.choice([CREDITS, TOKENS, REQUESTS])
        most = {CREDITS: 1000, TOKENS: 300, REQUESTS: 12}[metric]
        probe.warm()
        view = probe.view([RecordView("o"), exact(most, code=code, metric=metric, name="k1")], until=T + 10**9)
        now, log = T + rng.randrange(20_000), deque[tuple[int, int, int]]()
        for number in range(250):
            now += rng.choice([0, 1, 7, 200, 900, 3000]) * (width // 18_000)
            need, tokens = rng.choice([1, 40, 300]), rng.choice([1, 20, 90])
            while log and log[0][0] <= now - width:
                log.popleft()
            used = {CREDITS: sum(c for _, c, _ in log), TOKENS: sum(t for _, _, t in log), REQUESTS: len(log)}[metric]
            wants = {CREDITS: need, TOKENS: tokens, REQUESTS: 1}[metric]
            answer = probe.admit(f"{seed}-{number}", now, view, need, tokens)
            assert answer[0] == ("OK" if used + wants <= most else "NO"), (seed, number)
            if answer[0] == "OK":
                cost, counted = rng.choice([(need, tokens), (need // 2, tokens // 2), (need + 50, tokens + 9)])
                probe.settle(f"{seed}-{number}", now, cost, counted, ack=now)
                log.append((now, cost, counted))
                continue
            assert answer[5] == used
            free = answer[-1]
            left = [entry for entry in log if entry[0] > free - width]
            at_free = {CREDITS: sum(c for _, c, _ in left), TOKENS: sum(t for _, _, t in left), REQUESTS: len(left)}[metric]
            before = [entry for entry in log if entry[0] > free - 1 - width]
            just = {CREDITS: sum(c for _, c, _ in before), TOKENS: sum(t for _, _, t in before), REQUESTS: len(before)}[metric]
            assert at_free + wants <= most < just + wants


def test_old_seconds_are_dropped_as_new_ones_come(probe: Probe) -> None:
    view = probe.view([exact(10**9)])
    for number in range(40):
        probe.admit(f"r{number}", T + number, view, 1)
    assert len(probe.redis.zrange(probe.keys[6], 0, -1)) == 40
    for number in range(3):
        probe.admit(f"s{number}", T + 20_000 + number, view, 1)
    kept = probe.redis.zrange(probe.keys[6], 0, -1)
    assert kept == [f"o|s{T + 20_000 + number}".encode() for number in range(3)]
    assert sum(1 for cell in probe.dump() if b"|s" in cell) == 3


def test_a_full_log_falls_back_to_the_buckets_and_never_opens(probe: Probe) -> None:
    """Past 100,000 seconds new ones are not kept: their window is counted by its buckets, which is never less."""
    view = probe.view([exact(100)])
    fields = [f"o|s{T - 20_000_000 + number}" for number in range(engine.MOST_LOGGED + 40)]
    for start in range(0, len(fields), 5000):
        probe.redis.zadd(probe.keys[6], dict.fromkeys(fields[start : start + 5000], 0))
    t0 = T + 7
    assert probe.admit("a", t0, view, 100) == ["OK", 1]
    assert probe.cell(f"o|s{t0}") is None
    probe.settle("a", t0, 100, ack=t0)
    probe.redis.delete(probe.keys[6])
    assert probe.admit("b", t0 + 18_000, view, 1)[0] == "NO"
    assert probe.admit("b", t0 + 18_293, view, 1) == ["OK", 1]


def test_a_lost_log_counts_too_much_and_what_is_added_again_makes_it_exact(probe: Probe) -> None:
    t0 = T + 7
    view = probe.view([exact(100)])
    probe.admit("a", t0, view, 60)
    probe.settle("a", t0, 60, ack=t0)
    probe.redis.delete(probe.keys[6])
    probe.redis.hdel(probe.keys[0], f"o|s{t0}")
    assert probe.admit("b", t0 + 18_000, view, 41)[0] == "NO"
    assert adjusting.adjust(probe.organization, 1, "fill", [Cell("o", "s", t0, 60, 0, 1)], now_ms=ms(t0 + 18_000)) == "OK"
    assert probe.admit("b", t0 + 18_000, view, 100) == ["OK", 1]


def test_no_log_is_kept_where_nothing_is_counted_by_the_second(probe: Probe) -> None:
    view = probe.view([RecordView("o", (FIVE_HOURS,), (Question(CREDITS, 1, 100),))])
    probe.admit("a", T, view, 1)
    probe.settle("a", T, 1, ack=T)
    assert not probe.redis.exists(probe.keys[6])
    assert not any(b"|s" in cell for cell in probe.dump())


# ---------------------------------------------------------------------------------------------- plans whose quota rolls

OWN = f"o~s1w{records.SEVEN_DAYS}"


def plan(probe: Probe, since: int, **terms: object) -> bytes:
    """A weekly plan of 100 whose period began at `since`."""
    own = RecordView(OWN, (SEVEN_DAYS,), (Question(PLAN_PAID, 1, 0),))
    return probe.view([RecordView("o"), own], period=since, since=since, until=since + WEEK, **{"quota": 100, **terms})  # type: ignore[arg-type]


def spend(probe: Probe, request: str, at: float, view: bytes, need: int, cost: int | None = None) -> list[object]:
    answer = probe.admit(request, at, view, need)
    if answer[0] != "OK":
        return answer
    return probe.settle(request, at, need if cost is None else cost, ack=at)


def test_a_boundary_gives_the_quota_only_once(probe: Probe) -> None:
    """Two periods' quotas within an hour is what a fixed window allows; here the week before counts."""
    first, second = plan(probe, T), plan(probe, T + WEEK)
    assert spend(probe, "a", T + WEEK - 60, first, 80) == ["OK", 80, 0, 0, 0]
    answer = probe.admit("b", T + WEEK + 60, second, 21)
    assert answer[:7] == ["NO", "plan", 1, 10, 100, 80, 0]
    # When the bucket of that request leaves; the period has room by itself.
    bucket = (T + WEEK - 60) // 10_800
    assert answer[7:] == [(bucket + 57) * 10_800, 0]
    assert spend(probe, "b", T + WEEK + 60, second, 20) == ["OK", 20, 0, 0, 0]
    assert spend(probe, "c", T + WEEK + 61, second, 1)[:4] == ["NO", "plan", 1, 10]
    assert spend(probe, "d", answer[7], plan(probe, T + 2 * WEEK), 80) == ["OK", 80, 0, 0, 0]


def test_what_the_policy_pays_is_never_refused_and_costs_the_plan_nothing(probe: Probe) -> None:
    """Purchased credits and a cap pay beyond the rolling quota as they do beyond the period's; the plan does not pay twice."""
    probe.warm(granted=30)
    first, second = (plan(probe, since, allowed=True, cap=10) for since in (T, T + WEEK))
    assert spend(probe, "a", T + WEEK - 60, first, 100) == ["OK", 100, 0, 0, 0]
    # The new period's quota is untouched, and still it is purchased credits that pay.
    assert spend(probe, "b", T + WEEK + 60, second, 25) == ["OK", 0, 25, 0, 0]
    assert spend(probe, "c", T + WEEK + 61, second, 12) == ["OK", 0, 5, 7, 0]
    assert probe.funding()["used"] == 0
    assert spend(probe, "d", T + WEEK + 62, second, 4)[:7] == ["NO", "plan", 1, 10, 100, 100, 0]
    assert spend(probe, "e", T + WEEK + 63, second, 3) == ["OK", 0, 0, 3, 0]
    # What was purchased does not stand in the plan's way later: only what the plan paid is in its window.
    assert probe.record(OWN).used[SEVEN_DAYS] == (100, 0, 4)
    assert spend(probe, "f", T + 2 * WEEK - 1, second, 100) == ["NO", "plan", 1, 10, 100, 100, 0, probe_free(T + WEEK - 60), 0]
    third = plan(probe, T + 2 * WEEK, allowed=True, cap=10)
    assert spend(probe, "g", T + 2 * WEEK + 21_600, third, 100) == ["OK", 100, 0, 0, 0]


def probe_free(second: int) -> int:
    return (second // 10_800 + 57) * 10_800


def test_holds_count_whole_until_they_end_and_reserve_what_they_will_need(probe: Probe) -> None:
    probe.warm(granted=50)
    view = plan(probe, T, allowed=True)
    seat = probe.view([RecordView("o")], period=T, source="m7", quota=10, allowed=True)
    assert probe.admit("a", T + 1, view, 120) == ["OK", 1]
    assert (probe.funding()["reserved"], probe.record(OWN).held_c) == (20, 120)
    assert probe.admit("b", T + 2, seat, 41)[:4] == ["NO", "plan", 1, 9]
    assert probe.admit("b", T + 2, seat, 40) == ["OK", 1]
    assert probe.settle("a", T + 3, 130, ack=T + 1) == ["OK", 100, 20, 0, 10]
    assert probe.record(OWN).used[SEVEN_DAYS] == (100, 0, 1)
    assert probe.settle("b", T + 3, 40, ack=T + 2) == ["OK", 10, 30, 0, 0]


def test_an_orphans_amendment_books_the_plan_money_once(probe: Probe) -> None:
    view = plan(probe, T)
    assert probe.admit("a", T + 1, view, 60, lease=10) == ["OK", 1]
    probe.renew("a", T + 2, 70, 0, ack=T + 1, lease=10)
    assert probe.sweep(T + 20) == ["OK", 1, 0, 0]
    assert probe.record(OWN).used[SEVEN_DAYS] == (70, 0, 1)
    assert probe.settle("a", T + 21, 95, ack=T + 2) == ["AMENDED", 95, 0, 0, 0]
    assert probe.record(OWN).used[SEVEN_DAYS] == (95, 0, 1)
    assert spend(probe, "b", T + 22, view, 5) == ["OK", 5, 0, 0, 0]
    assert spend(probe, "c", T + 23, view, 1)[0] == "NO"


def test_a_late_settlement_and_a_restored_hold_count_in_the_plans_window(probe: Probe) -> None:
    view = plan(probe, T)
    probe.admit("a", T + 1, view, 60)
    probe.admit("b", T + 1, view, 30)
    probe.warm(epoch=2)
    assert probe.renew("b", T + 2, 35, 0, ack=T + 1) == ["RESTORED"]
    # No terms are known of a period that nothing drew on yet, so they come with the settlement.
    assert probe.settle("a", T + 2, 55, ack=T + 1, terms=(100, 0, 0)) == ["LATE", 55, 0, 0, 0]
    assert (probe.record(OWN).used[0], probe.record(OWN).held_c) == ((90, 0, 2), 35)
    assert spend(probe, "c", T + 3, view, 11)[:6] == ["NO", "plan", 1, 10, 100, 90]
    assert probe.settle("b", T + 4, 45, ack=T + 2) == ["OK", 45, 0, 0, 0]


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_plan_never_pays_more_than_its_quota_in_any_week(probe: Probe, seed: int, is_exact: bool) -> None:
    """Against a log of what the plan paid: in no week more than the quota, over many boundaries; and never less than it could,
    by the second, where the window is counted by the second."""
    rng = random.Random(seed)
    probe.warm(granted=rng.choice([0, 500]))
    is_allowed = rng.random() < 0.5
    metric = PLAN_PAID + (BY_SECOND if is_exact else 0)
    own = RecordView(OWN, (SEVEN_DAYS,), (Question(metric, 1, 0),))
    now, paid = float(T), list[tuple[float, int]]()
    spent_all = 0
    for number in range(220):
        now += rng.choice([1, 600, 3_000, 30_000, 200_000])
        since = T + int(now - T) // WEEK * WEEK
        view = probe.view(
            [RecordView("o"), own], period=since, since=since, until=since + WEEK, quota=100, allowed=is_allowed, cap=5
        )
        need = rng.choice([1, 10, 35])
        answer = spend(probe, f"r{number}", now, view, need, cost=rng.choice([need, need // 2]))
        week = sum(amount for at, amount in paid if at > int(now) - WEEK)
        period = sum(amount for at, amount in paid if at >= since)
        if answer[0] == "OK":
            assert answer[4] == 0
            paid.append((int(now), int(answer[1])))  # type: ignore[call-overload]
            spent_all += sum(int(part) for part in answer[1:])  # type: ignore[call-overload]
            assert sum(amount for at, amount in paid if at > int(now) - WEEK) <= 100
        elif is_exact:
            assert need > 100 - max(week, period)
    assert spent_all > 300


# --------------------------------------------------------------------------------------------- a quota that was lowered


def test_what_was_settled_needs_no_other_fund_when_the_quota_is_lowered(probe: Probe) -> None:
    """Invariant 7: used may be above a lowered quota; purchased credits then pay what comes, not again what the plan has paid."""
    probe.warm(granted=30)
    assert spend(probe, "a", T, probe.view(quota=100), 80) == ["OK", 80, 0, 0, 0]
    lower = probe.view(quota=50, allowed=True, version=2)
    assert probe.admit("b", T + 1, lower, 31)[:6] == ["NO", "plan", 1, 9, 50, 80]
    assert probe.admit("b", T + 1, lower, 30) == ["OK", 1]
    assert probe.funding()["reserved"] == 30
    assert probe.settle("b", T + 2, 30, ack=T + 1) == ["OK", 0, 30, 0, 0]
    assert (probe.funding()["used"], probe.funding()["reserved"], probe.meta()[3:5]) == (80, 0, [30, 0])
    assert probe.admit("c", T + 3, lower, 1)[0] == "NO"
    assert probe.admit("free", T + 3, lower, 0) == ["OK", 1]


def test_a_lowered_quota_reserves_nothing_that_others_could_use(probe: Probe) -> None:
    probe.warm(granted=30)
    spend(probe, "a", T, probe.view(quota=100, allowed=True), 80)
    assert spend(probe, "free", T + 1, probe.view(quota=50, allowed=True, version=2), 0) == ["OK", 0, 0, 0, 0]
    assert probe.funding()["reserved"] == 0
    seat = probe.view(source="m7", quota=0, allowed=True, version=2)
    assert spend(probe, "b", T + 2, seat, 30) == ["OK", 0, 30, 0, 0]


def test_a_cap_that_was_taken_away_does_not_refuse_what_the_quota_pays(probe: Probe) -> None:
    """A plan that changes from invoice to a larger quota: what was invoiced stays, and the new quota may be used."""
    assert spend(probe, "a", T, probe.view(quota=50, cap=40), 80) == ["OK", 50, 0, 30, 0]
    larger = probe.view(quota=200, cap=0, version=2)
    assert spend(probe, "b", T + 1, larger, 150) == ["OK", 150, 0, 0, 0]
    assert probe.admit("c", T + 2, larger, 1)[:4] == ["NO", "plan", 1, 9]


def test_a_raised_quota_pays_at_once(probe: Probe) -> None:
    spend(probe, "a", T, probe.view(quota=50), 50)
    assert probe.admit("b", T + 1, probe.view(quota=50), 1)[0] == "NO"
    assert spend(probe, "b", T + 1, probe.view(quota=80, version=2), 30) == ["OK", 30, 0, 0, 0]
