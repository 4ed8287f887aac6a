"""The config app: system checks and the commands that start processes."""

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    verbose_name = "Configuration"

    def ready(self) -> None:
        from billing import labels
        from config import (
            account_labels,
            account_troubles,
            account_usage,
            checks,  # noqa: F401
        )
        from quotas.alerts import rules
        from quotas.models import WebhookEndpoint
        from routing import carried, rotation

        labels.register_accounts(account_labels.find)
        carried.register(account_usage.find)
        rules.register_troubles(account_troubles.find)
        rotation.register(WebhookEndpoint, ("url", "secret", "previous_secret"))
