"""A tenant's rows are seen only in its scope (`config.scope`), by the owner of the tables too."""

from django.db import migrations

from config import scope

TABLES = (
    "accounts_team",
    "accounts_member",
    "accounts_invitation",
    "accounts_apikey",
    "accounts_apitoken",
    "accounts_auditevent",
)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0004_rotation_and_api_tokens")]
    operations = [
        migrations.RunSQL(scope.policies(*TABLES) + scope.policies("accounts_organization", column="id"), scope.without_policies(*TABLES) + scope.without_policies("accounts_organization")),
    ]
