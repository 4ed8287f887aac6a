"""Joining, and the usage report with its files."""

from django.urls import path

from billing import pages, report_page

urlpatterns = [
    path("join/<str:token>", pages.join, name="join"),
    path("o/<slug:slug>/usage", report_page.usage_report_page, name="usage_report"),
    path("o/<slug:slug>/usage/totals.csv", report_page.usage_totals_csv, name="usage_totals_csv"),
    path("o/<slug:slug>/usage/requests.csv", report_page.usage_rows_csv, name="usage_rows_csv"),
]
