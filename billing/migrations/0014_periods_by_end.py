from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0013_usage_held")]

    operations = [
        migrations.AddIndex(
            "subscriptionperiod",
            models.Index(fields=["organization", "ends_at"], name="period_by_end"),
        ),
    ]
