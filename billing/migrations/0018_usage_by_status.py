"""What did not end well is found in the log without reading all that did."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("billing", "0017_plan_is_offered")]

    operations = [
        migrations.AddIndex(
            "usagerecord",
            models.Index(condition=~Q(status="ok"), fields=["organization", "status", "-admitted_at"], name="usage_by_status"),
        ),
    ]
