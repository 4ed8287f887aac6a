"""Seven strategies of which `pace` is the default, pools that plans offer, weights that follow the plan's dated list."""

import django.contrib.postgres.fields
from django.db import migrations, models

CHOICES = [
    ("pace", "Pace: whole turns, warm caches, even weeks"),
    ("capacity_weighted", "Capacity weighted: by what is left of the week"),
    ("relative_availability", "Relative availability: by what is left per time to the reset"),
    ("reset_drain", "Reset drain: what resets soonest"),
    ("usage_weighted", "Usage weighted: the least used"),
    ("round_robin", "Round robin: the longest unselected"),
    ("fill_first", "Fill first: the most used"),
]


class Migration(migrations.Migration):
    dependencies = [("routing", "0002_row_level_security")]

    operations = [
        migrations.AlterField("pool", "strategy", models.CharField(choices=CHOICES, default="pace", max_length=24)),
        migrations.AddField("pool", "safety_percent", models.PositiveSmallIntegerField(default=400)),
        migrations.AddField("pool", "loyalty_percent", models.PositiveSmallIntegerField(default=75)),
        migrations.AddField("pool", "base_short_credits", models.PositiveIntegerField(default=225)),
        migrations.AddField("pool", "base_weekly_credits", models.PositiveIntegerField(default=1500)),
        migrations.AddField(
            "pool",
            "plans",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=40), blank=True, default=list, size=None
            ),
        ),
        migrations.AlterField("poolaccount", "weight_thousandths", models.PositiveIntegerField(blank=True, null=True)),
        migrations.AddField(
            "poolaccount",
            "efforts_served",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=20), blank=True, null=True, size=None
            ),
        ),
        migrations.AddField(
            "poolaccount",
            "tiers_served",
            django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(max_length=20), blank=True, null=True, size=None
            ),
        ),
        migrations.RemoveConstraint("pool", "pool_name_in_organization"),
        migrations.AddConstraint(
            "pool",
            models.UniqueConstraint(
                fields=("organization", "name"), name="pool_name_in_organization", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            "pool",
            models.CheckConstraint(
                condition=models.Q(("safety_percent__range", (100, 2000))), name="pool_safety_is_a_share"
            ),
        ),
        migrations.AddConstraint(
            "pool",
            models.CheckConstraint(condition=models.Q(("loyalty_percent__lte", 1000)), name="pool_loyalty_is_a_share"),
        ),
        migrations.AddConstraint(
            "pool",
            models.CheckConstraint(
                condition=models.Q(("base_short_credits__gt", 0), ("base_weekly_credits__gt", 0)),
                name="pool_base_above_zero",
            ),
        ),
        migrations.AddConstraint(
            "pool",
            models.CheckConstraint(
                condition=models.Q(("organization", None), ("plans", []), _connector="OR"), name="pool_of_plans_is_shared"
            ),
        ),
        migrations.AddConstraint(
            "poolaccount",
            models.CheckConstraint(
                condition=models.Q(("weight_thousandths", 0), _negated=True), name="account_weight_above_zero"
            ),
        ),
        # It was the only strategy, so nobody had chosen it.
        migrations.RunSQL(
            "UPDATE routing_pool SET strategy = 'pace' WHERE strategy = 'capacity_weighted'",
            "UPDATE routing_pool SET strategy = 'capacity_weighted'",
        ),
    ]
