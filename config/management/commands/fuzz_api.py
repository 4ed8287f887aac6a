"""fuzz_api [--examples N] [--seed N] [--only REGEX]"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

MOST_EXAMPLES = 10_000


class Command(BaseCommand):
    help = "Calls every operation of /api/v1/ with what its schema allows and forbids, on a server of its own; 1 on a finding."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--examples", type=int, default=300, metavar="N", help="random calls of each operation (300)")
        parser.add_argument("--seed", type=int, default=None, metavar="N", help="repeats a run (a random one)")
        parser.add_argument("--only", default="", metavar="REGEX", help="operations whose id matches")

    def handle(self, *args: Any, examples: int, seed: int | None, only: str, **options: Any) -> None:
        if not 1 <= examples <= MOST_EXAMPLES:
            raise CommandError(f"--examples is a number from 1 to {MOST_EXAMPLES:,}.")
        try:
            from bench import fuzz
        except ImportError as error:
            raise CommandError("This needs the development packages of requirements.lock.") from error
        import secrets

        chosen = secrets.randbelow(2**31) if seed is None else seed
        try:
            findings = fuzz.run(examples=examples, seed=chosen, only=only, say=self.stdout.write)
        except fuzz.Failed as error:
            raise CommandError(f"The server did not start:\n{error}") from error
        if findings:
            raise CommandError(f"{findings} findings.", returncode=1)
