"""Who may serve a request now, and when those can again who may not: before any strategy, and the same for all of them. Pure.

Dropped: of a kind that does not speak the client's dialect; model, effort or tier missing, status not active, exhausted (a 429 or
a window reported full), cooling, failed this request already; then, by our estimate of its use, an account with nothing left in a
window, or below the floor that its person keeps. Caps on concurrent requests are judged where slots are taken (`lua/lease.lua`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext_noop

from routing.errors import NoAccountAvailable, PoolBusy, PoolExhausted
from routing.live import AccountState
from routing.snapshots import ACTIVE, ALL_KINDS, CHATGPT, NEEDS_SIGN_IN, AccountSnapshot, PoolSnapshot
from routing.strategies import WEEK_SECONDS, Candidate

SHORT_MINUTES = 300
WEEKLY_MINUTES = 10_080
DAY_MINUTES = 1_440
"""A shorter window is the short one, any other the weekly one."""
SHORT_COOLDOWN_MS = 60_000
RETRY_EXCLUDED_MS = 1_000
"""When a client may try again if the only accounts left have just failed without a cooldown."""
HOLDS_LAST_MS = 1_800_000
"""Room that others hold is free again by then."""
FAST = frozenset({"fast", "priority"})
ORDINARY = frozenset({None, "", "auto", "default", "standard", "standard_only"})
"""The tier that every account has, as OpenAI and Anthropic name it."""


AT_REST = gettext_noop("No account of the pool can serve now: each rests after its upstream refused it.")


@dataclass(slots=True)
class Refusals:
    """Why accounts that could serve the model cannot do it now: when each can again, server milliseconds."""

    exhausted_ms: list[int] = field(default_factory=list)
    cooling_ms: list[int] = field(default_factory=list)

    def error(self, now_ms: int) -> PoolExhausted | PoolBusy:
        """The refusal that tells the truth about the wait: busy for under a minute, else exhausted until the first that is back."""
        soonest_cooling = min(self.cooling_ms, default=0)
        if soonest_cooling and soonest_cooling - now_ms <= SHORT_COOLDOWN_MS:
            return PoolBusy(max(1, math.ceil((soonest_cooling - now_ms) / 1000)))
        resets_at = math.ceil(min(self.exhausted_ms + self.cooling_ms) / 1000)
        return PoolExhausted(resets_at) if self.exhausted_ms else PoolExhausted(resets_at, message=AT_REST)


def able(
    accounts: Sequence[AccountSnapshot],
    *,
    model: str,
    effort: str | None,
    tier: str | None,
    kinds: frozenset[str] = ALL_KINDS,
) -> Sequence[AccountSnapshot]:
    """The accounts that can serve such a request at some time. Raises NoAccountAvailable."""
    if not accounts:
        raise NoAccountAvailable("no_accounts")
    of_kind = [account for account in accounts if account.kind in kinds]
    if not of_kind:
        raise NoAccountAvailable("dialect")
    found = [account for account in of_kind if account.status == ACTIVE]
    if not found:
        signed_out = any(account.status == NEEDS_SIGN_IN for account in of_kind)
        raise NoAccountAvailable("needs_sign_in" if signed_out else "paused")
    found = [account for account in found if account.models is None or model in account.models]
    if not found:
        raise NoAccountAvailable("model_not_served")
    if effort is not None:
        found = [account for account in found if account.efforts is None or effort in account.efforts]
        if not found:
            raise NoAccountAvailable("effort_not_served")
    if tier not in ORDINARY:
        names = FAST if tier in FAST else {tier}
        found = [account for account in found if account.tiers is None or account.tiers & names]
        if not found:
            raise NoAccountAvailable("tier_not_served")
    return found


def is_barred(
    account: AccountSnapshot, state: AccountState, exclude: frozenset[int], now_ms: int, refusals: Refusals | None = None
) -> bool:
    """Has the account itself said that it cannot serve now? Noted in `refusals`."""
    exhausted = state.exhausted_until_ms(now_ms) if state.exhausted_until or state.windows else 0
    if exhausted:
        if refusals is not None:
            refusals.exhausted_ms.append(exhausted)
        return True
    if state.cooling_until_ms > now_ms or account.account_id in exclude:
        if refusals is not None:
            refusals.cooling_ms.append(max(state.cooling_until_ms, now_ms + RETRY_EXCLUDED_MS))
        return True
    return False


def measure(pool: PoolSnapshot, account: AccountSnapshot, state: AccountState, now_ms: int) -> tuple[Candidate, int]:
    """The account as strategies see it, and until when (server milliseconds) it has nothing left by our estimate; 0: it has.

    A sign-in account that has reported no window yet is assumed to have both, unused; what reports none has none.
    """
    plus = (account.weight_at(now_ms) if account.later_weights else account.weight) / 1000
    c5, cw = pool.base_short * plus, pool.base_weekly * plus
    is_known = bool(state.windows)
    has_short = has_week = not is_known and account.kind == CHATGPT
    is_tau_known = False
    u5 = uw = 0.0
    tau = week_seconds = WEEK_SECONDS
    floor = account.floor_percent / 100.0
    until = 0
    for window in state.windows.values():
        is_short = window.minutes < DAY_MINUTES
        size = c5 * (window.minutes / SHORT_MINUTES) if is_short else cw * (window.minutes / WEEKLY_MINUTES)
        used = window.estimate(state.metered, size, now_ms)
        if used >= 1.0 - floor:
            until = max(until, window.ends_ms())
        # Of several windows of a sort the fuller one counts.
        if is_short and (not has_short or used > u5):
            has_short, u5, short_size = True, used, size
        elif not is_short and (not has_week or used > uw):
            has_week, uw, week_size, week_seconds = True, used, size, window.minutes * 60.0
            is_tau_known = window.resets_at * 1000 > now_ms
            tau = window.resets_at - now_ms / 1000 if is_tau_known else week_seconds
    if is_known:
        c5 = short_size if has_short else c5
        cw = week_size if has_week else cw
    return (
        Candidate(
            account.account_id,
            c5,
            cw,
            u5,
            uw,
            tau,
            is_tau_known,
            state.held_at(now_ms) / 1e6 if state.holds else 0.0,
            state.last_ms,
            account.priority,
            has_short,
            has_week,
            is_known,
            floor,
            week_seconds,
        ),
        until,
    )


def room_at_ms(candidate: Candidate, state: AccountState, credits: float, now_ms: int) -> int:
    """When an account that has something left, but less than `credits`, can start that: at the reset of what is short.

    If only others' holds are in the way, when these are free at the latest.
    """
    short: list[int] = []
    ends = [now_ms + HOLDS_LAST_MS]
    for window in state.windows.values():
        if window.is_over(now_ms):
            continue
        ends.append(window.ends_ms())
        used, size = (candidate.u5, candidate.c5) if window.minutes < DAY_MINUTES else (candidate.uw, candidate.cw)
        if size * (1.0 - used - candidate.floor) < credits:
            short.append(window.ends_ms())
    return max(short) if short else min(ends)
