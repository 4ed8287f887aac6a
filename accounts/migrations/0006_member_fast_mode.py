"""Fast mode may be forbidden to a person, whatever their keys may."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_row_level_security")]

    operations = [
        migrations.AddField(model_name="member", name="fast_allowed", field=models.BooleanField(default=True)),
    ]
