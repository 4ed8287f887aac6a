"""What is left of an allowance expires with its period, as credits do."""

from importlib import import_module

from django.db import migrations, models
from django.db.models import Q

FITS = import_module("billing.migrations.0009_ledger_indexes").FITS


class Migration(migrations.Migration):
    dependencies = [("billing", "0011_rates_never_overlap")]

    operations = [
        migrations.RemoveConstraint("ledgerentry", "ledger_accounts_fit_kind"),
        migrations.AddConstraint(
            "ledgerentry",
            models.CheckConstraint(
                condition=FITS
                | Q(kind="expiry", debit="expired", credit="allowance")
                | Q(kind="expiry", debit="allowance", credit="expired"),
                name="ledger_accounts_fit_kind",
            ),
        ),
    ]
