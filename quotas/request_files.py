"""The request log as a file: what the page shows by the same filters, all of it, the newest first."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from billing import credits, csvfile, usage_report
from billing.labels import Labels, Sight
from billing.usage_log import Logged, Wanted
from quotas import request_log
from quotas.models import Refusal
from quotas.request_log import Entry

PAGE = 1000
REQUEST, REFUSED, TOTAL = "request", "refused", "total"
TOKENS = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
COLUMNS = (
    "record", "rows", "admitted_at", "admitted_at_utc", "request_id", "team", "team_id", "member", "member_email", "member_id",
    "key_name", "key_id", "account", "account_id", "model_asked", "model_served", "tier_billed", "status", "estimated",
    *TOKENS, "credits", "refusals", "refusal_code", "refusal", "latency_ms", "first_token_ms",
)  # fmt: skip
_UTC = ZoneInfo("UTC")


class RequestsFile:
    """One record for each request, its amendment counted in; one for requests that were refused within a minute for one reason.

    What is admitted after `now` is not in it.
    """

    def __init__(self, sight: Sight, wanted: Wanted, *, now: datetime, with_bom: bool = False, page: int = PAGE) -> None:
        self.organization, self.count = sight.whose.organization, 0
        end = now if wanted.end is None else min(wanted.end, now)
        self._sight, self._wanted, self._now, self._page = sight, replace(wanted, end=end), now, page
        self._zone = ZoneInfo(self.organization.timezone)
        self._labels = Labels(self.organization)
        self._sums = dict.fromkeys((*TOKENS, "credits", "refusals"), 0)
        self._older: str | None = None
        self._state, self._with_bom = "head", with_bom

    def next_piece(self) -> str | None:
        if self._state == "head":
            self._state = "rows"
            return (csvfile.BOM if self._with_bom else "") + csvfile.line(COLUMNS)
        if self._state == "rows":
            whose = self._sight.whose
            before = request_log.place(whose, self._older) if self._older else None
            if self._wanted.start is not None and self._wanted.end is not None and self._wanted.start >= self._wanted.end:
                page = request_log.Page((), "", "")
            else:
                page = request_log.page(whose, self._wanted, before=before, count=self._page, now=self._now)
            self._older = page.older
            if not page.older:
                self._state = "closing"
            # A page may be empty where the log was looked through without finding any: the file goes on.
            return "".join(self._lines(page.entries))
        if self._state == "closing":
            self._state = "end"
            return self._closing()
        return None

    def _lines(self, entries: Sequence[Entry]) -> Iterator[str]:
        rows: list[Any] = [entry.logged.row if entry.logged is not None else entry.refusal for entry in entries]
        self._labels.teams(row.team_id for row in rows)
        self._labels.members(row.member_id for row in rows)
        self._labels.keys(row.key_id for row in rows)
        self._labels.accounts(entry.logged.settled.account_id for entry in entries if entry.logged is not None)
        for entry, row in zip(entries, rows, strict=True):
            self.count += 1
            what = REQUEST if entry.logged is not None else REFUSED
            at = (csvfile.moment(entry.at, self._zone), csvfile.moment(entry.at, _UTC))
            rest = self._request(entry.logged) if entry.logged is not None else self._refusal(row)
            yield csvfile.line((what, "1", *at, csvfile.encoded(entry.name), *self._who(row), *rest))

    def _who(self, row: Any) -> Iterator[str]:
        team = self._labels.teams([row.team_id]).get(row.team_id)
        member = self._labels.members([row.member_id]).get(row.member_id)
        key = self._labels.keys([row.key_id]).get(row.key_id)
        yield csvfile.text(team.name if team is not None else None)
        yield str(team.uuid) if team is not None else ""
        yield csvfile.text(member.name if member is not None else None)
        yield csvfile.text(member.email or None if member is not None else None)
        yield str(member.uuid) if member is not None else ""
        yield csvfile.text(key.name if key is not None else None)
        yield str(key.uuid) if key is not None else ""

    def _request(self, logged: Logged) -> Iterator[str]:
        row = logged.settled
        label, uuid = usage_report.account_names(self._sight, self._labels, row.account_id)
        yield from (csvfile.text(label or None), uuid)
        yield from (csvfile.text(row.model_asked), csvfile.text(row.model_served), csvfile.text(row.tier_billed))
        yield from (csvfile.text(row.status), csvfile.flag(row.is_estimated))
        for name in TOKENS:
            yield str(self._added(name, logged.total(name)))
        yield credits.text(self._added("credits", logged.credits))
        yield from ("", "", "", csvfile.number(row.latency_ms), csvfile.number(row.first_token_ms))

    def _refusal(self, row: Refusal) -> Iterator[str]:
        yield from ("", "", csvfile.text(row.model or None), "", "", csvfile.text(request_log.REFUSED), "")
        yield from [""] * (len(TOKENS) + 1)
        yield str(self._added("refusals", row.count))
        yield from (csvfile.text(row.code), csvfile.text(row.message or None), "", "")

    def _added(self, name: str, amount: int) -> int:
        self._sums[name] += amount
        return amount

    def _closing(self) -> str:
        sums = self._sums
        blanks = [""] * (COLUMNS.index(TOKENS[0]) - 2)
        tokens = [str(sums[name]) for name in TOKENS]
        return csvfile.line(
            (TOTAL, str(self.count), *blanks, *tokens, credits.text(sums["credits"]), str(sums["refusals"]), *[""] * 4)
        )
