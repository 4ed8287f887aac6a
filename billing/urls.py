"""Joining."""

from django.urls import path

from billing import pages

urlpatterns = [path("join/<str:token>", pages.join, name="join")]
