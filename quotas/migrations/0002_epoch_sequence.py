"""Each rebuild of counters takes the next epoch; a hold that sees a new one renews at once."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]
    operations = [
        migrations.RunSQL("CREATE SEQUENCE quotas_epoch AS bigint", "DROP SEQUENCE quotas_epoch"),
    ]
