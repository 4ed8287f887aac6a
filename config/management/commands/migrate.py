"""`manage.py migrate`, which may see every tenant's rows: data migrations walk over all of them."""

from typing import Any

from django.core.management.commands import migrate

from config import scope


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        with scope.everything():
            super().handle(*args, **options)
