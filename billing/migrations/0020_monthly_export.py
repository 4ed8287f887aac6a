"""What is sent to finance after each month, and what was sent."""

import django.contrib.postgres.fields
import django.db.models.deletion
import uuid
from django.db import migrations, models

from config import scope

TABLES = ("billing_monthlyexport", "billing_monthlysend")


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0008_settings_jobs_and_identity'),
        ('billing', '0019_usage_by_implausible'),
    ]

    operations = [
        migrations.CreateModel(
            name='MonthlyExport',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('is_on', models.BooleanField(default=False)),
                ('files', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), default=list, size=None)),
                ('recipients', django.contrib.postgres.fields.ArrayField(base_field=models.UUIDField(), default=list, size=None)),
                ('since', models.DateField(blank=True, null=True)),
                ('changed_at', models.DateTimeField(auto_now=True)),
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='monthly_export', to='accounts.organization')),
            ],
        ),
        migrations.CreateModel(
            name='MonthlySend',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('month', models.DateField()),
                ('files', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=20), default=list, size=None)),
                ('state', models.CharField(choices=[('making', 'Being made'), ('telling', 'Being sent'), ('sent', 'Sent'), ('nobody', 'Nobody to send to'), ('failed', 'Failed')], default='making', max_length=10)),
                ('told', models.JSONField(blank=True, default=list)),
                ('tries', models.PositiveSmallIntegerField(default=0)),
                ('next_at', models.DateTimeField(blank=True, null=True)),
                ('error', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('job', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.job')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='monthly_sends', to='accounts.organization')),
            ],
            options={
                'ordering': ['-month'],
                'indexes': [models.Index(condition=models.Q(('state__in', ['making', 'telling'])), fields=['organization'], name='monthly_send_open')],
                'constraints': [models.UniqueConstraint(fields=('organization', 'month'), name='monthly_send_once')],
            },
        ),
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
    ]
