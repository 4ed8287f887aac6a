"""GET /api/v1/usage: the usage report as JSON, the same rows and the same sum as the page."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model
from django.http import Http404
from django.urls import path
from rest_framework import serializers

from accounts import api_tokens, tenancy
from accounts.errors import ParameterInvalid
from accounts.models import Member, Team
from accounts.permissions import Action
from api.base import Call, Resource, operation
from api.fields import Moment, Query, Shape, Text, Told
from billing import labels, usage_report
from billing.credits import text
from billing.labels import Sight
from billing.reports import UsageSum
from billing.usage_report import AMOUNTS, COLUMNS, CREDITS, Range

M = TypeVar("M", bound=Model)


class UsageQuery(Query):
    by = Text(required=False, help_text=f"{', '.join(COLUMNS)}; day without a word.")
    start = Text(required=False, help_text="A day of the organization's zone, or an instant; the current period without a word.")
    end = Text(required=False, help_text="A day, included, or an instant, excluded.")
    member = Text(required=False, help_text="A member's id: only what they used.")
    team = Text(required=False, help_text="A team's id: only what was used in it.")


class UsageAmounts(Shape):
    """Credits as decimal text, counts as numbers."""

    def get_fields(self) -> dict[str, Any]:
        return {name: Told() if name in CREDITS else serializers.IntegerField() for name in AMOUNTS}


class UsageRow(UsageAmounts):
    """What the rows are grouped by, and the amounts."""

    def get_fields(self) -> dict[str, Any]:
        names = dict.fromkeys(name for columns in COLUMNS.values() for name in columns)
        return {**{name: Told(required=False, allow_null=True) for name in names}, **super().get_fields()}


class UsageShape(Shape):
    """The usage report of [start, end)."""

    by = Told()
    start = Moment()
    end = Moment()
    timezone = Told()
    rows = UsageRow(many=True)
    total = UsageAmounts()


class Usage(Resource):
    @operation(
        "getUsage",
        tag="Usage",
        summary="The usage report",
        description=(
            "The same rows and the same sum as the page. What the token's member does not see is not in the sums; every grouping "
            "adds up to the same total."
        ),
        scope=api_tokens.USAGE,
        action=Action.SEE_USAGE,
        query=UsageQuery,
        answers=UsageShape,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        query = call.query
        sight = _narrowed(labels.sight(call.member), call, query)
        by = query.get("by", "day")
        usage_report.check_grouping(sight, by)
        report = usage_report.report(sight, by, _range(sight, call.member, query, call.now), now=call.now)
        zone = ZoneInfo(call.member.organization.timezone)
        columns = COLUMNS[by]
        return {
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


def _narrowed(sight: Sight, call: Call, query: Mapping[str, str]) -> Sight:
    member, whose = call.member, sight.whose
    if "member" in query:
        of = _owned(Member, call, query["member"])
        tenancy.demand(member, Action.SEE_USAGE, of=of)
        whose = replace(whose, member_id=of.pk)
    if "team" in query:
        team = _owned(Team, call, query["team"])
        tenancy.demand(member, Action.SEE_USAGE, team_id=team.pk)
        whose = replace(whose, team_id=team.pk)
    return replace(sight, whose=whose)


def _owned(model: type[M], call: Call, text: str) -> M:
    try:
        uuid = UUID(text)
    except ValueError:
        raise Http404 from None
    return tenancy.owned(model._default_manager.all(), call.member.organization, uuid)


urls = [path("usage", Usage.as_view(), name="api_usage")]
