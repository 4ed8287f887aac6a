"""The config app: system checks and the commands that start processes."""

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    verbose_name = "Configuration"

    def ready(self) -> None:
        from accounts import jobs
        from accounts.models import IdentityProvider
        from billing import labels
        from config import (
            account_labels,
            account_troubles,
            account_usage,
            checks,  # noqa: F401
            pool_door,
            pool_outlook,
            sending,
        )
        from quotas import overview_parts
        from quotas import pool_door as door
        from quotas.alerts import rules
        from quotas.models import WebhookEndpoint
        from routing import carried, rotation

        jobs.register_sender(sending.run_job)
        labels.register_accounts(account_labels.find)
        carried.register(account_usage.find)
        rules.register_troubles(account_troubles.find)
        overview_parts.register_pool(pool_outlook.find)
        door.register(pool_door.made())
        rotation.register(IdentityProvider, ("client_secret",))
        rotation.register(WebhookEndpoint, ("url", "secret", "previous_secret"))
