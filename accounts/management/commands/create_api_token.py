"""create_api_token ORG MEMBER_EMAIL --name NAME [--scope SCOPE ...] [--days N]"""

from argparse import ArgumentParser
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from accounts import api_tokens, members, organizations
from config.clock import utc_now
from config.management.operator import OperatorCommand

MOST_DAYS = 3650


class Command(OperatorCommand):
    help = "Makes a token of the API for a member. It is shown this one time."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("email", metavar="MEMBER_EMAIL", help="as whom it acts")
        parser.add_argument("--name", required=True, metavar="NAME", help="what the token is for")
        parser.add_argument(
            "--scope",
            dest="scopes",
            action="append",
            choices=api_tokens.SCOPES,
            help="what it may do; may be repeated (all that the role may use)",
        )
        parser.add_argument("--days", type=int, metavar="N", help="how long it lasts (until it is revoked)")

    def operate(
        self, *, organization: str, email: str, name: str, scopes: list[str] | None, days: int | None, **options: Any
    ) -> Mapping[str, Any]:
        if days is not None and not 1 <= days <= MOST_DAYS:
            raise CommandError(f"--days is a number from 1 to {MOST_DAYS}.")
        member = members.find(organizations.find(organization), email)
        now = utc_now()
        issued = api_tokens.issue(
            member,
            name=name,
            by=None,
            now=now,
            scopes=scopes,
            expires_at=now + timedelta(days=days) if days is not None else None,
        )
        return {
            "id": str(issued.token.uuid),
            "token": issued.secret,
            "scopes": issued.token.scopes,
            "expires_at": issued.token.expires_at.isoformat() if issued.token.expires_at else None,
        }
