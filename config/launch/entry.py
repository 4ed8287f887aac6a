"""What `manage.py` runs inside the virtual environment."""

import os
import sys

from config.launch import runtime

STARTING = ("demo", "up", "bench")
"""They start their services themselves; the rest use services that run."""
SERVING = ("serve", "ledger")
WITHOUT_SERVICES = ("help", "version", "--help", "-h", "--version", "collectstatic", "makemigrations")
RELEASING = ("collectstatic",)
"""Prepares a server: under the settings of a machine of one's own there is nothing to do."""


def main(command: str, arguments: list[str]) -> None:
    """Runs `test`, a stack, or a Django command. Exits for the first two."""
    asks_help = "--help" in arguments or "-h" in arguments
    if command == "test":
        from config.launch import testing

        sys.exit(testing.main(arguments[1:]))
    if command == "bench" and not asks_help:
        from bench import run

        sys.exit(run.main(arguments[1:]))
    if command in STARTING and not asks_help:
        from config.launch import stack

        sys.exit(stack.main(command, arguments[1:]))
    import django
    from django.core.management import execute_from_command_line, get_commands

    if command in STARTING or command in WITHOUT_SERVICES or asks_help:
        runtime.pretend()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", f"config.settings.{'prod' if command in RELEASING else 'dev'}")
    else:
        try:
            runtime.adopt(join=command not in SERVING)
        except runtime.NothingRuns as error:
            runtime.pretend()
            os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.dev")
            # A misspelled command needs no stack, it needs to be told so: Django does that below.
            django.setup()
            if command in get_commands():
                sys.exit(f"manage.py {command}: {error}")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.prod")
    execute_from_command_line(["manage.py", *arguments])
