"""A tenant's rows are seen only in its scope (`config.scope`), by the owner of the tables too."""

from django.db import migrations

from billing import partitions
from config import scope

TABLES = (
    "billing_subscription",
    "billing_subscriptionperiod",
    "billing_usagerecord",
    "billing_usagehour",
    "billing_creditlot",
    "billing_ledgerentry",
    "billing_purchase",
    "billing_invoice",
    "billing_invoiceline",
    "billing_rateoverride",
)


class Migration(migrations.Migration):
    dependencies = [("billing", "0009_period_terms")]
    operations = [
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
        # Each month's table on its own: what is asked of it directly must not go round the parent.
        migrations.RunPython(lambda apps, editor: partitions.protect_all(), migrations.RunPython.noop),
    ]
