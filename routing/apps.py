"""The routing app."""

from django.apps import AppConfig


class RoutingConfig(AppConfig):
    name = "routing"

    def ready(self) -> None:
        from config import live_marks as marks
        from config import snapshot
        from routing import import_jobs, live_marks, snapshots

        snapshot.register_loader("routing", snapshots.load)
        marks.register("pool", live_marks.read)
        import_jobs.register()
