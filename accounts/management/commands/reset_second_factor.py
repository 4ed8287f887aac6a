"""reset_second_factor EMAIL"""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from accounts import factors
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Takes the second factors and recovery codes of a person who has lost them; ends their sessions, and tells them by e-mail."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("email", metavar="EMAIL", help="the address that the person signs in with")

    def operate(self, *, email: str, **options: Any) -> Mapping[str, Any]:
        user = factors.person(email)
        done = factors.reset(user, by=None)
        return {"email": user.email, "factors_removed": done.factors, "sessions_ended": done.sessions}
