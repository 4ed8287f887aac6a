"""`manage.py move_account`: puts an account into another pool."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from accounts import organizations
from config.management.operator import OperatorCommand
from routing import pools
from routing.models import PoolAccount


class Command(OperatorCommand):
    help = "Puts an account into another pool of its organization, or into a shared one."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", metavar="ACCOUNT", help="id of the account, as add_account printed it")
        parser.add_argument("--organization", metavar="ORG", help="slug of the organization whose pool it goes to")
        parser.add_argument("--pool", metavar="NAME", help="the pool; without it, the organization's first")
        parser.add_argument("--shared", metavar="NAME", help="a shared pool")

    def operate(
        self, *, account: str, organization: str | None, pool: str | None, shared: str | None, **options: Any
    ) -> Mapping[str, Any]:
        if (organization is None) == (shared is None) or (shared is not None and pool is not None):
            raise CommandError("Give --organization ORG, with or without --pool NAME, or --shared NAME.")
        try:
            row = PoolAccount.objects.without_secrets().filter(uuid=UUID(account)).first()
        except ValueError:
            row = None
        if row is None:
            raise CommandError(f"There is no account {account!r}.")
        target = pools.find(None, shared) if organization is None else pools.find(organizations.find(organization), pool)
        moved = pools.move_account(row, target, by=None)
        return {"id": str(moved.uuid), "label": moved.label, "pool": target.name}
