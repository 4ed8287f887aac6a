"""Pages, admin and health. Proxied paths and /ws/ are routed before Django, in `config.asgi`."""

from django.contrib import admin
from django.urls import include, path

from config import health

urlpatterns = [
    path("health/live", health.live, name="health_live"),
    path("health/ready", health.ready, name="health_ready"),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.account.urls")),
    path("", include("accounts.urls")),
    path("", include("billing.urls")),
    path("", include("quotas.urls")),
]
