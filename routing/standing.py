"""How the accounts of a pool stand: what Redis knows of them, in one round trip, in words and numbers for a page. Takes nothing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from accounts import display
from config import redis as weir_redis
from routing import eligibility, live, pace, turns
from routing.live import AccountState, States, Window
from routing.models import PoolAccount
from routing.outlook import Week
from routing.pace import Turn
from routing.snapshots import ANTHROPIC, CHATGPT, AccountSnapshot, PoolSnapshot

SERVING, DRAINING, COOLING, STANDBY, PAUSED, NEEDS_SIGN_IN = (
    gettext_noop("Serving"),
    gettext_noop("Draining"),
    gettext_noop("Cooling down"),
    gettext_noop("Standby"),
    gettext_noop("Paused"),
    gettext_noop("Needs sign-in"),
)
"""Compared and told to programs as they are; pages translate them where they show them."""
TONES = {SERVING: "ok", DRAINING: "info", COOLING: "warn", STANDBY: "plain", PAUSED: "plain", NEEDS_SIGN_IN: "bad"}
CARRY = frozenset({SERVING, DRAINING, STANDBY})
"""States in which an account carries traffic, or would at once."""
WHOLE = 1_000_000
"""Fractions are shown from whole parts of this: rounded down, never flattering."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What Redis said of a pool: the server's clock, states and running requests by account id, the mean turn in credits."""

    now_ms: int
    states: States
    running: Mapping[int, int]
    turn: float


@dataclass(frozen=True, slots=True)
class Gauge:
    """A window as a meter: `left` of WHOLE. `is_over`: it was reset, and has not been reported again."""

    minutes: int
    left: int
    resets_at: datetime | None
    observed_at: datetime
    is_over: bool

    @property
    def percent(self) -> int:
        return display.percent_left(self.left, WHOLE)

    @property
    def share(self) -> str:
        return display.share(self.left, WHOLE)

    @property
    def level(self) -> str:
        return display.level(self.left, WHOLE)

    @property
    def name(self) -> str:
        """Its length, where that is not the column's."""
        usual = (eligibility.SHORT_MINUTES, eligibility.WEEKLY_MINUTES)
        return "" if self.minutes in usual else Window(self.minutes, 0.0, 0, 0).name()


@dataclass(frozen=True, slots=True)
class Standing:
    """One account as the page shows it. Credits, not micro-credits: what accounts carry is an assumption, not money.

    `until`: when a state that passes is over. `week_left`, `week_size`: credits of the weekly window; size 0: it has none, or none
    is known. `is_live` False: Redis did not answer, so the state is the stored one alone.
    """

    row: PoolAccount
    account: AccountSnapshot
    state: str
    until: datetime | None
    why: str
    short: Gauge | None
    week: Gauge | None
    week_left: float
    week_size: float
    running: int
    held: float
    is_live: bool

    @property
    def tone(self) -> str:
        return TONES[self.state]

    @property
    def weight(self) -> str:
        return f"{self.account.weight / 1000:g}"

    @property
    def is_sign_in(self) -> bool:
        return bool(self.row.kind == CHATGPT)

    @property
    def is_poll_failing(self) -> bool:
        """Its last usage poll came to nothing; that it needs a sign-in is told by its state."""
        return self.row.poll_outcome not in ("", "ok", "busy", "out")


def read(pool: PoolSnapshot) -> Reading:
    """One round trip, however many accounts. Sync. Raises RedisUnavailable."""
    batch: Any = weir_redis.sync_client().pipeline(transaction=False)
    batch.time()
    batch.hgetall(live.live_key(pool))
    batch.hvals(live.turns_key(pool))
    for account in pool.accounts:
        batch.zrange(live.slots_key(pool, account.account_id), 0, -1, withscores=True)
    ask: Callable[[], list[Any]] = batch.execute
    with weir_redis.translated():
        (seconds, micros), fields, means, *slots = ask()
    now_ms = seconds * 1000 + micros // 1000
    ends = dict(zip((account.account_id for account in pool.accounts), slots, strict=True))
    turn = sum(int(mean) for mean in means) / len(means) if means else turns.START
    return Reading(
        now_ms=now_ms,
        states=States([part for pair in fields.items() for part in pair]),
        running={account_id: sum(end > now_ms for _, end in held) for account_id, held in ends.items()},
        turn=turn / 1e6,
    )


def of_pool(pool: PoolSnapshot, rows: Mapping[int, PoolAccount], reading: Reading | None) -> list[Standing]:
    """Every account of the pool that was not taken out, the lowest tier first. `rows` by id; `reading` None: Redis is away."""
    found = [
        _standing(pool, account, rows[account.account_id], reading)
        for account in pool.accounts
        if account.account_id in rows and account.status != PoolAccount.Status.WITHDRAWN
    ]
    # Of those that can serve the same clients: nobody stands in for the only one that speaks Messages.
    first: dict[bool, int] = {}
    for one in found:
        if one.state == SERVING:
            first[_speaks_messages(one)] = min(one.account.priority, first.get(_speaks_messages(one), one.account.priority))
    waits = [one.state == SERVING and one.account.priority > first[_speaks_messages(one)] for one in found]
    found = [_waiting(one) if is_second else one for one, is_second in zip(found, waits, strict=True)]
    return sorted(found, key=lambda one: (one.account.priority, one.row.pk))


def _speaks_messages(one: Standing) -> bool:
    return bool(one.row.kind == ANTHROPIC)


def _waiting(one: Standing) -> Standing:
    return replace(one, state=STANDBY, why=_("used when no lower tier has room"))


def _standing(pool: PoolSnapshot, account: AccountSnapshot, row: PoolAccount, reading: Reading | None) -> Standing:
    if reading is None:
        return Standing(row, account, _stored(account), None, _reason(row), None, None, 0.0, 0.0, 0, 0.0, is_live=False)
    now_ms, known = reading.now_ms, reading.states.get(account.account_id)
    candidate, until_ms = eligibility.measure(pool, account, known, now_ms)
    state, until, why = _stored(account), None, _reason(row)
    if state == SERVING:
        state, until, why = _passing(pool, account, known, reading, until_ms)
    sizes = (candidate.c5, candidate.cw)
    short, week = _gauges(pool, account, known, now_ms)
    has_week = candidate.is_known and candidate.has_week
    return Standing(
        row=row,
        account=account,
        state=state,
        until=until,
        why=why,
        short=short,
        week=week,
        week_left=max(0.0, sizes[1] * (1.0 - candidate.uw)) if has_week else 0.0,
        week_size=sizes[1] if has_week else 0.0,
        running=reading.running.get(account.account_id, 0),
        held=candidate.hold,
        is_live=True,
    )


def _stored(account: AccountSnapshot) -> str:
    stored = {PoolAccount.Status.PAUSED: PAUSED, PoolAccount.Status.NEEDS_SIGN_IN: NEEDS_SIGN_IN}
    return stored.get(PoolAccount.Status(account.status), SERVING)


def _reason(row: PoolAccount) -> str:
    if row.status == PoolAccount.Status.NEEDS_SIGN_IN:
        return row.status_reason.replace("_", " ")
    return ""


def _passing(
    pool: PoolSnapshot, account: AccountSnapshot, known: AccountState, reading: Reading, until_ms: int
) -> tuple[str, datetime | None, str]:
    """The state of an account that is meant to serve, until when, and why; as `routing.choice` would take it."""
    now_ms = reading.now_ms
    if exhausted := known.exhausted_until_ms(now_ms):
        return COOLING, _moment(exhausted), _("used up")
    if known.cooling_until_ms > now_ms:
        return COOLING, _moment(known.cooling_until_ms), _("its upstream failed")
    if until_ms:
        return (
            COOLING,
            _moment(until_ms),
            _("at the %(percent)s %% its person keeps") % {"percent": account.floor_percent}
            if account.floor_percent
            else _("used up"),
        )
    candidate = eligibility.measure(pool, account, known, now_ms)[0]
    if pace.head(candidate, Turn(0.0)) < pool.safety * reading.turn:
        return DRAINING, None, _("too little room for a new turn; running ones finish")
    return SERVING, None, ""


def _gauges(pool: PoolSnapshot, account: AccountSnapshot, known: AccountState, now_ms: int) -> tuple[Gauge | None, Gauge | None]:
    """The short window and the weekly one; of several of a sort the fuller one, as `eligibility.measure` counts."""
    plus = account.weight_at(now_ms) / 1000
    found: dict[bool, Gauge] = {}
    for window in known.windows.values():
        is_short = window.minutes < eligibility.DAY_MINUTES
        base, minutes = (pool.base_short, eligibility.SHORT_MINUTES) if is_short else (pool.base_weekly, eligibility.WEEKLY_MINUTES)
        used = window.estimate(known.metered, base * plus * window.minutes / minutes, now_ms)
        gauge = Gauge(
            minutes=window.minutes,
            left=max(0, min(WHOLE, int((1.0 - used) * WHOLE + 0.5))),
            resets_at=_moment(window.resets_at * 1000) if window.resets_at else None,
            observed_at=_moment(window.observed_ms),
            is_over=window.is_over(now_ms),
        )
        if is_short not in found or gauge.left < found[is_short].left:
            found[is_short] = gauge
    return found.get(True), found.get(False)


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def total(found: Sequence[Standing]) -> tuple[float, float]:
    """Credits left and size of the weekly windows that count: of accounts that carry traffic or will when they have cooled."""
    counted = [one for one in found if one.state not in (PAUSED, NEEDS_SIGN_IN)]
    return sum(one.week_left for one in counted), sum(one.week_size for one in counted)


def weeks(found: Sequence[Standing]) -> dict[int, Week]:
    """The weekly windows that count, by account id: of accounts that carry traffic or will when they have cooled."""
    return {
        one.row.pk: Week(one.row.label, one.week_left, one.week_size, one.week.resets_at)
        for one in found
        if one.week is not None and one.week_size and one.state not in (PAUSED, NEEDS_SIGN_IN)
    }
