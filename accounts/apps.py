"""The accounts app."""

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "accounts"

    def ready(self) -> None:
        from accounts import factor_events, snapshots
        from config import snapshot

        snapshot.register_loader("accounts", snapshots.load)
        snapshot.register_key_lookup(snapshots.organization_of_key)
        factor_events.connect()
