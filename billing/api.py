"""GET /api/v1/usage: the usage report as JSON, the same rows and the same sum as the page."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from accounts import api_tokens, tenancy
from accounts.api import Caller, OrganizationView
from accounts.errors import ParameterInvalid
from accounts.models import Member, Team
from accounts.permissions import Action
from billing import labels, usage_report
from billing.credits import text
from billing.labels import Sight
from billing.reports import UsageSum
from billing.usage_report import AMOUNTS, COLUMNS, CREDITS, Range
from config.clock import utc_now

M = TypeVar("M", bound=Model)


class UsageView(OrganizationView):
    """`by` (day), `start` and `end` (the current period), `member`, `team` (public ids): only what they used, or was used in it.

    `start` and `end` are days of the organization's zone, both included, or instants, `end` excluded; the answer tells the instants
    [start, end). What the token's member does not see is not in the sums. A foreign id is answered as a missing one, 404.
    """

    token_scope = api_tokens.USAGE
    parameters = ("by", "start", "end", "member", "team")

    def get(self, request: Request) -> Response:
        now, caller = utc_now(), self.caller(request)
        query = {name: request.query_params[name] for name in request.query_params}
        sight = _narrowed(labels.sight(caller.member), caller, query)
        by = query.get("by", "day")
        usage_report.check_grouping(sight, by)
        report = usage_report.report(sight, by, _range(sight, caller.member, query, now), now=now)
        zone = ZoneInfo(caller.member.organization.timezone)
        columns = COLUMNS[by]
        return Response(
            {
                "by": by,
                "start": report.range.start.astimezone(zone).isoformat(),
                "end": report.range.end.astimezone(zone).isoformat(),
                "timezone": zone.key,
                "rows": [
                    {**{name: value or None for name, value in zip(columns, line.names, strict=True)}, **amounts(line.sums)}
                    for line in report.lines
                ],
                "total": amounts(report.total),
            }
        )


def amounts(sums: UsageSum) -> dict[str, Any]:
    """Credits as decimal text, counts as numbers."""
    return {name: text(getattr(sums, name)) if name in CREDITS else getattr(sums, name) for name in AMOUNTS}


def _range(sight: Sight, member: Member, query: Mapping[str, str], now: datetime) -> Range:
    if "start" not in query and "end" not in query:
        return usage_report.this_period(sight, member, now)
    for name, other in (("start", "end"), ("end", "start")):
        if name not in query:
            raise ParameterInvalid(f"{other} needs {name} beside it.", param=name)
    return usage_report.parsed(query["start"], query["end"], ZoneInfo(member.organization.timezone))


def _narrowed(sight: Sight, caller: Caller, query: Mapping[str, str]) -> Sight:
    member, whose = caller.member, sight.whose
    if "member" in query:
        of = _owned(Member, caller, query["member"])
        tenancy.demand(member, Action.SEE_USAGE, of=of)
        whose = replace(whose, member_id=of.pk)
    if "team" in query:
        team = _owned(Team, caller, query["team"])
        tenancy.demand(member, Action.SEE_USAGE, team_id=team.pk)
        whose = replace(whose, team_id=team.pk)
    return replace(sight, whose=whose)


def _owned(model: type[M], caller: Caller, text: str) -> M:
    try:
        uuid = UUID(text)
    except ValueError:
        raise Http404 from None
    return tenancy.owned(model._default_manager.all(), caller.member.organization, uuid)
