"""`manage.py set_models`: which models an account serves."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError

from config.management.operator import OperatorCommand
from routing import accounts
from routing.models import PoolAccount


class Command(OperatorCommand):
    help = "Says which models an account serves; requests for others go elsewhere from the next one on. Alone, prints what is set."

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("account", metavar="ACCOUNT", help="id of the account, as add_account printed it")
        parser.add_argument("models", metavar="MODEL", nargs="*", help="the models, as clients and aliases name them")
        parser.add_argument("--all", action="store_true", help="every model")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        models = options["models"]
        if options["all"] and models:
            raise CommandError("--all takes no models.")
        try:
            row = PoolAccount.objects.without_secrets().filter(uuid=UUID(options["account"])).first()
        except ValueError:
            row = None
        if row is None:
            raise CommandError(f"There is no account {options['account']!r}.")
        if models or options["all"]:
            row = accounts.set_models(row, models or None, by=None)
        return {"id": str(row.uuid), "label": row.label, "models": "all" if row.models_served is None else row.models_served}
