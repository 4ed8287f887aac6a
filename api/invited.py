"""Invitations that wait: which there are, another link for who has lost theirs, and ending one."""

from typing import Any
from uuid import UUID

from django.urls import path

from accounts import api_tokens, managing
from accounts.models import Invitation, Member
from accounts.permissions import Action
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Choice, Moment, Shape, Told, Uuid, iso
from api.idempotency import Answer
from api.people import ONCE

TAG = "Members"


class InvitationShape(Shape):
    """A link that still holds. The link itself is told once, when it is made."""

    id = Uuid()
    email = Told()
    role = Choice(choices=Member.Role.values)
    created_at = Moment()
    expires_at = Moment()


class NewInvitation(InvitationShape):
    """A link that was made just now."""

    invitation_url = Told(allow_null=True, help_text="null when the answer is given again.")
    secret_note = Told()


EXAMPLE = {
    "id": "7b0b51f0-1e0c-43a0-a4cf-0f0f1f6f7c55",
    "email": "ada@example.com",
    "role": "developer",
    "created_at": "2026-11-02T09:00:00Z",
    "expires_at": "2026-11-09T09:00:00Z",
}


def shown(row: Invitation) -> dict[str, Any]:
    return {
        "id": str(row.uuid),
        "email": row.email,
        "role": row.role,
        "created_at": iso(row.created_at),
        "expires_at": iso(row.expires_at),
    }


class Invitations(Resource):
    @operation(
        "listInvitations",
        tag=TAG,
        summary="List invitations that wait",
        scope=api_tokens.MEMBERS_READ,
        action=Action.MANAGE_MEMBERS,
        answers=InvitationShape,
        is_list=True,
        example=EXAMPLE,
    )
    def get(self, call: Call) -> Any:
        return call.page(managing.open_invitations(call.member, now=call.now), shown, is_newest_first=True)


class OneInvitation(Resource):
    @operation(
        "withdrawInvitation",
        tag=TAG,
        summary="End an invitation",
        description="The link does not hold any more. The person stays an awaited member until they are removed.",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
    )
    def delete(self, call: Call, uuid: UUID) -> None:
        managing.withdraw(call.member, call.owned(Invitation.objects.all(), uuid), now=call.now)


class InviteAgain(Resource):
    @operation(
        "inviteMemberAgain",
        tag=TAG,
        summary="Make another link for a member who has not come",
        scope=api_tokens.MEMBERS_WRITE,
        action=Action.MANAGE_MEMBERS,
        answers=NewInvitation,
        status=201,
        idempotency=OPTIONAL,
        example={**EXAMPLE, "invitation_url": "https://weir.example/join/…", "secret_note": ONCE},
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        link = managing.invite_again(call.member, managing.find(call.member, uuid), now=call.now)
        data = {**shown(link.invitation), "invitation_url": link.url, "secret_note": ONCE}
        return Answer(201, data, secrets=("invitation_url",))


urls = [
    path("invitations", Invitations.as_view(), name="api_invitations"),
    path("invitations/<uuid:uuid>", OneInvitation.as_view(), name="api_invitation"),
    path("members/<uuid:uuid>/invitations", InviteAgain.as_view(), name="api_member_invitations"),
]
