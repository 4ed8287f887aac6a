"""Where the person of a pooled sign-in takes it out again."""

from django.urls import path

from routing import pages

urlpatterns = [
    path("withdraw/<str:token>", pages.withdraw, name="withdraw"),
]
