"""One request in words: the way it went, what each attempt cost and why, who paid. Upstream accounts only for who may know them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from accounts import display, locales
from billing import price_lines
from billing.labels import AccountLabel, Accounts, KeyLabel, Labels, MemberLabel, Sight
from billing.models import UsageRecord
from billing.price_lines import Explained
from billing.usage_log import Logged
from quotas.models import Refusal
from quotas.remaining import RATES, WINDOWS

Status = UsageRecord.Status

REASONS = {
    "owner": gettext_noop("it holds what the request continues"),
    "turn": gettext_noop("the turn that runs goes on here"),
    "sticky": gettext_noop("the session’s own account, with enough left"),
    "stand_in": gettext_noop("it stands in for the session’s own account"),
    "most_room": gettext_noop("nobody had room for a whole turn by far; here was the most"),
    "pace": gettext_noop("chosen by pace"),
    "capacity_weighted": gettext_noop("chosen by what is left of the week"),
    "relative_availability": gettext_noop("chosen by what is left for the time to the reset"),
    "reset_drain": gettext_noop("chosen because it resets soonest"),
    "usage_weighted": gettext_noop("chosen as the least used"),
    "round_robin": gettext_noop("chosen in turn"),
    "fill_first": gettext_noop("chosen as the most used, to be used up first"),
}
"""Why an account was chosen (`routing.selection.Lease`); a reason that is not here is shown as it is."""

FAILURES = {
    "usage_limit": gettext_noop("its usage limit was reached"),
    "quota": gettext_noop("its credit was used up"),
    "rate": gettext_noop("it was asked too often"),
    "overloaded": gettext_noop("it was overloaded"),
    "upstream_error": gettext_noop("it failed"),
    "unreachable": gettext_noop("it could not be reached"),
    "token": gettext_noop("its sign-in was not taken"),
    "refused_key": gettext_noop("its key was not taken"),
    "deactivated": gettext_noop("it was deactivated"),
    "forbidden": gettext_noop("it was not allowed to serve this"),
    "model": gettext_noop("it does not serve the model"),
    "request": gettext_noop("the request was not taken"),
    "context": gettext_noop("the request was longer than the model’s context"),
    "anchor": gettext_noop("what the request continues was not found there"),
    "websocket_declined": gettext_noop("it takes no WebSocket"),
    "connect_failed": gettext_noop("no connection came about"),
    "headers_late": gettext_noop("no answer began in time"),
    "idle": gettext_noop("it fell silent"),
    "cut": gettext_noop("the connection broke"),
    "bad_answer": gettext_noop("its answer could not be read"),
    "sign_in_needed": gettext_noop("it needs sign-in"),
}
"""What became of an attempt that failed (`routing.failures.Kind`, the reasons of `proxy.errors`)."""

ENDS = {
    Status.OK: gettext_noop("Completed."),
    Status.INCOMPLETE: gettext_noop("Ended by a limit of the answer’s length."),
    Status.FAILED: gettext_noop("Failed."),
    Status.CLIENT_CLOSED: gettext_noop("The client left."),
    Status.UPSTREAM_CUT: gettext_noop("The upstream broke off."),
    Status.ORPHANED: gettext_noop("No end was heard of: the process that carried it was gone."),
}

FUNDS = (
    ("from_quota", gettext_noop("plan quota")),
    ("from_purchased", gettext_noop("purchased credits")),
    ("from_overage", gettext_noop("overage, on the invoice")),
    ("overdraft", gettext_noop("overdraft")),
)
_REASON_CODES = {
    "pool_exhausted": gettext_noop("pool used up"),
    "pool_busy": gettext_noop("pool cooling down"),
    "concurrency_limit": gettext_noop("pool busy"),
    "no_account_available": gettext_noop("no account"),
    "model_not_found": gettext_noop("unknown model"),
    "model_unpriced": gettext_noop("no price"),
    "model_not_allowed": gettext_noop("model not allowed"),
    "reasoning_effort_not_allowed": gettext_noop("effort not allowed"),
    "fast_mode_not_allowed": gettext_noop("fast mode not allowed"),
    "invalid_json": gettext_noop("not understood"),
    "payload_too_large": gettext_noop("too large"),
    "invalid_encoding": gettext_noop("encoding"),
    "previous_response_not_found": gettext_noop("continuation gone"),
    "invalid_api_key": gettext_noop("key ended"),
    "draining": gettext_noop("restart"),
    "degraded": gettext_noop("not countable"),
    "upstream_unavailable": gettext_noop("upstream away"),
}

_WITH_UNIT = {"tokens": gettext_noop("%(limit)s, tokens"), "requests": gettext_noop("%(limit)s, requests")}


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
        funds=[Fund(_(name), amount) for column, name in FUNDS if (amount := logged.total(column))],
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
            return _("an account of the pool")
        label = self._named.get(account_id or 0)
        if label is None:
            return _("an account that is gone")
        return label.name or _("shared account %(id)s") % {"id": str(label.uuid)[:8]}


def steps(logged: Logged, trace: Sequence[dict[str, Any]], tell: _Names) -> list[Step]:
    """What happened, in order. The log knows when the first token came and when it ended; tries are numbered."""
    settled = logged.settled
    held = settled.held
    is_held = _("%(held)s credits held.") % {"held": _exact(held)} if held is not None else ""
    told = [Step(display.elapsed(0), _("Admitted."), detail=is_held)]
    asked = str(trace[0].get("asked", "")) if trace else ""
    if asked:
        serves = _("A rule of the organization lets %(model)s serve in its place.") % {"model": settled.model_asked}
        told.append(Step("", _("%(model)s was asked for.") % {"model": asked}, detail=serves))
    before = None
    for number, step in enumerate(trace, start=1):
        told.append(_try(step, number, len(trace), before, tell))
        before = step.get("account_id")
    if settled.first_token_ms is not None:
        told.append(Step(display.elapsed(settled.first_token_ms), _("First token.")))
    told.append(_end(logged))
    if logged.amendment is not None:
        told.insert(-1, _orphaned(logged.row.credits, logged.amendment.credits))
    return told


def _orphaned(credits: int, late: int) -> Step:
    """`late`: how much more the real end cost than what was booked first."""
    about = {"charged": _exact(credits), "difference": _exact(abs(late))}
    if not late:
        detail = _("Booked as orphaned at what was seen by then: %(charged)s. Its real end came later, at the same price.")
    elif late > 0:
        detail = _("Booked as orphaned at what was seen by then: %(charged)s. Its real end came later, %(difference)s more.")
    else:
        detail = _("Booked as orphaned at what was seen by then: %(charged)s. Its real end came later, %(difference)s less.")
    return Step("", _("The process that carried it was not heard of."), detail=detail % about, is_failed=True)


def _try(step: dict[str, Any], number: int, tries: int, before: int | None, tell: _Names) -> Step:
    account_id, reason = step.get("account_id"), str(step.get("reason", ""))
    why = _(REASONS[reason]) if reason in REASONS else reason
    lead = _("Went to") if number == 1 else _("Tried again on") if account_id == before else _("Moved to")
    detail = []
    candidates = step.get("candidates")
    if why:
        why = f"{why[0].upper()}{why[1:]}"
        if tell.sees and isinstance(candidates, int) and candidates > 1:
            others = ngettext("%(why)s, of %(count)s in the running.", "%(why)s, of %(count)s in the running.", candidates)
            detail.append(others % {"why": why, "count": candidates})
        else:
            detail.append(f"{why}.")
    failure, status = str(step.get("failure", "")), step.get("status")
    if failure:
        said = _(FAILURES[failure]) if failure in FAILURES else failure.replace("_", " ")
        answered = _("Answered %(status)s: %(said)s.") % {"status": status, "said": said}
        detail.append(answered if status else f"{said[0].upper()}{said[1:]}.")
        if number < tries:
            detail.append(_("Nothing had reached the client yet."))
    return Step(_("try %(number)s") % {"number": number}, lead, tell(account_id), " ".join(detail), is_failed=bool(failure))


def _end(logged: Logged) -> Step:
    row, credits = logged.settled, logged.credits
    difference = 0 if row.held is None else row.held - credits
    about = {"charged": _exact(credits), "difference": _exact(abs(difference))}
    if row.held is None:
        detail = _("%(charged)s charged.") % about
    elif difference >= 0:
        detail = _("%(charged)s charged, %(difference)s given back.") % about
    else:
        detail = _("%(charged)s charged, %(difference)s more than was held.") % about
    is_failed = row.status in (Status.FAILED, Status.UPSTREAM_CUT, Status.ORPHANED)
    when = display.elapsed(row.latency_ms) if row.latency_ms is not None else ""
    return Step(when, _(ENDS[Status(row.status)]), detail=detail, is_failed=is_failed)


def _rankings(trace: Sequence[dict[str, Any]], tell: _Names) -> list[Ranking]:
    found = []
    for number, step in enumerate(trace, start=1):
        best = [told for told in step.get("best", ()) if isinstance(told, list) and len(told) == 3]
        if not best:
            continue
        candidates = [
            Candidate(
                tell(account_id),
                "–" if score is None else f"{score:g}".replace(".", locales.current().decimal),
                _("no bound") if head is None else display.credits(round(head * display.MICRO)),
                account_id == step.get("account_id"),
                None if head is None else round(head * display.MICRO),
            )
            for account_id, score, head in best
        ]
        turn = step.get("turn")
        title = _("Candidates") if len(trace) == 1 else _("Candidates of try %(number)s") % {"number": number}
        count = int(step.get("candidates", len(best)))
        micro = round(turn * display.MICRO) if isinstance(turn, int | float) else None
        found.append(Ranking(title, candidates, count, "" if micro is None else display.credits(micro), micro))
    return found


def flags(logged: Logged) -> list[tuple[str, str]]:
    """Each with what it means."""
    row = logged.settled
    marked = [
        (row.is_estimated, _("estimated"), _("The upstream’s last count did not come: tokens and price are estimated.")),
        (row.is_implausible, _("implausible"), _("The upstream’s count cannot be: what was held is charged, and a lead is told.")),
        (row.is_clamped, _("clamped"), _("The upstream counted more cached than read: it was taken as all cached.")),
        (bool(logged.total("overdraft")), _("overdraft"), _("It cost more than was left: the rest is booked as an overdraft.")),
        (
            logged.amendment is not None,
            _("amended"),
            _("Orphaned first; what it really cost was booked later, as a part of its own."),
        ),
    ]
    return [(name, text) for holds, name, text in marked if holds]


def refused_briefly(row: Refusal) -> str:
    """For a line of the list: `daily limit`, `60 / min`, `pool used up`."""
    if row.limit is None or not row.metric:
        return _(_REASON_CODES[row.code]) if row.code in _REASON_CODES else _("see why")
    if row.scope == "plan":
        return _("plan quota")
    count = {"limit": display.count(row.limit)}
    if row.metric == "requests_per_minute":
        return _("%(limit)s / min") % count
    if row.metric == "requests_per_second":
        return _("%(limit)s / s") % count
    if row.metric in RATES:
        return _("%(limit)s at once") % count
    name = str(WINDOWS[row.window][1]) if row.window in WINDOWS else _("limit")
    return _(_WITH_UNIT[row.metric]) % {"limit": name} if row.metric in _WITH_UNIT else name


def _exact(micro: int) -> str:
    return "".join(display.exact(micro))
