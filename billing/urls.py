"""Joining, the usage report with its files, and the door of payment providers."""

from django.urls import path

from billing import pages, report_page, webhooks

urlpatterns = [
    path("join/<str:token>", pages.join, name="join"),
    path("webhooks/payments/<slug:provider>/", webhooks.payments, name="payment_webhook"),
    path("o/<slug:slug>/usage", report_page.usage_report_page, name="usage_report"),
    path("o/<slug:slug>/usage/totals.csv", report_page.usage_totals_csv, name="usage_totals_csv"),
    path("o/<slug:slug>/usage/requests.csv", report_page.usage_rows_csv, name="usage_rows_csv"),
]
