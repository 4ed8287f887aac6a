"""Joining, rate cards (operators), the usage report with its files, and the door of payment providers."""

from django.urls import path

from billing import monthly_page, pages, pages_money, ratecard_pages, report_page, webhooks

urlpatterns = [
    path("join/<str:token>", pages.join, name="join"),
    path("ratecards/", ratecard_pages.ratecards, name="ratecards"),
    path("ratecards/<uuid:uuid>", ratecard_pages.ratecard_import, name="ratecard_import"),
    path("ratecards/<uuid:uuid>/apply", ratecard_pages.apply_ratecard, name="apply_ratecard"),
    path("webhooks/payments/<slug:provider>/", webhooks.payments, name="payment_webhook"),
    path("o/<slug:slug>/usage", report_page.usage_report_page, name="usage_report"),
    path("o/<slug:slug>/usage/totals.csv", report_page.usage_totals_csv, name="usage_totals_csv"),
    path("o/<slug:slug>/usage/requests.csv", report_page.usage_rows_csv, name="usage_rows_csv"),
    path("o/<slug:slug>/invoices", pages_money.invoices, name="invoices"),
    path("o/<slug:slug>/invoices/plan", pages_money.change_plan, name="change_plan"),
    path("o/<slug:slug>/invoices/plan/keep", pages_money.keep_plan, name="keep_plan"),
    path("o/<slug:slug>/invoices/monthly", monthly_page.set_monthly, name="set_monthly"),
    path("o/<slug:slug>/invoices/monthly/<uuid:uuid>/again", monthly_page.send_again, name="send_monthly_again"),
    path("o/<slug:slug>/invoices/ledger.csv", pages_money.ledger_csv, name="ledger_csv"),
    path("o/<slug:slug>/invoices/<uuid:uuid>", pages_money.invoice, name="invoice"),
    path("o/<slug:slug>/invoices/<uuid:uuid>.csv", pages_money.invoice_csv, name="invoice_csv"),
]
