"""Of one name, no two rows hold at one moment, and none is out of bounds: the database says so too."""

import django.contrib.postgres.constraints
import django.contrib.postgres.fields.ranges
from django.conf import settings
from django.contrib.postgres.operations import BtreeGistExtension
from django.db import migrations, models
from django.db.models.functions import Greatest


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0005_row_level_security'),
        ('billing', '0010_row_level_security'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        # A name and an interval in one index; a trusted extension, which the owner of the database may add.
        BtreeGistExtension(),
        migrations.AddConstraint(
            model_name='rate',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('input', None), ('input__lte', 100000000000), _connector='OR'), models.Q(('output', None), ('output__lte', 100000000000), _connector='OR'), models.Q(('cache_write', None), models.Q(('cache_write__gte', 0), ('cache_write__lte', 100000000000)), _connector='OR'), models.Q(('cached_input', None), ('cached_input__lte', Greatest('input', 'cache_write')), _connector='OR'), ('fast_thousandths__lte', 10000), ('long_context_input_thousandths__lte', 10000), ('long_context_output_thousandths__lte', 10000)), name='rate_within_bounds'),
        ),
        migrations.AddConstraint(
            model_name='rate',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('model', '='), (models.Func('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary(), function='TSTZRANGE', output_field=django.contrib.postgres.fields.ranges.DateTimeRangeField()), '&&')], name='rate_never_over_another'),
        ),
        migrations.AddConstraint(
            model_name='ratealias',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('alias', '='), (models.Func('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary(), function='TSTZRANGE', output_field=django.contrib.postgres.fields.ranges.DateTimeRangeField()), '&&')], name='alias_never_over_another'),
        ),
        migrations.AddConstraint(
            model_name='rateoverride',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('input', None), ('input__lte', 100000000000), _connector='OR'), models.Q(('output', None), ('output__lte', 100000000000), _connector='OR'), models.Q(('cache_write', None), models.Q(('cache_write__gte', 0), ('cache_write__lte', 100000000000)), _connector='OR'), models.Q(('cached_input', None), ('cached_input__lte', Greatest('input', 'cache_write')), _connector='OR'), ('fast_thousandths__lte', 10000), ('long_context_input_thousandths__lte', 10000), ('long_context_output_thousandths__lte', 10000)), name='override_within_bounds'),
        ),
        migrations.AddConstraint(
            model_name='rateoverride',
            constraint=django.contrib.postgres.constraints.ExclusionConstraint(expressions=[('organization', '='), ('model', '='), (models.Func('valid_from', 'valid_to', django.contrib.postgres.fields.ranges.RangeBoundary(), function='TSTZRANGE', output_field=django.contrib.postgres.fields.ranges.DateTimeRangeField()), '&&')], name='override_never_over_another'),
        ),
    ]
