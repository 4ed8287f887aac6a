"""Members, and who one is oneself. The example of a resource: shapes, one function that fills the answer's, a class per path."""

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.urls import path

from accounts import api_tokens, managing, members, permissions
from accounts.models import Member
from accounts.permissions import Action, Reach
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Choice, Flag, Moment, Query, Shape, Text, Told, Uuid, iso
from api.idempotency import Answer
from billing import joining

TAG = "Members"
ONCE = "It is in this answer only: it is kept nowhere."


class MemberShape(Shape):
    """A person in the organization. Without a team they belong to the whole organization."""

    id = Uuid()
    email = Told(allow_null=True)
    name = Told(help_text="As pages show it.")
    role = Choice(choices=Member.Role.values)
    team_id = Uuid(allow_null=True)
    team = Told(allow_null=True, help_text="The team's name.")
    fast_allowed = Flag(help_text="May any key of the member ask for fast mode?")
    is_awaited = Flag(help_text="Invited, and the link not opened yet.")
    joined_at = Moment()


class InvitedMember(MemberShape):
    """A member who was invited just now."""

    invitation_url = Told(
        allow_null=True, help_text="Opens the organization to them, for 7 days; null when the answer is given again."
    )
    secret_note = Told()


class MemberInvite(Shape):
    email = Text(max_length=254)
    role = Choice(choices=Member.Role.values, required=False, help_text="developer without a word.")
    team_id = Uuid(required=False, allow_null=True, help_text="Without a word the caller's own team.")
    name = Text(max_length=120, required=False, allow_blank=True)


class MemberChange(Shape):
    """What is left out stays."""

    role = Choice(choices=Member.Role.values, required=False)
    team_id = Uuid(required=False, allow_null=True, help_text="null: the whole organization.")
    fast_allowed = Flag(required=False)


class MemberQuery(Query):
    role = Choice(choices=Member.Role.values, required=False)
    team_id = Uuid(required=False)


EXAMPLE = {
    "id": "5f0c1c1e-6f0e-4a6e-9f3e-0c5d7f2b8a11",
    "email": "ada@example.com",
    "name": "Ada",
    "role": "developer",
    "team_id": "0d0a4c62-9d0c-4a7e-8a53-1be5a2c0c7f4",
    "team": "Core",
    "fast_allowed": True,
    "is_awaited": False,
    "joined_at": "2026-11-02T09:00:00Z",
}


def shown(member: Member) -> dict[str, Any]:
    """`MemberShape` of a row with its user and team."""
    return {
        "id": str(member.uuid),
        "email": member.user.email if member.user is not None else None,
        "name": str(member),
        "role": member.role,
        "team_id": str(member.team.uuid) if member.team is not None else None,
        "team": member.team.name if member.team is not None else None,
        "fast_allowed": member.fast_allowed,
        "is_awaited": member.is_awaited,
        "joined_at": iso(member.joined_at),
    }


def visible(reader: Member) -> QuerySet[Member]:
    """The current members in the reader's reach."""
    rows = Member.objects.for_organization(reader.organization).current().select_related("user", "team", "organization")
    return rows if permissions.reach(reader, Action.SEE_MEMBERS) is Reach.WHOLE else rows.filter(team=reader.team)


class Members(Resource):
    @operation(
        "listMembers",
        tag=TAG,
        summary="List members",
        description="Those in the caller's reach: of a team's lead, the team.",
        scope=api_tokens.MEMBERS_READ,
        action=Action.SEE_MEMBERS,
        query=MemberQuery,
        answers=MemberShape,
        is_list=True,
        example=EXAMPLE,
        errors=(404,),
    )
    def get(self, call: Call) -> Any:
        rows = visible(call.member)
        if "role" in call.query:
            rows = rows.filter(role=call.query["role"])
        if "team_id" in call.query:
            team = managing.team(call.member, call.query["team_id"])
            rows = rows.filter(team=team)
        return call.page(rows, shown)

    @operation(
        "inviteMember",
        tag=TAG,
        summary="Invite a member",
        description="They are a member at once, and come in by the link. Who was invited so before and has not come gets another.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
        body=MemberInvite,
        answers=InvitedMember,
        status=201,
        idempotency=OPTIONAL,
        examples={"A developer": {"email": "ada@example.com", "role": "developer", "name": "Ada"}},
        example={**EXAMPLE, "is_awaited": True, "invitation_url": "https://weir.example/join/…", "secret_note": ONCE},
        errors=(404,),
    )
    def post(self, call: Call) -> Any:
        asked = call.body
        team = call.member.team
        if "team_id" in asked:
            team = managing.team(call.member, asked["team_id"]) if asked["team_id"] is not None else None
        link = managing.invite(
            call.member,
            asked["email"],
            role=asked.get("role", Member.Role.DEVELOPER),
            team=team,
            name=asked.get("name", ""),
            now=call.now,
        )
        member = members.find(call.member.organization, link.invitation.email)
        data = {**shown(member), "invitation_url": link.url, "secret_note": ONCE}
        return Answer(201, data, secrets=("invitation_url",))


class OneMember(Resource):
    @operation(
        "getMember",
        tag=TAG,
        summary="Get a member",
        scope=api_tokens.MEMBERS_READ,
        action=Action.SEE_MEMBERS,
        answers=MemberShape,
        example=EXAMPLE,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return shown(managing.find(call.member, uuid))

    @operation(
        "changeMember",
        tag=TAG,
        summary="Change a member",
        description="Who becomes finance loses all keys. An organization keeps an owner.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
        body=MemberChange,
        answers=MemberShape,
        examples={"Another role": {"role": "lead"}},
        example=EXAMPLE,
    )
    def patch(self, call: Call, uuid: UUID) -> Any:
        found, asked = managing.find(call.member, uuid), call.body
        team_id = asked.get("team_id")
        changed = managing.change(
            call.member,
            found,
            role=asked.get("role"),
            team=managing.team(call.member, team_id) if team_id is not None else None,
            has_team="team_id" in asked,
            fast_allowed=asked.get("fast_allowed"),
            now=call.now,
        )
        return shown(changed)

    @operation(
        "removeMember",
        tag=TAG,
        summary="Remove a member",
        description="Their keys are refused on the next request; what was used stays in the log under “former member n”.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        joining.dismiss(call.member, managing.find(call.member, uuid), now=call.now)


class Me(Resource):
    @operation(
        "getMe",
        tag=TAG,
        summary="Who the token acts as",
        scope=api_tokens.STATUS,
        action=None,
        answers=MemberShape,
        example=EXAMPLE,
    )
    def get(self, call: Call) -> Any:
        return shown(call.member)


urls = [
    path("me", Me.as_view(), name="api_me"),
    path("members", Members.as_view(), name="api_members"),
    path("members/<uuid:uuid>", OneMember.as_view(), name="api_member"),
]
