"""The way in."""

from django.urls import path

from accounts import identity_page, languages, views

urlpatterns = [
    path("", views.home, name="home"),
    path("language", languages.choose, name="language"),
    path("o/<slug:slug>/", views.organization, name="organization"),
    path("o/<slug:slug>/settings/identity", identity_page.identity_settings, name="identity_settings"),
    path("o/<slug:slug>/settings/identity/test", identity_page.test_identity, name="test_identity"),
    path("o/<slug:slug>/settings/identity/remove", identity_page.remove_identity, name="remove_identity"),
]
