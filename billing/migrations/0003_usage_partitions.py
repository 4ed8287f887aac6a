"""The default partition and those of the months around now; the task billing.tasks.make_usage_partitions makes the next."""

from django.db import migrations

from billing import partitions
from config.clock import utc_now


def make(apps, schema_editor):
    partitions.make_default()
    partitions.make_partitions(utc_now())


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0002_usage_log'),
    ]

    operations = [
        # Backwards they go with the table.
        migrations.RunPython(make, migrations.RunPython.noop),
    ]
