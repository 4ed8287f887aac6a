"""Django's admin with our site in it. A module of its own: `config.apps` may hold one app only."""

from django.contrib.admin.apps import AdminConfig as DjangoAdminConfig


class AdminConfig(DjangoAdminConfig):
    default_site = "config.admin_site.Site"
