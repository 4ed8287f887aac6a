"""Pools and their accounts are seen in their organization's scope; shared pools by all, and changed by operators only."""

from django.db import migrations

from config import scope

EVERYTHING = f"(SELECT current_setting('{scope.SETTING}', true) = '{scope.EVERYTHING}')"
OWN = f"(SELECT NULLIF(NULLIF(current_setting('{scope.SETTING}', true), ''), '{scope.EVERYTHING}')::bigint)"

# What belongs to a pool is seen with the pool, whose own policy holds within these queries.
OF_POOL = "".join(
    f"""
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
    CREATE POLICY tenant ON {table}
        USING ({EVERYTHING} OR EXISTS (SELECT FROM routing_pool WHERE routing_pool.id = {table}.pool_id))
        WITH CHECK ({EVERYTHING} OR EXISTS (
            SELECT FROM routing_pool WHERE routing_pool.id = {table}.pool_id AND routing_pool.organization_id = {OWN}));
    """
    for table in ("routing_poolaccount", "routing_pool_teams")
)


class Migration(migrations.Migration):
    dependencies = [("routing", "0001_initial")]
    operations = [
        migrations.RunSQL(
            scope.policies("routing_pool", is_shared_read=True) + OF_POOL,
            scope.without_policies("routing_poolaccount", "routing_pool_teams", "routing_pool"),
        )
    ]
