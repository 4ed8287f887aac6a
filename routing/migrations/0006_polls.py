"""What the last usage poll of an account said, and whether one that went out had been paused."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("routing", "0005_model_fallbacks")]
    operations = [
        migrations.AddField("poolaccount", "was_paused", models.BooleanField(default=False, editable=False)),
        migrations.AddField("poolaccount", "polled_at", models.DateTimeField(blank=True, editable=False, null=True)),
        migrations.AddField("poolaccount", "poll_outcome", models.CharField(blank=True, editable=False, max_length=100)),
        migrations.AddField("poolaccount", "reported_plan", models.CharField(blank=True, editable=False, max_length=40)),
    ]
