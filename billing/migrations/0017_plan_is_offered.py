from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0016_amendments_may_come_first")]
    operations = [
        migrations.AddField(
            "plan",
            "is_offered",
            models.BooleanField(
                default=True,
                help_text="Owners may choose it. Unset for a plan that was made for one customer: its name is nobody else's.",
            ),
        ),
    ]
