"""A kind of entry names its accounts; what a request drew, and what was drawn without a lot, is found by an index."""

from django.db import migrations, models
from django.db.models import Q

SIDES = {
    "allowance": ("allowance", "issued"),
    "grant": ("credits", "issued"),
    "purchase": ("credits", "issued"),
    "usage_quota": ("usage", "allowance"),
    "usage_purchased": ("usage", "credits"),
    "overage": ("usage", "receivable"),
    "overdraft": ("usage", "overdraft"),
    "expiry": ("expired", "credits"),
}
FITS = Q(kind="adjustment")
for _kind, (_debit, _credit) in SIDES.items():
    FITS |= Q(kind=_kind, debit=_debit, credit=_credit) | Q(kind=_kind, debit=_credit, credit=_debit)


class Migration(migrations.Migration):
    dependencies = [("billing", "0008_money_append_only")]

    operations = [
        migrations.AddIndex(
            "ledgerentry",
            models.Index(condition=Q(kind="usage_purchased"), fields=["organization", "request_id"], name="ledger_by_draw"),
        ),
        migrations.AddIndex(
            "ledgerentry",
            models.Index(condition=Q(kind="usage_purchased", lot=None), fields=["organization"], name="ledger_without_lot"),
        ),
        migrations.AddConstraint("ledgerentry", models.CheckConstraint(condition=FITS, name="ledger_accounts_fit_kind")),
    ]
