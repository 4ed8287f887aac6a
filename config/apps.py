"""The config app: system checks and the commands that start processes."""

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    verbose_name = "Configuration"

    def ready(self) -> None:
        from billing import labels
        from config import (
            account_labels,
            checks,  # noqa: F401
        )

        labels.register_accounts(account_labels.find)
