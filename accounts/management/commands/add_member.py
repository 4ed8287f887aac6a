"""add_member ORG EMAIL --role ROLE [--team TEAM] [--password-stdin]"""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from accounts import members, organizations, teams
from accounts.errors import PasswordRefused
from accounts.models import Member
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Adds a person to an organization. A team that does not exist yet is made. Without --password-stdin a new person sets a "
        "password by `Forgot it?` on the sign-in page."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("email", metavar="EMAIL", help="the person's e-mail address")
        parser.add_argument("--role", required=True, metavar="ROLE", help=", ".join(Member.Role.values))
        parser.add_argument("--team", metavar="TEAM", help="the team's name; without it, the whole organization")
        parser.add_argument("--password-stdin", action="store_true", help="read the person's password from standard input")

    def operate(
        self, *, organization: str, email: str, role: str, team: str | None, password_stdin: bool, **options: Any
    ) -> Mapping[str, Any]:
        password = _first_line() if password_stdin else None
        found = organizations.find(organization)
        # One transaction: a refused member leaves no new team behind.
        with transaction.atomic():
            member = members.add(
                found,
                email,
                role=role,
                team=None if team is None else teams.named(found, team, by=None),
                password=password,
                by=None,
            )
        assert member.user is not None
        return {"id": str(member.uuid), "email": member.user.email}


def _first_line() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise PasswordRefused("--password-stdin: standard input holds no password.", reasons=[])
    return password
