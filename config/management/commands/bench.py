"""`manage.py bench` itself is `bench.run`, which starts its own services before the settings can be read; this prints its help."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError


class Command(BaseCommand):
    help = "Measure what a request costs: the gateway with everything on beside a bare relay."

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        from bench import run

        return run.parser()

    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def handle(self, *args: Any, **options: Any) -> None:
        raise CommandError("Run it as `python3 manage.py bench`.")
