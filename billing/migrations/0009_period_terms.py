from django.db import migrations, models

import billing.credits


class Migration(migrations.Migration):
    dependencies = [("billing", "0009_ledger_indexes")]

    operations = [
        migrations.AddField(
            "subscription",
            "next_plan_at",
            models.DateTimeField(blank=True, help_text="When the next plan takes over: the end of a period.", null=True),
        ),
        migrations.AddField("subscriptionperiod", "granted", billing.credits.MicroCreditsField(default=0)),
        migrations.AddField("subscriptionperiod", "terms", models.JSONField(blank=True, default=dict)),
        migrations.AddIndex(
            "subscriptionperiod",
            models.Index(condition=models.Q(closed_at=None), fields=["ends_at", "id"], name="period_not_closed"),
        ),
        migrations.AddConstraint(
            "subscription",
            models.CheckConstraint(
                condition=models.Q(("next_plan", None), ("next_plan_at", None))
                | models.Q(("next_plan__isnull", False), ("next_plan_at__isnull", False)),
                name="subscription_next_plan_has_its_time",
            ),
        ),
        migrations.AddConstraint(
            "subscription",
            models.CheckConstraint(
                condition=models.Q(overage_cap__isnull=True) | models.Q(overage_cap__gte=0),
                name="subscription_overage_cap_not_negative",
            ),
        ),
    ]
