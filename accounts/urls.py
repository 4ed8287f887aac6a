"""The way in."""

from django.urls import path

from accounts import languages, views

urlpatterns = [
    path("", views.home, name="home"),
    path("language", languages.choose, name="language"),
    path("o/<slug:slug>/", views.organization, name="organization"),
]
