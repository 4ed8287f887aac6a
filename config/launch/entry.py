"""What `manage.py` runs inside the virtual environment."""

import os
import sys

from config.launch import folders, runtime

# These start their services themselves; the rest use services that run.
STARTING = ("demo", "up")
WITHOUT_SERVICES = ("help", "version", "--help", "-h", "--version")


def main(command: str, arguments: list[str]) -> None:
    """Runs `test` or a Django command; never returns for `test`."""
    if command == "test":
        from config.launch import testing

        sys.exit(testing.main(arguments[1:]))
    if command in STARTING:
        if "--help" not in arguments and "-h" not in arguments:
            from config.launch import stack

            sys.exit(stack.main(command, arguments[1:]))
        runtime.pretend()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.dev")
    elif command in WITHOUT_SERVICES or "--help" in arguments or "-h" in arguments:
        runtime.pretend()
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.dev")
    else:
        try:
            runtime.adopt(folders.running_candidates())
        except runtime.NothingRuns as error:
            sys.exit(f"manage.py: {error}")
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings.prod")
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *arguments])
