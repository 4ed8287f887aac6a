"""What an upstream's refusal means: one table, read by the body first and by the status only when the body says nothing.

Every row names where it comes from:

    note N [C] / [S] / [D]   the protocol note, section N: captured, from the vendor's source, or design advice
    sample NAME              a captured body of the note's samples
    OpenAI                   https://platform.openai.com/docs/guides/error-codes
    Anthropic                https://docs.claude.com/en/api/errors, and the enumeration ErrorType of its SDKs
    Azure                    https://learn.microsoft.com/azure/ai-services/openai: `error.code` is a name or the status as a text
    vLLM                     its OpenAI-compatible server: {"object": "error", ...} or {"error": {...}}, `code` a number
    RFC 9110                 HTTP semantics
    Weir                     nobody says; what we chose, and why
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from config.clock import utc_now
from config.json_bounds import has_too_many
from routing.waits import HORIZON_SECONDS, to_wait, valid_reset

UNKNOWN_RESET_COOLDOWN_SECONDS = 60.0
LONGEST_COOLDOWN_SECONDS = 3600.0
MOST_MESSAGE = 4000
MOST_CODE = 80


class Kind(StrEnum):
    USAGE_LIMIT = "usage_limit"
    QUOTA = "quota"
    RATE = "rate"
    OVERLOADED = "overloaded"
    UPSTREAM_ERROR = "upstream_error"
    UNREACHABLE = "unreachable"
    TOKEN = "token"  # noqa: S105 - the name of a kind
    REFUSED_KEY = "refused_key"
    DEACTIVATED = "deactivated"
    FORBIDDEN = "forbidden"
    MODEL = "model"
    REQUEST = "request"
    CONTEXT = "context"
    ANCHOR = "anchor"


@dataclass(frozen=True, slots=True)
class Failure:
    """What to do about a failed attempt.

    `movable`: another account may answer, as long as the client has seen nothing. `cooldown_seconds` and `resets_at` (unix
    seconds) say for how long the account is not to be used; both None is no penalty. `refresh`: a sign-in account's token
    may just be old: refresh it and try the same account once more before this is reported. `sign_in`: when reported, the
    account is taken out until it is signed in again. `code` is the upstream's own word, for the log.
    """

    kind: Kind
    movable: bool
    cooldown_seconds: float | None = None
    resets_at: int | None = None
    refresh: bool = False
    sign_in: bool = False
    code: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; the first that matches decides. Conditions that are empty match anything, and all must hold.

    `codes` in lower case: `error.code` and `error.type` are looked for. `says`: found in the message.
    """

    kind: Kind
    source: str
    codes: frozenset[str] = frozenset()
    statuses: tuple[range, ...] = ()
    says: re.Pattern[str] | None = None
    movable: bool = False
    cooldown_seconds: float | None = None
    refresh: bool = False
    sign_in: bool = False
    is_waiting_told: bool = False
    """The answer may say how long to wait; then that is the cooldown."""

    def fits(self, words: frozenset[str], status: int, message: str) -> bool:
        if self.codes and not self.codes & words:
            return False
        if self.statuses and not any(status in statuses for statuses in self.statuses):
            return False
        return self.says is None or self.says.search(message) is not None


def _only(*statuses: int) -> tuple[range, ...]:
    return tuple(range(status, status + 1) for status in statuses)


def _codes(*codes: str) -> frozenset[str]:
    return frozenset(codes)


TABLE: tuple[Row, ...] = (
    # ---- By what the body says.
    Row(Kind.CONTEXT, "note 5 [C]", codes=_codes("context_length_exceeded")),
    # Kept by one account, or by one connection to it: Codex answers these by sending everything again.
    Row(Kind.ANCHOR, "note 5, 7a [C]", codes=_codes("previous_response_not_found", "websocket_connection_limit_reached")),
    Row(Kind.ANCHOR, "OpenAI", codes=_codes("invalid_encrypted_content")),
    Row(Kind.REQUEST, "note 5 [C]", codes=_codes("invalid_prompt", "cyber_policy", "invalid_value")),
    Row(Kind.REQUEST, "OpenAI", codes=_codes("content_policy_violation", "image_too_large", "string_above_max_length")),
    Row(Kind.REQUEST, "Azure: its content filter", codes=_codes("content_filter", "responsibleaipolicyviolation")),
    Row(Kind.REQUEST, "Anthropic: 413, sent by its edge", codes=_codes("request_too_large")),
    # "The model does not exist or you do not have access to it": true of this account; another may have it.
    Row(Kind.MODEL, "OpenAI", codes=_codes("model_not_found"), movable=True),
    Row(Kind.MODEL, "Azure: 404, its name for a model", codes=_codes("deploymentnotfound", "modelnotfound"), movable=True),
    Row(Kind.USAGE_LIMIT, "note 5 [C]", codes=_codes("usage_limit_reached"), movable=True),
    # No reset will help: money or a plan is missing. Looked at again after a while, in case somebody paid.
    Row(Kind.QUOTA, "note 5 [C], OpenAI", codes=_codes("insufficient_quota"), movable=True, cooldown_seconds=300.0),
    Row(
        Kind.QUOTA,
        "OpenAI",
        codes=_codes("billing_hard_limit_reached", "billing_not_active", "credit_balance_exhausted"),
        movable=True,
        cooldown_seconds=300.0,
    ),
    Row(Kind.QUOTA, "Anthropic: 402", codes=_codes("billing_error"), movable=True, cooldown_seconds=300.0),
    Row(
        Kind.QUOTA,
        "Anthropic: 400 invalid_request_error, github.com/anthropics/claude-code/issues/66314",
        statuses=_only(400),
        says=re.compile(r"credit balance is too low|reached your specified .{0,40}usage limits", re.IGNORECASE),
        movable=True,
        cooldown_seconds=300.0,
    ),
    Row(Kind.QUOTA, "note 5 [C]", codes=_codes("usage_not_included"), movable=True, cooldown_seconds=3600.0),
    Row(
        Kind.DEACTIVATED,
        "sample error_bodies 402",
        codes=_codes("deactivated_workspace"),
        movable=True,
        cooldown_seconds=60.0,
        sign_in=True,
    ),
    Row(
        Kind.DEACTIVATED,
        "OpenAI",
        codes=_codes("account_deactivated", "organization_deactivated", "account_suspended"),
        movable=True,
        cooldown_seconds=60.0,
        sign_in=True,
    ),
    Row(
        Kind.TOKEN,
        "sample error_bodies 401_token_expired",
        codes=_codes("token_expired"),
        movable=True,
        cooldown_seconds=60.0,
        refresh=True,
    ),
    Row(
        Kind.REFUSED_KEY,
        "note 5 [C], OpenAI: 401",
        codes=_codes("invalid_api_key", "token_invalidated", "token_revoked", "invalid_authentication"),
        movable=True,
        cooldown_seconds=60.0,
        refresh=True,
        sign_in=True,
    ),
    # Only as a 401: gateways use the word for more.
    Row(
        Kind.REFUSED_KEY,
        "Anthropic: 401",
        codes=_codes("authentication_error"),
        statuses=_only(401),
        movable=True,
        cooldown_seconds=60.0,
        refresh=True,
        sign_in=True,
    ),
    Row(
        Kind.OVERLOADED,
        "note 5 [C]",
        codes=_codes("server_is_overloaded", "slow_down", "service_unavailable_error"),
        movable=True,
        cooldown_seconds=5.0,
        is_waiting_told=True,
    ),
    Row(
        Kind.OVERLOADED,
        "Anthropic: 529",
        codes=_codes("overloaded_error"),
        movable=True,
        cooldown_seconds=5.0,
        is_waiting_told=True,
    ),
    Row(
        Kind.RATE,
        "note 5 [C], OpenAI",
        codes=_codes("rate_limit_exceeded", "too_many_requests"),
        movable=True,
        cooldown_seconds=2.0,
        is_waiting_told=True,
    ),
    Row(Kind.RATE, "Anthropic: 429", codes=_codes("rate_limit_error"), movable=True, cooldown_seconds=2.0, is_waiting_told=True),
    Row(Kind.RATE, "Azure: 429", codes=_codes("ratelimitreached"), movable=True, cooldown_seconds=2.0, is_waiting_told=True),
    # It has run for so long that it may still be running: the client may ask again, we do not.
    Row(Kind.UPSTREAM_ERROR, "Anthropic: 504", codes=_codes("timeout_error"), cooldown_seconds=3.0),
    Row(
        Kind.UPSTREAM_ERROR,
        "note 5 [C], OpenAI; Anthropic: api_error",
        codes=_codes("server_error", "internal_server_error", "api_error", "internalservererror"),
        movable=True,
        cooldown_seconds=3.0,
    ),
    # ---- By status alone.
    Row(Kind.TOKEN, "note 5 [C]: 401", statuses=_only(401), movable=True, cooldown_seconds=60.0, refresh=True),
    Row(Kind.QUOTA, "RFC 9110: payment required", statuses=_only(402), movable=True, cooldown_seconds=300.0),
    # Anthropic's permission_error, a country, a wall in front of the upstream that answers in HTML.
    Row(Kind.FORBIDDEN, "note 5 [C]; Anthropic: permission_error", statuses=_only(403), movable=True, cooldown_seconds=60.0),
    # Anthropic's not_found_error, vLLM's NotFoundError, an address without this path. Nothing has run.
    Row(Kind.MODEL, "Anthropic, vLLM: a model that this one does not have", statuses=_only(404), movable=True),
    # The upstream did not get the whole request in time, so nothing has run.
    Row(Kind.UPSTREAM_ERROR, "RFC 9110: request timeout", statuses=_only(408), movable=True, cooldown_seconds=3.0),
    Row(Kind.RATE, "note 5 [C]: 429", statuses=_only(429), movable=True, cooldown_seconds=2.0, is_waiting_told=True),
    Row(
        Kind.OVERLOADED,
        "note 5 [C]: 503; Anthropic: 529",
        statuses=_only(503, 529),
        movable=True,
        cooldown_seconds=5.0,
        is_waiting_told=True,
    ),
    # A gateway in between has given up waiting (524: Cloudflare's): the request may still be running.
    Row(Kind.UPSTREAM_ERROR, "RFC 9110: gateway timeout", statuses=_only(504, 524), cooldown_seconds=3.0),
    Row(Kind.UPSTREAM_ERROR, "note 5 [C]: 5xx", statuses=(range(500, 600),), movable=True, cooldown_seconds=3.0),
    # 400, 409, 413, 422 and the rest are about the request's own shape: every account would say the same.
    Row(Kind.REQUEST, "note 5 [C], OpenAI: 4xx", statuses=(range(400, 500),)),
)

# A stream that failed for a reason nobody has listed: to be seen by the client rather than run on every account in turn.
OTHERWISE = Row(Kind.REQUEST, "Weir")


def classify(status: int, headers: Mapping[str, str], body: bytes, *, now: float | None = None) -> Failure:
    """What a refusal means. Never raises, whatever comes.

    `body` is an error answer's body, or the data of a stream's failing event (`response.failed`, `error`) or of a WebSocket's error
    frame, then with status 200; the status that such an event names itself is used, and the headers that a frame carries. Header
    names in lower case. `now` in unix seconds, by default the clock's.
    """
    now = utc_now().timestamp() if now is None else now
    value = _object(body)
    error = _error(value)
    status, headers = _framed(status, headers, value, error)
    words = frozenset(word.lower() for word in (error.get("code"), error.get("type")) if isinstance(word, str))
    told = error.get("message")
    message = told[:MOST_MESSAGE] if isinstance(told, str) else ""
    row = next((row for row in TABLE if row.fits(words, status, message)), OTHERWISE)
    cooldown = row.cooldown_seconds
    resets_at = None
    if row.kind is Kind.USAGE_LIMIT:
        resets_at = _resets_at(error, headers, now)
        cooldown = UNKNOWN_RESET_COOLDOWN_SECONDS if resets_at is None else None
    elif row.is_waiting_told:
        wait = to_wait(message, headers, now)
        if wait is not None and wait <= HORIZON_SECONDS:
            cooldown = min(wait, LONGEST_COOLDOWN_SECONDS)
    return Failure(
        kind=row.kind,
        movable=row.movable,
        cooldown_seconds=cooldown,
        resets_at=resets_at,
        refresh=row.refresh,
        sign_in=row.sign_in,
        code=_word(error, status),
    )


def unreachable(*, written: bool) -> Failure:
    """The upstream gave no answer. What was written to it may have run, and is never sent again."""
    return Failure(kind=Kind.UNREACHABLE, movable=not written, cooldown_seconds=5.0, code="unreachable")


def _object(body: bytes) -> Mapping[str, Any]:
    if has_too_many(body):
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _error(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The error object in any of the shapes that upstreams use; {} if it is none of them."""
    for holder in (value.get("response"), value):
        if isinstance(holder, dict):
            for name in ("error", "detail"):
                found = holder.get(name)
                if isinstance(found, dict):
                    return found
    if isinstance(value.get("code"), str | int) or isinstance(value.get("message"), str):
        return value
    for name in ("error", "detail"):
        if isinstance(value.get(name), str):
            return {"message": value[name]}
    return {}


def _framed(
    status: int, headers: Mapping[str, str], value: Mapping[str, Any], error: Mapping[str, Any]
) -> tuple[int, Mapping[str, str]]:
    """The status and headers of what a stream or a socket was told as an event: its own, where it names them."""
    if status >= 400:
        return status, headers
    for told in (value.get("status"), value.get("status_code"), error.get("code")):
        number = _status(told)
        if number is not None:
            status = number
            break
    own = value.get("headers")
    if isinstance(own, dict):
        headers = {**headers, **{name.lower(): text for name, text in own.items() if isinstance(text, str)}}
    return status, headers


def _status(told: object) -> int | None:
    if isinstance(told, str) and len(told) == 3 and told.isdecimal() and told.isascii():
        told = int(told)
    if isinstance(told, bool) or not isinstance(told, int):
        return None
    return told if 400 <= told < 600 else None


def _word(error: Mapping[str, Any], status: int) -> str:
    """The upstream's own word for it, without what logs and rows do not take; the status if it has none."""
    for word in (error.get("code"), error.get("type")):
        if word and isinstance(word, str | int):
            return "".join(mark for mark in str(word)[:MOST_CODE] if mark.isascii() and mark.isprintable())
    return str(status)


def _resets_at(error: Mapping[str, Any], headers: Mapping[str, str], now: float) -> int | None:
    """From the body; if the body has none, from the full windows in the headers (the last one to reset)."""
    if "resets_at" in error:
        return valid_reset(error["resets_at"], now)
    if "resets_in_seconds" in error:
        try:
            return valid_reset(now + float(error["resets_in_seconds"]), now)
        except (TypeError, ValueError, OverflowError):
            return None
    full = []
    for slot in ("primary", "secondary"):
        try:
            used = float(headers.get(f"x-codex-{slot}-used-percent", "0"))
        except ValueError:
            continue
        reset = valid_reset(headers.get(f"x-codex-{slot}-reset-at"), now)
        if used >= 100 and reset is not None:
            full.append(reset)
    return max(full, default=None)
