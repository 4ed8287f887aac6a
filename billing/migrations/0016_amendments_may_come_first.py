from django.db import migrations


class Migration(migrations.Migration):
    """An amendment that gives back may come before its orphan: then a period's sums are below 0 until that comes."""

    dependencies = [("billing", "0015_book_old_usage")]

    operations = [migrations.RemoveConstraint("subscriptionperiod", "period_sums_not_negative")]
