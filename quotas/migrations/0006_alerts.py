"""Alerts, their deliveries, and the webhooks that they are sent to; seen in their organization's scope only."""

import django.db.models.deletion
import django.db.models.functions.text
import uuid
from django.conf import settings
from django.db import migrations, models

from config import scope

TABLES = ("quotas_alert", "quotas_alertrule", "quotas_webhookendpoint", "quotas_alertdelivery")


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_member_awaited'),
        ('quotas', '0005_filter_by_source'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Alert',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('kind', models.CharField(choices=[('limit', 'A limit is nearly used up'), ('quota', 'The plan’s quota is nearly used up'), ('overage', 'The quota will probably not last'), ('anomaly', 'A member burns much faster than usual'), ('account', 'An account needs sign-in'), ('no_account', 'No account can serve a request'), ('implausible', 'Usage that cannot be'), ('drift', 'Books that drift')], max_length=12)),
                ('line', models.PositiveSmallIntegerField(default=0)),
                ('scope', models.CharField(max_length=160)),
                ('period', models.CharField(max_length=40)),
                ('limit_uuid', models.UUIDField(blank=True, null=True)),
                ('facts', models.JSONField(default=dict)),
                ('told_at', models.DateTimeField()),
                ('ended_at', models.DateTimeField(blank=True, null=True)),
                ('acknowledged_at', models.DateTimeField(blank=True, null=True)),
                ('acknowledged_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.apikey')),
                ('member', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.member')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='alerts', to='accounts.organization')),
                ('team', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='accounts.team')),
            ],
            options={
                'ordering': ['-told_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='AlertRule',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('kind', models.CharField(choices=[('limit', 'A limit is nearly used up'), ('quota', 'The plan’s quota is nearly used up'), ('overage', 'The quota will probably not last'), ('anomaly', 'A member burns much faster than usual'), ('account', 'An account needs sign-in'), ('no_account', 'No account can serve a request'), ('implausible', 'Usage that cannot be'), ('drift', 'Books that drift')], max_length=12)),
                ('is_on', models.BooleanField(default=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='alert_rules', to='accounts.organization')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='WebhookEndpoint',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('name', models.CharField(max_length=80)),
                ('format', models.CharField(choices=[('standard', 'Signed (Standard Webhooks)'), ('slack', 'Slack-compatible')], max_length=10)),
                ('origin', models.CharField(max_length=300)),
                ('url', models.TextField(editable=False)),
                ('secret', models.TextField(blank=True, editable=False)),
                ('previous_secret', models.TextField(blank=True, editable=False)),
                ('previous_until', models.DateTimeField(blank=True, null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('disabled_at', models.DateTimeField(blank=True, null=True)),
                ('disabled_reason', models.CharField(blank=True, max_length=200)),
                ('removed_at', models.DateTimeField(blank=True, null=True)),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='webhook_endpoints', to='accounts.organization')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='AlertDelivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('channel', models.CharField(choices=[('email', 'E-mail'), ('webhook', 'Webhook'), ('slack', 'Slack-compatible')], max_length=8)),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('sent', 'Sent'), ('failed', 'Gave up'), ('dropped', 'Not sent')], default='pending', max_length=8)),
                ('attempts', models.PositiveSmallIntegerField(default=0)),
                ('response_code', models.PositiveSmallIntegerField(blank=True, null=True)),
                ('duration_ms', models.PositiveIntegerField(blank=True, null=True)),
                ('error', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField()),
                ('tried_at', models.DateTimeField(blank=True, null=True)),
                ('next_try_at', models.DateTimeField(blank=True, null=True)),
                ('alert', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='quotas.alert')),
                ('member', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.member')),
                ('organization', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='alert_deliveries', to='accounts.organization')),
                ('endpoint', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='quotas.webhookendpoint')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddIndex(
            model_name='alert',
            index=models.Index(fields=['organization', '-told_at'], name='alert_by_organization'),
        ),
        migrations.AddIndex(
            model_name='alert',
            index=models.Index(condition=models.Q(('ended_at', None)), fields=['organization'], name='alert_not_ended'),
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.UniqueConstraint(fields=('organization', 'kind', 'line', 'scope', 'period'), name='alert_told_once'),
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('kind__in', ['limit', 'quota']), ('line__in', [80, 95, 100])), models.Q(models.Q(('kind__in', ['limit', 'quota']), _negated=True), ('line', 0)), _connector='OR'), name='alert_line_fits_kind'),
        ),
        migrations.AddConstraint(
            model_name='alert',
            constraint=models.CheckConstraint(condition=models.Q(('acknowledged_by', None), ('acknowledged_at__isnull', False), _connector='OR'), name='alert_acknowledged_has_time'),
        ),
        migrations.AddConstraint(
            model_name='alertrule',
            constraint=models.UniqueConstraint(fields=('organization', 'kind'), name='alert_rule_once_per_kind'),
        ),
        migrations.AddConstraint(
            model_name='webhookendpoint',
            constraint=models.UniqueConstraint(models.F('organization'), django.db.models.functions.text.Lower('name'), condition=models.Q(('removed_at', None)), name='endpoint_name_in_organization'),
        ),
        migrations.AddConstraint(
            model_name='webhookendpoint',
            constraint=models.CheckConstraint(condition=models.Q(('removed_at', None), models.Q(('previous_secret', ''), ('secret', ''), ('url', '')), _connector='OR'), name='endpoint_removed_keeps_no_secret'),
        ),
        migrations.AddIndex(
            model_name='alertdelivery',
            index=models.Index(fields=['organization', '-id'], name='delivery_by_organization'),
        ),
        migrations.AddIndex(
            model_name='alertdelivery',
            index=models.Index(condition=models.Q(('status', 'pending')), fields=['next_try_at'], name='delivery_due'),
        ),
        migrations.AddConstraint(
            model_name='alertdelivery',
            constraint=models.UniqueConstraint(fields=('alert', 'member'), name='delivery_once_per_member'),
        ),
        migrations.AddConstraint(
            model_name='alertdelivery',
            constraint=models.UniqueConstraint(fields=('alert', 'endpoint'), name='delivery_once_per_endpoint'),
        ),
        migrations.AddConstraint(
            model_name='alertdelivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('channel', 'email'), ('endpoint', None), ('member__isnull', False)), models.Q(('channel__in', ['webhook', 'slack']), ('endpoint__isnull', False), ('member', None)), _connector='OR'), name='delivery_goes_to_one'),
        ),
        migrations.AddConstraint(
            model_name='alertdelivery',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('next_try_at__isnull', False), ('status', 'pending')), models.Q(models.Q(('status', 'pending'), _negated=True), ('next_try_at', None)), _connector='OR'), name='delivery_pending_has_a_next_try'),
        ),
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
    ]
