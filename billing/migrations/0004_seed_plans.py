"""The plans a new install starts with. Ours, not a vendor's, and editable: a plan that is there already is left alone."""

from django.db import migrations

NOTE = 'Ours, a starting point: edit it to what you offer.'

# slug, name, reset period, multiplier in thousandths, quota in micro-credits that overrides it
PLANS = (
    ('free', 'Free', 'monthly', None, 100_000 * 1_000_000),
    ('plus', 'Plus', 'weekly', 1_000, None),
    ('pro', 'Pro', 'weekly', 20_000, None),
    ('business', 'Business', 'weekly', 50_000, None),
    ('enterprise', 'Enterprise', 'monthly', None, None),
)


def seed(apps, schema_editor):
    Plan = apps.get_model('billing', 'Plan')
    for slug, name, reset_period, multiplier, base_quota in PLANS:
        Plan.objects.get_or_create(
            slug=slug,
            defaults={
                'name': name,
                'note': NOTE if slug != 'enterprise' else f'{NOTE} Its quota is set by hand; until then it cannot be started.',
                'reset_period': reset_period,
                'multiplier_thousandths': multiplier,
                'base_quota': base_quota,
            },
        )


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0003_usage_partitions'),
    ]

    operations = [
        # Backwards they go with the table; a plan in use must not go before.
        migrations.RunPython(seed, migrations.RunPython.noop),
    ]
