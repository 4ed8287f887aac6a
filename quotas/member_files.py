"""Members with their limits as a file: what Members & limits shows to the same reader, at one moment."""

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

from accounts.models import Member
from billing import credits, csvfile
from quotas import levels
from quotas.levels import LimitRow, Person
from quotas.models import Limit

MEMBER, LIMIT, TOTAL = "member", "limit", "total"
COLUMNS = (
    "record", "rows", "member", "member_email", "member_id", "role", "team", "team_id", "keys", "credits", "scope", "limit_of",
    "limit_id", "metric", "window", "models", "amount", "boosted_amount", "used", "held", "left", "resets_at", "resets_at_utc",
)  # fmt: skip
_UTC = ZoneInfo("UTC")


class MembersFile:
    """One record for each member, with what they used in the plan period; one for each limit: of members and their keys behind the
    member, of the organization and of teams behind all of them."""

    def __init__(self, reader: Member, *, now: datetime, with_bom: bool = False) -> None:
        self.organization, self.count = reader.organization, 0
        self._reader, self._now, self._with_bom = reader, now, with_bom
        self._zone = ZoneInfo(self.organization.timezone)
        self._is_done = False

    def next_piece(self) -> str | None:
        """The whole file: as many records as the page has rows."""
        if self._is_done:
            return None
        self._is_done = True
        scope = levels.of_scope(self._reader, now=self._now)
        lines = [(csvfile.BOM if self._with_bom else "") + csvfile.line(COLUMNS)]
        used = 0
        for person in scope.people:
            who = list(self._who(person))
            used += person.used or 0
            keys, spent = str(person.keys), credits.text(person.used) if person.used is not None else ""
            lines.append(csvfile.line((MEMBER, "1", *who, keys, spent, *[""] * 13)))
            lines += [csvfile.line((LIMIT, "1", *who, "", "", *self._limit(row))) for row in person.limits]
        lines += [csvfile.line((LIMIT, "1", *[""] * 8, *self._limit(row))) for row in scope.levels]
        self.count = len(lines) - 1
        lines.append(csvfile.line((TOTAL, str(self.count), *[""] * 7, credits.text(used), *[""] * 13)))
        return "".join(lines)

    def _who(self, person: Person) -> Iterator[str]:
        member = person.member
        yield csvfile.text(str(member))
        yield csvfile.text(member.user.email if member.user is not None else None)
        yield str(member.uuid)
        yield csvfile.text(member.role)
        yield csvfile.text(member.team.name if member.team is not None else None)
        yield str(member.team.uuid) if member.team is not None else ""

    def _limit(self, row: LimitRow) -> Iterator[str]:
        limit, meter = row.limit, row.meter
        yield csvfile.text(limit.scope)
        yield csvfile.text(row.level)
        yield str(limit.uuid)
        yield csvfile.text(limit.metric)
        yield csvfile.text(limit.window or None)
        yield csvfile.text(limit.model_filter.name if limit.model_filter is not None else None)
        yield _amount(limit, limit.amount)
        if meter is None:
            yield from [""] * 6
            return
        yield from (_amount(limit, number) for number in (meter.limit, meter.used, meter.held, meter.left))
        yield from (csvfile.moment(meter.resets_at, zone) if meter.resets_at else "" for zone in (self._zone, _UTC))


def _amount(limit: Limit, number: int) -> str:
    return credits.text(number) if limit.metric == Limit.Metric.CREDITS else str(number)
