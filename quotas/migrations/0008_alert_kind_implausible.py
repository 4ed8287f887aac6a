"""What a kind of alert is called; the stored values stay."""

from django.db import migrations, models

KINDS = [
    ("limit", "A limit is nearly used up"),
    ("quota", "The plan’s quota is nearly used up"),
    ("overage", "The quota will probably not last"),
    ("anomaly", "A member burns much faster than usual"),
    ("account", "An account needs sign-in"),
    ("no_account", "No account can serve a request"),
    ("implausible", "Implausible usage"),
    ("drift", "Books that drift"),
]


class Migration(migrations.Migration):
    dependencies = [("quotas", "0007_alert_acknowledged_by_member")]

    operations = [
        migrations.AlterField("alert", "kind", models.CharField(choices=KINDS, max_length=12)),
        migrations.AlterField("alertrule", "kind", models.CharField(choices=KINDS, max_length=12)),
    ]
