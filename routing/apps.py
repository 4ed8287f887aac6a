"""The routing app."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"

    def ready(self) -> None:
        from config import snapshot
        from routing import snapshots

        snapshot.register_loader("routing", snapshots.load)
