"""Teams: lists, new ones, other names."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import path

from accounts import api_tokens, permissions, teams
from accounts.models import Member, Team
from accounts.permissions import Action, Reach
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Moment, Shape, Text, Told, Uuid, iso

TAG = "Members"


class TeamShape(Shape):
    """A team of the organization."""

    id = Uuid()
    name = Told()
    created_at = Moment()


class TeamName(Shape):
    name = Text(max_length=80)


EXAMPLE = {"id": "0d0a4c62-9d0c-4a7e-8a53-1be5a2c0c7f4", "name": "Core", "created_at": "2026-11-02T09:00:00Z"}


def shown(team: Team) -> dict[str, Any]:
    return {"id": str(team.uuid), "name": team.name, "created_at": iso(team.created_at)}


def visible(reader: Member) -> QuerySet[Team]:
    """The reader's own team, or all for who sees the whole organization."""
    rows = Team.objects.filter(organization=reader.organization)
    return rows if permissions.reach(reader, Action.SEE_MEMBERS) is Reach.WHOLE else rows.filter(members=reader)


class Teams(Resource):
    @operation(
        "listTeams",
        tag=TAG,
        summary="List teams",
        scope=api_tokens.MEMBERS_READ,
        action=Action.SEE_MEMBERS,
        answers=TeamShape,
        is_list=True,
        example=EXAMPLE,
    )
    def get(self, call: Call) -> Any:
        return call.page(visible(call.member), shown)

    @operation(
        "createTeam",
        tag=TAG,
        summary="Make a team",
        description="For who looks after the whole organization.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
        body=TeamName,
        answers=TeamShape,
        status=201,
        idempotency=OPTIONAL,
        examples={"A team": {"name": "Core"}},
        example=EXAMPLE,
    )
    def post(self, call: Call) -> Any:
        call.demand(Action.MANAGE_MEMBERS)
        return shown(teams.create(call.member.organization, call.body["name"], by=call.by))


class OneTeam(Resource):
    @operation(
        "getTeam",
        tag=TAG,
        summary="Get a team",
        scope=api_tokens.MEMBERS_READ,
        action=Action.SEE_MEMBERS,
        answers=TeamShape,
        example=EXAMPLE,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        team = call.owned(Team.objects.all(), uuid)
        call.demand(Action.SEE_MEMBERS, team_id=team.pk)
        return shown(team)

    @operation(
        "renameTeam",
        tag=TAG,
        summary="Give a team another name",
        description="For who looks after the whole organization.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
        body=TeamName,
        answers=TeamShape,
        examples={"Another name": {"name": "Platform"}},
        example=EXAMPLE,
    )
    def patch(self, call: Call, uuid: UUID) -> Any:
        team = call.owned(Team.objects.all(), uuid)
        call.demand(Action.MANAGE_MEMBERS)
        return shown(teams.rename(team, call.body["name"], by=call.by))


urls = [
    path("teams", Teams.as_view(), name="api_teams"),
    path("teams/<uuid:uuid>", OneTeam.as_view(), name="api_team"),
]
