"""A tenant's rows are seen only in its scope (`config.scope`), by the owner of the tables too."""

from django.db import migrations

from config import scope

TABLES = (
    "quotas_limit",
    "quotas_modelfilter",
    "quotas_limitrequest",
    "quotas_limitboost",
    "quotas_refusal",
    "quotas_drift",
    "quotas_usagedrain",
    "quotas_deadletter",
)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0003_limits_in_full")]
    operations = [
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
    ]
