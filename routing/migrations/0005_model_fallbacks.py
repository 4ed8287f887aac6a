"""Which models may serve in place of which, per organization."""

import django.db.models.deletion
from django.db import migrations, models

from config import scope


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0007_member_awaited"),
        ("routing", "0004_joining"),
    ]
    operations = [
        migrations.CreateModel(
            name="ModelFallback",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("model", models.CharField(max_length=120)),
                ("fallback", models.CharField(max_length=120)),
                ("position", models.PositiveSmallIntegerField()),
                (
                    "organization",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"),
                ),
            ],
            options={
                "ordering": ["organization", "model", "position"],
                "constraints": [
                    models.UniqueConstraint(fields=("organization", "model", "fallback"), name="model_fallback_once"),
                    models.UniqueConstraint(fields=("organization", "model", "position"), name="model_fallback_position_once"),
                    models.CheckConstraint(
                        condition=models.Q(("model", models.F("fallback")), _negated=True), name="model_fallback_is_another"
                    ),
                ],
            },
        ),
        migrations.RunSQL(scope.policies("routing_modelfallback"), scope.without_policies("routing_modelfallback")),
    ]
