"""One request in words: the way it went, what each attempt cost and why, who paid. Upstream accounts only for who may know them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accounts import display
from billing import price_lines
from billing.labels import AccountLabel, Accounts, KeyLabel, Labels, MemberLabel, Sight
from billing.models import UsageRecord
from billing.price_lines import Explained
from billing.usage_log import Logged
from quotas.models import Refusal
from quotas.remaining import RATES, WINDOWS

Status = UsageRecord.Status

REASONS = {
    "owner": "it holds what the request continues",
    "turn": "the turn that runs goes on here",
    "sticky": "the session’s own account, with enough left",
    "stand_in": "it stands in for the session’s own account",
    "most_room": "nobody had room for a whole turn by far; here was the most",
    "pace": "chosen by pace",
    "capacity_weighted": "chosen by what is left of the week",
    "relative_availability": "chosen by what is left for the time to the reset",
    "reset_drain": "chosen because it resets soonest",
    "usage_weighted": "chosen as the least used",
    "round_robin": "chosen in turn",
    "fill_first": "chosen as the most used, to be used up first",
}
"""Why an account was chosen (`routing.selection.Lease`); a reason that is not here is shown as it is."""

FAILURES = {
    "usage_limit": "its usage limit was reached",
    "quota": "its credit was used up",
    "rate": "it was asked too often",
    "overloaded": "it was overloaded",
    "upstream_error": "it failed",
    "unreachable": "it could not be reached",
    "token": "its sign-in was not taken",
    "refused_key": "its key was not taken",
    "deactivated": "it was deactivated",
    "forbidden": "it was not allowed to serve this",
    "model": "it does not serve the model",
    "request": "the request was not taken",
    "context": "the request was longer than the model’s context",
    "anchor": "what the request continues was not found there",
    "websocket_declined": "it takes no WebSocket",
    "connect_failed": "no connection came about",
    "headers_late": "no answer began in time",
    "idle": "it fell silent",
    "cut": "the connection broke",
    "bad_answer": "its answer could not be read",
    "sign_in_needed": "it needs sign-in",
}
"""What became of an attempt that failed (`routing.failures.Kind`, the reasons of `proxy.errors`)."""

ENDS = {
    Status.OK: "Completed.",
    Status.INCOMPLETE: "Ended by a limit of the answer’s length.",
    Status.FAILED: "Failed.",
    Status.CLIENT_CLOSED: "The client left.",
    Status.UPSTREAM_CUT: "The upstream broke off.",
    Status.ORPHANED: "No end was heard of: the process that carried it was gone.",
}

FUNDS = (
    ("from_quota", "plan quota"),
    ("from_purchased", "purchased credits"),
    ("from_overage", "overage, on the invoice"),
    ("overdraft", "overdraft"),
)
_REASON_CODES = {
    "pool_exhausted": "pool used up",
    "pool_busy": "pool cooling down",
    "concurrency_limit": "pool busy",
    "no_account_available": "no account",
    "model_not_found": "unknown model",
    "model_unpriced": "no price",
    "model_not_allowed": "model not allowed",
    "reasoning_effort_not_allowed": "effort not allowed",
    "fast_mode_not_allowed": "fast mode not allowed",
    "invalid_json": "not understood",
    "payload_too_large": "too large",
    "invalid_encoding": "encoding",
    "previous_response_not_found": "continuation gone",
    "invalid_api_key": "key ended",
    "draining": "restart",
    "degraded": "not countable",
    "upstream_unavailable": "upstream away",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the trace: when or which try, what happened, whose account, and the rest of the sentence."""

    when: str
    lead: str
    account: str = ""
    detail: str = ""
    is_failed: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """An account that was in the running, best first. `score`: the strategy's, `room`: credits of headroom, for the turn; `head`:
    the same in micro-credits, None: no bound."""

    account: str
    score: str
    room: str
    is_chosen: bool
    head: int | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The candidates of one try. `count`: how many there were, of whom the log keeps the best. `turn_micro`: micro-credits."""

    title: str
    candidates: Sequence[Candidate]
    count: int
    turn: str
    turn_micro: int | None = None


@dataclass(frozen=True, slots=True)
class PricedLine:
    explained: Explained
    account: str


@dataclass(frozen=True, slots=True)
class Fund:
    name: str
    credits: int


@dataclass(frozen=True, slots=True)
class Opened:
    """All that one opened request shows. `seat`: it drew on the member's own seat."""

    logged: Logged
    member: MemberLabel
    key: KeyLabel
    team: str
    account: str
    steps: Sequence[Step]
    rankings: Sequence[Ranking]
    lines: Sequence[PricedLine]
    funds: Sequence[Fund]
    flags: Sequence[tuple[str, str]]
    sees_key_ids: bool

    @property
    def seat(self) -> bool:
        return self.logged.row.source.startswith("m")

    @property
    def counted(self) -> int:
        """Tokens that limits count."""
        return self.logged.total("counted_tokens")

    @property
    def fund_names(self) -> str:
        """Where all of it came from one fund, or nothing was charged."""
        return self.funds[0].name if len(self.funds) == 1 else ""


def opened(sight: Sight, logged: Logged, labels: Labels) -> Opened:
    """A handful of queries: for member, team, key, accounts and rates."""
    row, settled = logged.row, logged.settled
    trace = [step for step in settled.trace if isinstance(step, dict)]
    lines = [line for line in settled.lines if isinstance(line, dict)]
    sees = sight.accounts is Accounts.LABELS
    named: Mapping[int, AccountLabel] = labels.accounts(_accounts(settled, trace, lines)) if sees else {}
    tell = _Names(named, sees)
    known = price_lines.rates(labels.organization, [line.get("rate_id") for line in lines])
    teams = labels.teams([row.team_id])
    return Opened(
        logged=logged,
        member=labels.members([row.member_id])[row.member_id],
        key=labels.keys([row.key_id])[row.key_id],
        team=teams[row.team_id].name if row.team_id is not None and row.team_id in teams else "",
        account=tell(settled.account_id) if sees and settled.account_id else "",
        steps=steps(logged, trace, tell),
        rankings=_rankings(trace, tell) if sees else (),
        lines=[
            PricedLine(
                price_lines.explain(line, known, tier=settled.tier_billed, is_implausible=_is_last(lines, line, settled)),
                tell(line.get("account_id")) if sees else "",
            )
            for line in lines
        ],
        funds=[Fund(name, amount) for column, name in FUNDS if (amount := logged.total(column))],
        flags=flags(logged),
        sees_key_ids=sight.sees_key_ids,
    )


def _accounts(row: UsageRecord, trace: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]]) -> Iterable[int | None]:
    yield row.account_id
    for part in (*trace, *lines):
        yield part.get("account_id")
    for step in trace:
        for told in step.get("best", ()):
            yield told[0]


def _is_last(lines: Sequence[dict[str, Any]], line: dict[str, Any], row: UsageRecord) -> bool:
    """The record's flag is about the attempt that answered."""
    return row.is_implausible and line is lines[-1]


class _Names:
    """Accounts as the reader is told of them."""

    def __init__(self, named: Mapping[int, AccountLabel], sees: bool) -> None:
        self._named, self.sees = named, sees

    def __call__(self, account_id: int | None) -> str:
        if not self.sees:
            return "an account of the pool"
        label = self._named.get(account_id or 0)
        if label is None:
            return "an account that is gone"
        return label.name or f"shared account {str(label.uuid)[:8]}"


def steps(logged: Logged, trace: Sequence[dict[str, Any]], tell: _Names) -> list[Step]:
    """What happened, in order. The log knows when the first token came and when it ended; tries are numbered."""
    settled = logged.settled
    held = settled.held
    told = [Step("0 ms", "Admitted.", detail=f"{_exact(held)} credits held." if held is not None else "")]
    asked = str(trace[0].get("asked", "")) if trace else ""
    if asked:
        told.append(
            Step("", f"{asked} was asked for.", detail=f"A rule of the organization lets {settled.model_asked} serve in its place.")
        )
    before = None
    for number, step in enumerate(trace, start=1):
        told.append(_try(step, number, len(trace), before, tell))
        before = step.get("account_id")
    if settled.first_token_ms is not None:
        told.append(Step(display.elapsed(settled.first_token_ms), "First token."))
    told.append(_end(logged))
    if logged.amendment is not None:
        charged, late = _exact(logged.row.credits), logged.amendment.credits
        told.insert(
            -1,
            Step(
                "",
                "The process that carried it was not heard of.",
                detail=f"Booked as orphaned at what was seen by then: {charged}. Its real end came later"
                + (", at the same price." if not late else f", {_exact(abs(late))} {'more' if late > 0 else 'less'}."),
                is_failed=True,
            ),
        )
    return told


def _try(step: dict[str, Any], number: int, tries: int, before: int | None, tell: _Names) -> Step:
    account_id, reason = step.get("account_id"), str(step.get("reason", ""))
    why = REASONS.get(reason, reason)
    lead = "Went to" if number == 1 else "Tried again on" if account_id == before else "Moved to"
    detail = []
    candidates = step.get("candidates")
    if why:
        others = ""
        if tell.sees and isinstance(candidates, int) and candidates > 1:
            others = f", of {candidates} in the running"
        detail.append(f"{why[0].upper()}{why[1:]}{others}.")
    failure, status = str(step.get("failure", "")), step.get("status")
    if failure:
        said = FAILURES.get(failure, failure.replace("_", " "))
        detail.append(f"Answered {status}: {said}." if status else f"{said[0].upper()}{said[1:]}.")
        if number < tries:
            detail.append("Nothing had reached the client yet.")
    return Step(f"try {number}", lead, tell(account_id), " ".join(detail), is_failed=bool(failure))


def _end(logged: Logged) -> Step:
    row, credits = logged.settled, logged.credits
    detail = f"{_exact(credits)} charged"
    if row.held is not None and credits <= row.held:
        detail += f", {_exact(row.held - credits)} given back"
    elif row.held is not None:
        detail += f", {_exact(credits - row.held)} more than was held"
    is_failed = row.status in (Status.FAILED, Status.UPSTREAM_CUT, Status.ORPHANED)
    when = display.elapsed(row.latency_ms) if row.latency_ms is not None else ""
    return Step(when, ENDS[Status(row.status)], detail=f"{detail}.", is_failed=is_failed)


def _rankings(trace: Sequence[dict[str, Any]], tell: _Names) -> list[Ranking]:
    found = []
    for number, step in enumerate(trace, start=1):
        best = [told for told in step.get("best", ()) if isinstance(told, list) and len(told) == 3]
        if not best:
            continue
        candidates = [
            Candidate(
                tell(account_id),
                "–" if score is None else f"{score:g}",
                "no bound" if head is None else display.credits(round(head * display.MICRO)),
                account_id == step.get("account_id"),
                None if head is None else round(head * display.MICRO),
            )
            for account_id, score, head in best
        ]
        turn = step.get("turn")
        title = "Candidates" if len(trace) == 1 else f"Candidates of try {number}"
        count = int(step.get("candidates", len(best)))
        micro = round(turn * display.MICRO) if isinstance(turn, int | float) else None
        found.append(Ranking(title, candidates, count, "" if micro is None else display.credits(micro), micro))
    return found


def flags(logged: Logged) -> list[tuple[str, str]]:
    """Each with what it means."""
    row = logged.settled
    marked = [
        (row.is_estimated, "estimated", "The upstream’s last count did not come: tokens and price are estimated."),
        (row.is_implausible, "implausible", "The upstream’s count cannot be: what was held is charged, and a lead is told."),
        (row.is_clamped, "clamped", "The upstream counted more cached than read: it was taken as all cached."),
        (bool(logged.total("overdraft")), "overdraft", "It cost more than was left: the rest is booked as an overdraft."),
        (
            logged.amendment is not None,
            "amended",
            "Orphaned first; what it really cost was booked later, as a part of its own.",
        ),
    ]
    return [(name, text) for holds, name, text in marked if holds]


def refused_briefly(row: Refusal) -> str:
    """For a line of the list: `daily limit`, `60 / min`, `pool used up`."""
    if row.limit is None or not row.metric:
        return _REASON_CODES.get(row.code, "see why")
    if row.scope == "plan":
        return "plan quota"
    if row.metric == "requests_per_minute":
        return f"{row.limit:,} / min"
    if row.metric == "requests_per_second":
        return f"{row.limit:,} / s"
    if row.metric in RATES:
        return f"{row.limit:,} at once"
    name = WINDOWS[row.window][1] if row.window in WINDOWS else "limit"
    return name if row.metric == "credits" else f"{name}, {row.metric}"


def _exact(micro: int) -> str:
    return "".join(display.exact(micro))
