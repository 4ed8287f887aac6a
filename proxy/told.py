"""What Codex is told of the limits of the key that asks, in the upstream's words: headers, a WebSocket frame, the usage answer.

Never of the pool (N6). `/v1/usage` tells the same in amounts (`proxy.usage`).
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from billing import credits
from config.errors import DomainError
from proxy.errors import Answer, json_answer
from proxy.leaf import Asked, leaf
from quotas import gauges
from quotas.admission import Admission
from quotas.errors import LimitReached
from quotas.gauges import Gauge, Reading

Pairs = list[tuple[bytes, bytes]]

WEEK = 7 * 86400
PLAN_TYPE = "team"
"""Clients know a few names only. Of these it is the one whose advice fits: to ask an admin for more, not to buy something."""
LIMIT_NAME = "codex"
"""Under another name Codex would show the windows as another product's, below its own."""
UNCONSTRAINED = "NO_CONSTRAINT"
MOST_ACCOUNT_ID = 128


def chosen(found: Iterable[Gauge]) -> tuple[Gauge | None, Gauge | None]:
    """The two windows that there is room for: the shortest, and of the longer ones the fullest; so the fullest of all is told.

    Of windows of one length the fullest stands for all: whose limit it is, and what it counts, does not matter to whom it stops.
    Of equally full ones: a week before the plan's period before the others. Limits of some models only are not among them.
    """
    first = second = None
    first_rank = second_rank = -1
    for gauge in found:
        if gauge.models:
            continue
        rank = gauge.basis_points * 8 + (gauge.seconds == WEEK) * 4 + gauge.is_plan * 2 + (gauge.metric == "credits")
        if first is None or gauge.seconds < first.seconds:
            # What was the shortest so far is one of the longer ones now.
            if first_rank > second_rank:
                second, second_rank = first, first_rank
            first, first_rank = gauge, rank
        elif gauge.seconds == first.seconds:
            if rank > first_rank:
                first, first_rank = gauge, rank
        elif rank > second_rank:
            second, second_rank = gauge, rank
    return first, second


# ----------------------------------------------------------------------------------------------- with proxied answers

_NAME = (b"x-codex-limit-name", LIMIT_NAME.encode())
_HAS_CREDITS, _BALANCE = b"x-codex-credits-has-credits", b"x-codex-credits-balance"
_UNLIMITED = (b"x-codex-credits-unlimited", b"false")
_NO_CREDITS = ((_HAS_CREDITS, b"false"), _UNLIMITED, (_BALANCE, b"0"), _NAME)
_PRIMARY = (b"x-codex-primary-used-percent", b"x-codex-primary-window-minutes", b"x-codex-primary-reset-at")
_SECONDARY = (b"x-codex-secondary-used-percent", b"x-codex-secondary-window-minutes", b"x-codex-secondary-reset-at")


def headers(admission: Admission) -> Pairs:
    """`x-codex-*` for the answer to an admitted request; of what its admission told, so they cost no round trip."""
    return [] if admission.told is None else _headers(admission.told.reading())


def refusal_headers(error: DomainError) -> Pairs:
    """The same for a refusal by a limit or the plan: the window that refuses. Nothing for any other error."""
    if not isinstance(error, LimitReached) or not error.seconds:
        return []
    return [*_window_headers(_PRIMARY, Gauge(error.seconds, error.metric, error.used, error.limit, error.resets_at)), _NAME]


def _headers(reading: Reading) -> Pairs:
    first, second = chosen(reading.gauges)
    pairs = _window_headers(_PRIMARY, first) + _window_headers(_SECONDARY, second)
    if reading.purchased > 0:
        pairs += ((_HAS_CREDITS, b"true"), _UNLIMITED, (_BALANCE, credits.text(reading.purchased).encode()), _NAME)
    else:
        pairs += _NO_CREDITS
    return pairs


def _window_headers(names: tuple[bytes, bytes, bytes], gauge: Gauge | None) -> Pairs:
    if gauge is None:
        return []
    percent, minutes, reset_at = names
    pairs = [(percent, b"%g" % (gauge.basis_points / 100)), (minutes, b"%d" % (gauge.seconds // 60))]
    if gauge.resets_at is not None:
        pairs.append((reset_at, b"%d" % gauge.resets_at))
    return pairs


def rate_limits_frame(admission: Admission) -> bytes:
    """The `codex.rate_limits` event for WebSocket clients, who read no headers; b"" if the admission told nothing."""
    told = admission.told
    if told is None:
        return b""
    reading = told.reading()
    first, second = chosen(reading.gauges)
    value = {
        "type": "codex.rate_limits",
        "plan_type": PLAN_TYPE,
        "metered_limit_name": LIMIT_NAME,
        "limit_name": None,
        "rate_limits": {
            **_access(reading),
            "primary": _frame_window(first, told.second),
            "secondary": _frame_window(second, told.second),
        },
        "credits": _credits(reading),
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _frame_window(gauge: Gauge | None, second: int) -> dict[str, Any] | None:
    if gauge is None:
        return None
    return {
        "used_percent": gauge.basis_points / 100,
        "window_minutes": gauge.seconds // 60,
        **_reset(gauge, second),
    }


# ------------------------------------------------------------------------------------------------------------- leaves


async def respond_usage(asked: Asked) -> Answer:
    """Codex' `/status` and what else polls `wham/usage`. Percents are whole numbers there, rounded down."""
    key, standing = asked.caller.key, asked.standing
    value: dict[str, Any] = {
        "user_id": key.public_id,
        "account_id": asked.caller.snapshot.accounts.slug,
        "email": None,
        "plan_type": PLAN_TYPE,
        "rate_limit": {"allowed": False, "limit_reached": True, "primary_window": None, "secondary_window": None},
        "code_review_rate_limit": None,
        "additional_rate_limits": None,
        "credits": {"has_credits": False, "unlimited": False, "overage_limit_reached": False, "balance": "0"},
        "spend_control": {"reached": False, "individual_limit": None},
        "rate_limit_reached_type": None,
        "promo": None,
    }
    if standing is not None:
        reading = gauges.of_usage(standing)
        value["rate_limit"] = {**_access(reading), **_usage_windows(reading.gauges, standing.second)}
        value["additional_rate_limits"] = _additional(reading.gauges, standing.second) or None
        value["credits"] = {**_credits(reading), "overage_limit_reached": False}
    return json_answer(200, value, request_id=asked.request_id)


async def respond_accounts(asked: Asked) -> Answer:
    """The check that a signed-in Codex makes before each turn: the one account, by the id it knows, and no other place to go to."""
    account_id = asked.headers.get("chatgpt-account-id", "")
    if not account_id or len(account_id) > MOST_ACCOUNT_ID:
        account_id = asked.caller.key.public_id
    entry = {
        "id": account_id,
        "name": asked.caller.snapshot.accounts.name,
        "structure": "workspace",
        "plan_type": PLAN_TYPE,
        "is_deactivated": False,
        "profile_picture_url": None,
        "workspace_backend_origin": UNCONSTRAINED,
        "account_routing_override": UNCONSTRAINED,
    }
    value = {"accounts": [entry], "account_ordering": [account_id], "default_account_id": account_id}
    return json_answer(200, value, request_id=asked.request_id)


def _additional(found: Sequence[Gauge], second: int) -> list[dict[str, Any]]:
    """Limits of some models only, a family each."""
    families: dict[str, list[Gauge]] = {}
    for gauge in found:
        if gauge.models:
            families.setdefault(gauge.models, []).append(gauge)
    return [
        {
            "limit_name": name,
            "metered_feature": name,
            "rate_limit": {
                "allowed": not any(gauge.is_full for gauge in family),
                "limit_reached": any(gauge.is_full for gauge in family),
                **_usage_windows([gauge.for_all() for gauge in family], second),
            },
        }
        for name, family in families.items()
    ]


def _usage_windows(found: Iterable[Gauge], second: int) -> dict[str, Any]:
    first, other = chosen(found)
    return {"primary_window": _usage_window(first, second), "secondary_window": _usage_window(other, second)}


def _usage_window(gauge: Gauge | None, second: int) -> dict[str, Any] | None:
    if gauge is None:
        return None
    return {
        "used_percent": gauge.basis_points // 100,
        "limit_window_seconds": gauge.seconds,
        **_reset(gauge, second),
    }


def _reset(gauge: Gauge, second: int) -> dict[str, int]:
    at = second if gauge.resets_at is None else gauge.resets_at
    return {"reset_after_seconds": max(0, at - second), "reset_at": at}


def _access(reading: Reading) -> dict[str, bool]:
    """Whether a next request would be refused. Beyond the plan's quota others may pay; beyond a limit nobody does."""
    is_stopped = any(gauge.is_full for gauge in reading.gauges if not gauge.is_plan and not gauge.models) or not reading.is_open
    return {"allowed": not is_stopped, "limit_reached": is_stopped}


def _credits(reading: Reading) -> dict[str, Any]:
    return {"has_credits": reading.purchased > 0, "unlimited": False, "balance": credits.text(reading.purchased)}


usage_app = leaf(respond_usage)
accounts_check_app = leaf(respond_accounts)
