"""The config app: system checks and the commands that start processes."""

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"
    verbose_name = "Configuration"

    def ready(self) -> None:
        from config import checks  # noqa: F401
