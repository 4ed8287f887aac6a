"""The billing app."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        from billing import snapshots
        from config import snapshot

        snapshot.register_loader("billing", snapshots.load)
