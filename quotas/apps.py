"""The quotas app."""

from django.apps import AppConfig


class QuotasConfig(AppConfig):
    name = "quotas"

    def ready(self) -> None:
        from config import snapshot
        from quotas import job_kinds, publishing, snapshots, zones

        snapshot.register_loader("quotas", snapshots.load)
        snapshot.register_publisher(publishing.publish_version)
        snapshot.register_grant_publisher(publishing.publish_grants)
        job_kinds.register()
        zones.register()
