"""The way in."""

from django.urls import path

from accounts import views

urlpatterns = [
    path("", views.home, name="home"),
    path("o/<slug:slug>/", views.organization, name="organization"),
]
