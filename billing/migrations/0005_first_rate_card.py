"""The packaged rate card, so that a new install can price at once. `import_ratecard` of the same file then changes nothing."""

from django.db import migrations

from billing import cardfile
from billing.ratecards import PACKAGED


def add(apps, schema_editor):
    RateCard = apps.get_model('billing', 'RateCard')
    Rate = apps.get_model('billing', 'Rate')
    if Rate.objects.exists():
        return
    card = cardfile.read(PACKAGED.read_bytes(), name=PACKAGED.name)
    row = RateCard.objects.create(name=card.name, sha256=card.sha256, sources=card.sources)
    Rate.objects.bulk_create(
        Rate(
            card=row,
            model=rate.model,
            valid_from=rate.valid_from,
            valid_to=rate.valid_to,
            input=rate.input,
            cached_input=rate.cached_input,
            cache_write=rate.cache_write,
            output=rate.output,
            fast_thousandths=rate.fast_thousandths,
            source=rate.source,
        )
        for rate in card.rates
    )


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0004_seed_plans'),
    ]

    operations = [
        # Backwards the rows go with the table; usage that names them must keep them until then.
        migrations.RunPython(add, migrations.RunPython.noop),
    ]
