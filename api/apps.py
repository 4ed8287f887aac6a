"""The API's app: it has no models; its tasks are found through it."""

from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "api"
