"""Sign-ins under way; the link by which a person takes an account out again."""

import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from config import scope

STATUSES = [
    ("active", "Serving"),
    ("paused", "Paused"),
    ("needs_sign_in", "Needs sign-in"),
    ("withdrawn", "Withdrawn by its person"),
]


class Migration(migrations.Migration):
    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ("accounts", "0006_member_fast_mode"),
        ("routing", "0003_strategies"),
    ]
    operations = [
        migrations.AlterField("poolaccount", "status", models.CharField(choices=STATUSES, default="active", max_length=16)),
        migrations.AddField(
            "poolaccount", "withdrawal_digest", models.CharField(blank=True, default="", editable=False, max_length=64), False
        ),
        migrations.AddConstraint(
            "poolaccount",
            models.UniqueConstraint(
                condition=models.Q(("withdrawal_digest", ""), _negated=True),
                fields=("withdrawal_digest",),
                name="account_withdrawal_once",
            ),
        ),
        migrations.CreateModel(
            name="SignInFlow",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uuid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("browser", "In a browser"), ("device", "By a code on another device")], max_length=8
                    ),
                ),
                ("label", models.CharField(blank=True, max_length=80)),
                ("plan_type", models.CharField(blank=True, max_length=40)),
                ("sealed", models.TextField(editable=False)),
                ("started_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField(db_index=True)),
                ("interval_seconds", models.PositiveSmallIntegerField(default=0)),
                ("next_poll_at", models.DateTimeField(blank=True, null=True)),
                (
                    "organization",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="+", to="accounts.organization"),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={"ordering": ["id"]},
        ),
        migrations.RunSQL(scope.policies("routing_signinflow"), scope.without_policies("routing_signinflow")),
    ]
