"""Usage that cannot be is found in the log without reading all that can."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("billing", "0018_usage_by_status")]

    operations = [
        migrations.AddIndex(
            "usagerecord",
            models.Index(condition=Q(is_implausible=True), fields=["organization", "-admitted_at"], name="usage_by_implausible"),
        ),
    ]
