from django.db import migrations

import billing.credits


class Migration(migrations.Migration):
    dependencies = [("billing", "0012_allowances_expire")]
    operations = [
        migrations.AddField("usagerecord", "held", billing.credits.MicroCreditsField(null=True)),
    ]
