"""Pages that answer what is left."""

from django.urls import path

from quotas import pages

urlpatterns = [
    path("o/<slug:slug>/key", pages.key, name="key"),
    path("o/<slug:slug>/key/issue", pages.issue_key, name="issue_key"),
    path("o/<slug:slug>/key/<uuid:uuid>/revoke", pages.revoke_key, name="revoke_key"),
    path("o/<slug:slug>/overview", pages.overview_page, name="overview"),
]
