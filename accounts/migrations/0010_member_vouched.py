"""Who has come in by their organization's identity provider only."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0009_audit_chain'),
    ]

    operations = [
        migrations.AddField(
            model_name='member',
            name='is_vouched',
            field=models.BooleanField(default=False),
        ),
    ]
