"""Settings of organizations, their identity providers, long work, and calls of the API that are done once."""

import django.contrib.postgres.fields
import django.db.models.deletion
import uuid
from django.db import migrations, models

from config import scope

TABLES = ("accounts_identityprovider", "accounts_idempotentcall", "accounts_job")


class Migration(migrations.Migration):

    dependencies = [
        ('accounts', '0007_member_awaited'),
    ]

    operations = [
        migrations.AddField(
            model_name='organization',
            name='developers_see_pool',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='organization',
            name='second_factor',
            field=models.CharField(choices=[('optional', 'Optional'), ('leads', 'Required of owners, leads and finance'), ('everyone', 'Required of everyone')], default='optional', max_length=10),
        ),
        migrations.AddField(
            model_name='user',
            name='language',
            field=models.CharField(blank=True, max_length=8),
        ),
        migrations.CreateModel(
            name='IdentityProvider',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('name', models.CharField(max_length=80)),
                ('issuer', models.URLField(max_length=300)),
                ('client_id', models.CharField(max_length=200)),
                ('client_secret', models.TextField(blank=True, editable=False)),
                ('email_domains', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=253), default=list, size=None)),
                ('role_claim', models.CharField(blank=True, max_length=80)),
                ('role_map', models.JSONField(blank=True, default=dict)),
                ('default_role', models.CharField(blank=True, choices=[('developer', 'Developer'), ('lead', 'Lead'), ('finance', 'Finance'), ('owner', 'Owner')], max_length=10)),
                ('is_active', models.BooleanField(default=True)),
                ('is_required', models.BooleanField(default=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('organization', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='identity_provider', to='accounts.organization')),
            ],
        ),
        migrations.CreateModel(
            name='IdempotentCall',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.CharField(max_length=255)),
                ('route', models.CharField(max_length=200)),
                ('body_digest', models.BinaryField(max_length=32)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('answer', models.TextField(blank=True)),
                ('started_at', models.DateTimeField()),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.member')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='accounts.organization')),
            ],
            options={
                'indexes': [models.Index(fields=['started_at'], name='idempotent_call_started')],
                'constraints': [models.UniqueConstraint(fields=('member', 'key'), name='idempotent_call_once')],
            },
        ),
        migrations.CreateModel(
            name='Job',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uuid', models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                ('kind', models.CharField(max_length=40)),
                ('title', models.CharField(max_length=200)),
                ('asked', models.JSONField(blank=True, default=dict)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('running', 'Running'), ('done', 'Done'), ('failed', 'Failed'), ('stopped', 'Stopped')], default='waiting', max_length=10)),
                ('done', models.BigIntegerField(default=0)),
                ('total', models.BigIntegerField(blank=True, null=True)),
                ('result', models.JSONField(blank=True, default=dict)),
                ('file_name', models.CharField(blank=True, max_length=200)),
                ('file_bytes', models.BigIntegerField(blank=True, null=True)),
                ('error', models.CharField(blank=True, max_length=300)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('moved_at', models.DateTimeField(auto_now_add=True)),
                ('finished_at', models.DateTimeField(blank=True, null=True)),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('member', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='jobs', to='accounts.member')),
                ('organization', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='jobs', to='accounts.organization')),
            ],
            options={
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['organization', '-id'], name='job_newest')],
            },
        ),
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
    ]
