"""Ledger entries, invoices and their lines are added, never changed: the database refuses, the owner of the tables too."""

from django.db import migrations

TABLES = ("billing_ledgerentry", "billing_invoice", "billing_invoiceline")

FORWARDS = "".join(
    f"""
    CREATE TRIGGER never_changed BEFORE UPDATE OR DELETE ON {table}
        FOR EACH ROW EXECUTE FUNCTION billing_append_only();
    CREATE TRIGGER never_truncated BEFORE TRUNCATE ON {table}
        FOR EACH STATEMENT EXECUTE FUNCTION billing_append_only();
    """
    for table in TABLES
)
BACKWARDS = "".join(f"DROP TRIGGER never_changed ON {table}; DROP TRIGGER never_truncated ON {table};" for table in TABLES)


class Migration(migrations.Migration):
    dependencies = [("billing", "0007_period_organization")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
