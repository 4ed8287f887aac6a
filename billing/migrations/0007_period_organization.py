import uuid

from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def fill(apps, schema_editor):
    Period = apps.get_model("billing", "SubscriptionPeriod")
    Subscription = apps.get_model("billing", "Subscription")
    own = Subscription.objects.filter(pk=OuterRef("subscription_id"))
    Period.objects.filter(organization=None).update(
        organization_id=Subquery(own.values("organization_id")[:1]), plan_id=Subquery(own.values("plan_id")[:1])
    )


class Migration(migrations.Migration):
    # Rows are filled before the column is tightened; PostgreSQL will not do both in one transaction.
    atomic = False

    dependencies = [("billing", "0006_money")]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
        migrations.RunSQL("UPDATE billing_subscriptionperiod SET uuid = gen_random_uuid()", migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="subscriptionperiod",
            name="uuid",
            field=models.UUIDField(default=uuid.uuid4, editable=False, unique=True),
        ),
        migrations.AlterField(
            model_name="subscriptionperiod",
            name="organization",
            field=models.ForeignKey(on_delete=models.deletion.PROTECT, related_name="periods", to="accounts.organization"),
        ),
    ]
