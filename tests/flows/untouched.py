"""Whether a tenant's rows are as they were: for tests that something was refused, and that nothing happened."""

from django.apps import apps
from django.db import connection

from accounts.models import AuditEvent, Organization

MOVING = frozenset({"last_used_at"})
"""Columns that reading moves."""
TRAIL = frozenset({"accounts_auditevent", "accounts_audithead"})
"""Tables that hold who asked for what is not there (`accounts.missing`)."""


def rows_of(organization: Organization) -> dict[str, str]:
    """A digest of what every table of ours holds of the organization, by table. Ask in the scope of everything."""
    models = [model for name in ("accounts", "billing", "quotas", "routing") for model in apps.get_app_config(name).get_models()]
    found = {}
    with connection.cursor() as cursor:
        for model in models:
            names = [field.column for field in model._meta.fields if field.column not in MOVING]
            where = f"{'id' if model is Organization else 'organization_id'} = %s"
            if where.split()[0] not in names:
                if "pool_id" not in names:
                    continue
                where = "pool_id IN (SELECT id FROM routing_pool WHERE organization_id = %s)"
            text = "concat_ws('|', {})".format(", ".join(f'"{name}"' for name in names))
            query = f"SELECT count(*), md5(string_agg({text}, ',' ORDER BY {text})) FROM {model._meta.db_table} WHERE {where}"
            cursor.execute(query, [organization.pk])
            found[model._meta.db_table] = str(cursor.fetchone())
    return found


def moved(organization: Organization, before: dict[str, str]) -> set[str]:
    """The tables whose rows of the organization are others than `rows_of` found before."""
    return {table for table, rows in rows_of(organization).items() if rows != before[table]}


def actions_since(organization: Organization, number: int) -> set[str]:
    """What the organization's trail tells after the event of that number."""
    events = AuditEvent.objects.filter(organization=organization, number__gt=number)
    return set(events.values_list("action", flat=True))
