"""Who acknowledged an alert is a member, whose name goes when they leave."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0006_alerts")]

    operations = [
        migrations.RemoveConstraint("alert", "alert_acknowledged_has_time"),
        migrations.RemoveField("alert", "acknowledged_by"),
        migrations.AddField(
            "alert",
            "acknowledged_by",
            models.ForeignKey(
                blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="accounts.member"
            ),
        ),
        migrations.AddConstraint(
            "alert",
            models.CheckConstraint(
                condition=models.Q(acknowledged_by=None) | models.Q(acknowledged_at__isnull=False),
                name="alert_acknowledged_has_time",
            ),
        ),
    ]
