"""`manage.py reset_cooldowns`: makes every account of an organization selectable again."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts.models import Organization
from config.management.operator import OperatorCommand
from routing import accounts


class Command(OperatorCommand):
    help = "Forgets cooldowns, exhaustion and observed windows of an organization's accounts, so that they are tried again."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError(f"There is no organization {options['organization']!r}.")
        total, cleared = accounts.reset_cooldowns(organization)
        return {"accounts": total, "cleared": cleared}
