"""`manage.py set_fallback`: which models serve in place of which when the pool cannot carry them."""

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from config.management.operator import OperatorCommand
from routing import fallbacks


class Command(OperatorCommand):
    help = (
        "Lets other models, in the order given, serve an organization's requests for a model when no account can carry it. "
        "Without fallbacks, prints what is set. Holds on the next request."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="slug of the organization")
        parser.add_argument("model", metavar="MODEL", nargs="?", help="the model that is asked for")
        parser.add_argument("fallbacks", metavar="FALLBACK", nargs="*", help="models that serve instead, the first one first")
        parser.add_argument("--clear", action="store_true", help="takes the model's rule away")

    def operate(self, **options: Any) -> Mapping[str, Any]:
        organization, model = organizations.find(options["organization"]), options["model"]
        if options["clear"] and (model is None or options["fallbacks"]):
            raise CommandError("--clear takes a model and no fallbacks.")
        if options["fallbacks"] or options["clear"]:
            fallbacks.set_fallbacks(organization, model, options["fallbacks"], by=None)
        rules = fallbacks.of(organization)
        return {"organization": organization.slug, "fallbacks": rules if model is None else {model: rules.get(model, [])}}
