"""`manage.py demo` itself is `config.launch.stack`, which must run before the settings can be read; this prints its help."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from config.launch import stack


class Command(BaseCommand):
    help = stack.parser("demo").description or ""

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        return stack.parser("demo")

    def add_arguments(self, parser: ArgumentParser) -> None:
        pass

    def handle(self, *args: Any, **options: Any) -> None:
        raise CommandError("Run it as `python3 manage.py demo`.")
