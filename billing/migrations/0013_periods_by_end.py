from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0012_allowances_expire")]

    operations = [
        migrations.AddIndex(
            "subscriptionperiod",
            models.Index(fields=["organization", "ends_at"], name="period_by_end"),
        ),
    ]
