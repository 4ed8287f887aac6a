"""The billing app."""

from django.apps import AppConfig


class BillingConfig(AppConfig):
    name = "billing"

    def ready(self) -> None:
        from billing import job_kinds, monthly_files, snapshots
        from config import snapshot

        snapshot.register_loader("billing", snapshots.load)
        job_kinds.register()
        monthly_files.register()
