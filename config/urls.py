"""Pages, API, admin and health. Proxied paths and /ws/ are routed before Django, in `config.asgi`."""

from django.contrib import admin
from django.urls import include, path

from config import health

urlpatterns = [
    path("health/live", health.live, name="health_live"),
    path("health/ready", health.ready, name="health_ready"),
    path("health/status", health.status, name="health_status"),
    path("admin/", admin.site.urls),
    path("accounts/", include("accounts.security_urls")),
    path("accounts/", include("accounts.identity_urls")),
    path("accounts/", include("allauth.urls")),
    path("api/v1/", include("api.urls")),
    path("", include("accounts.urls")),
    path("", include("billing.urls")),
    path("", include("quotas.urls")),
    path("", include("routing.urls")),
]
