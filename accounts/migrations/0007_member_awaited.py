"""Who was invited comes in by the link of this very organization, not by one of another."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0006_member_fast_mode")]

    operations = [
        migrations.AddField(model_name="member", name="is_awaited", field=models.BooleanField(default=False)),
    ]
