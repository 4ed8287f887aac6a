"""`manage.py set_pool`: here because it names plans, which routing does not know."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations, teams
from accounts.models import Team
from billing import plans
from config.management.operator import OperatorCommand
from routing import pools


class Command(OperatorCommand):
    help = (
        "Makes a pool, or says who may use it. An organization's pool serves its named teams, or everybody; a shared pool serves "
        "the organizations on the plans that offer it. Accounts go into it by move_account."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", nargs="?", help="slug of the organization; none for a shared pool")
        parser.add_argument("--name", required=True, help="the pool's name")
        parser.add_argument(
            "--team", action="append", metavar="TEAM", help="a team that may use it (shared: ORG/TEAM); repeat it for more"
        )
        parser.add_argument("--everybody", action="store_true", help="every team may use it")
        parser.add_argument(
            "--plan", action="append", metavar="PLAN", help="slug of a plan that offers it (shared pools); repeat it for more"
        )

    def operate(
        self,
        *,
        organization: str | None,
        name: str,
        team: list[str] | None,
        everybody: bool,
        plan: list[str] | None,
        **options: Any,
    ) -> Mapping[str, Any]:
        if team and everybody:
            raise CommandError("--everybody does not go with --team.")
        owner = None if organization is None else organizations.find(organization)
        named: list[Team] | None = [] if everybody else None
        if team:
            named = [teams.find(owner, one) if owner is not None else _team_of_any(one) for one in team]
        slugs = None if plan is None else [plans.find(slug).slug for slug in plan]
        done = pools.set_pool(owner, name, teams=named, plans=slugs, by=None)
        return {
            "pool": done.pool.name,
            "new": done.is_new,
            "organization": organization,
            "teams": [one.name for one in done.pool.teams.order_by("pk")] or ["everybody"],
            "plans": done.pool.plans,
        }


def _team_of_any(text: str) -> Team:
    slug, slash, name = text.partition("/")
    if not slash:
        raise CommandError(f"A team of a shared pool is given as ORG/TEAM, not as {text!r}.")
    return teams.find(organizations.find(slug), name)
