"""Audit events are chained: each is numbered in its organization's chain and holds the digest of the one before.

The database does it, at the commit and for whatever way an event came in: the lock on a chain's head is the last that a
transaction takes, and it takes those of several chains in one order, so nobody who waits for a head holds one back. What is
encoded, and how, is told in `accounts.audit`, which encodes the same to verify.
"""

import django.db.models.deletion
from django.db import migrations, models

from config import scope

TABLES = ("accounts_audithead",)

FORWARDS = """
CREATE FUNCTION accounts_audit_field(value text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN value IS NULL THEN '-,' ELSE octet_length(convert_to(value, 'UTF8')) || ':' || value || ',' END
$$;

CREATE FUNCTION accounts_audit_encoding(event accounts_auditevent) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT convert_to(
        accounts_audit_field('weir audit event 1')
        || accounts_audit_field(event.organization_id::text)
        || accounts_audit_field(event.number::text)
        || accounts_audit_field(event.previous)
        || accounts_audit_field(event.uuid::text)
        || accounts_audit_field(event.actor_number::text)
        || accounts_audit_field(event.actor_label)
        || accounts_audit_field(event.action)
        || accounts_audit_field(event.object_type)
        || accounts_audit_field(event.object_id)
        || accounts_audit_field(event.data::text)
        || accounts_audit_field((extract(epoch from event.created_at) * 1000000)::bigint::text),
        'UTF8'
    )
$$;

CREATE FUNCTION accounts_audit_link(event accounts_auditevent) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    head accounts_audithead;
BEGIN
    LOOP
        SELECT * INTO head FROM accounts_audithead
        WHERE organization_id = event.organization_id OR (event.organization_id IS NULL AND organization_id IS NULL)
        FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO accounts_audithead (organization_id, number, digest)
        VALUES (event.organization_id, 0, repeat('0', 64)) ON CONFLICT DO NOTHING;
    END LOOP;
    event.number := head.number + 1;
    event.previous := head.digest;
    event.digest := encode(sha256(accounts_audit_encoding(event)), 'hex');
    UPDATE accounts_auditevent SET number = event.number, previous = event.previous, digest = event.digest WHERE id = event.id;
    UPDATE accounts_audithead SET number = event.number, digest = event.digest WHERE id = head.id;
END $$;

CREATE FUNCTION accounts_audit_chain() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose text := current_setting('weir.organization', true);
    event accounts_auditevent;
BEGIN
    -- The commit may come in another scope than the event did.
    PERFORM set_config('weir.organization', '*', true);
    IF EXISTS (SELECT FROM accounts_auditevent WHERE id = NEW.id AND number IS NULL) THEN
        -- Those of this transaction, all at once: nobody else's are seen before they are numbered.
        FOR event IN SELECT * FROM accounts_auditevent WHERE number IS NULL ORDER BY organization_id NULLS FIRST, id LOOP
            PERFORM accounts_audit_link(event);
        END LOOP;
    END IF;
    PERFORM set_config('weir.organization', coalesce(whose, ''), true);
    RETURN NULL;
END $$;

CREATE FUNCTION accounts_audit_enters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.number := NULL;
    NEW.previous := NULL;
    NEW.digest := NULL;
    NEW.actor_number := NEW.actor_id;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION accounts_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.actor_id IS NULL AND OLD.actor_id IS NOT NULL THEN
        NEW.actor_id := OLD.actor_id;
        IF NEW IS NOT DISTINCT FROM OLD THEN
            NEW.actor_id := NULL;
            RETURN NEW;
        END IF;
    ELSIF TG_OP = 'UPDATE' AND OLD.number IS NULL AND NEW.number IS NOT NULL AND pg_trigger_depth() > 1 THEN
        -- By accounts_audit_link, which changes nothing else.
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'audit events are append-only' USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION accounts_audit_head_moves() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND pg_trigger_depth() > 1 AND NEW.number = OLD.number + 1 THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'heads of audit chains move with their events alone' USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION accounts_audit_stays() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'audit events are append-only' USING ERRCODE = 'restrict_violation';
END $$;
"""

CHAIN_WHAT_IS_THERE = """
ALTER TABLE accounts_auditevent DISABLE TRIGGER audit_append_only;
UPDATE accounts_auditevent SET actor_number = actor_id;
DO $$
DECLARE
    event accounts_auditevent;
BEGIN
    FOR event IN SELECT * FROM accounts_auditevent WHERE number IS NULL ORDER BY organization_id NULLS FIRST, id LOOP
        PERFORM accounts_audit_link(event);
    END LOOP;
END $$;
SET CONSTRAINTS ALL IMMEDIATE;
ALTER TABLE accounts_auditevent ENABLE TRIGGER audit_append_only;
"""

TRIGGERS = """
CREATE TRIGGER audit_enters BEFORE INSERT ON accounts_auditevent FOR EACH ROW EXECUTE FUNCTION accounts_audit_enters();
CREATE CONSTRAINT TRIGGER audit_chain AFTER INSERT ON accounts_auditevent
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION accounts_audit_chain();
CREATE TRIGGER audit_stays BEFORE TRUNCATE ON accounts_auditevent
    FOR EACH STATEMENT EXECUTE FUNCTION accounts_audit_stays();
CREATE TRIGGER audit_head_moves BEFORE UPDATE OR DELETE ON accounts_audithead
    FOR EACH ROW EXECUTE FUNCTION accounts_audit_head_moves();
CREATE TRIGGER audit_head_stays BEFORE TRUNCATE ON accounts_audithead
    FOR EACH STATEMENT EXECUTE FUNCTION accounts_audit_stays();
"""

WITHOUT_TRIGGERS = """
DROP TRIGGER audit_enters ON accounts_auditevent;
DROP TRIGGER audit_chain ON accounts_auditevent;
DROP TRIGGER audit_stays ON accounts_auditevent;
DROP TRIGGER audit_head_moves ON accounts_audithead;
DROP TRIGGER audit_head_stays ON accounts_audithead;
"""

BACKWARDS = """
CREATE OR REPLACE FUNCTION accounts_audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
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
DROP FUNCTION accounts_audit_stays();
DROP FUNCTION accounts_audit_head_moves();
DROP FUNCTION accounts_audit_enters();
DROP FUNCTION accounts_audit_chain();
DROP FUNCTION accounts_audit_link(accounts_auditevent);
DROP FUNCTION accounts_audit_encoding(accounts_auditevent);
DROP FUNCTION accounts_audit_field(text);
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0008_settings_jobs_and_identity")]
    operations = [
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.BigIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("organization", models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="accounts.organization")),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("organization",), name="audit_head_once_for_chain", nulls_distinct=False)],
            },
        ),
        migrations.AddField("auditevent", "actor_number", models.BigIntegerField(editable=False, null=True)),
        migrations.AddField("auditevent", "digest", models.CharField(editable=False, max_length=64, null=True)),
        migrations.AddField("auditevent", "number", models.BigIntegerField(editable=False, null=True)),
        migrations.AddField("auditevent", "previous", models.CharField(editable=False, max_length=64, null=True)),
        migrations.AddConstraint(
            "auditevent",
            models.UniqueConstraint(
                condition=models.Q(("number__isnull", False)),
                fields=("organization", "number"),
                name="audit_number_once_in_chain",
                nulls_distinct=False,
            ),
        ),
        migrations.AddIndex("auditevent", models.Index(condition=models.Q(("number", None)), fields=["id"], name="audit_not_chained")),
        migrations.RunSQL(FORWARDS, BACKWARDS),
        migrations.RunSQL(CHAIN_WHAT_IS_THERE, migrations.RunSQL.noop),
        migrations.RunSQL(TRIGGERS, WITHOUT_TRIGGERS),
        migrations.RunSQL(scope.policies(*TABLES), scope.without_policies(*TABLES)),
    ]
