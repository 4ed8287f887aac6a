"""Audit events are added, never changed: the database refuses. Only the pointer to a deleted user may be cleared."""

from django.db import migrations

FORWARDS = """
CREATE FUNCTION accounts_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.actor_id IS NULL AND OLD.actor_id IS NOT NULL THEN
        NEW.actor_id := OLD.actor_id;
        IF NEW IS NOT DISTINCT FROM OLD THEN
            NEW.actor_id := NULL;
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'audit events are append-only' USING ERRCODE = 'restrict_violation';
END $$;
CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON accounts_auditevent
    FOR EACH ROW EXECUTE FUNCTION accounts_audit_append_only();
"""

BACKWARDS = """
DROP TRIGGER audit_append_only ON accounts_auditevent;
DROP FUNCTION accounts_audit_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_last_organization")]
    operations = [migrations.RunSQL(FORWARDS, BACKWARDS)]
