"""Usage that was logged before there were a ledger and hourly sums: booked as it was funded, and summed. Runs again without harm.

Before that, a ledger of an older installation would say that its allowances expired unused, and reports would begin with the upgrade.
"""

from datetime import timedelta

from django.db import connection, migrations, transaction

from billing import posting, rollups

# As `billing.ledger.post_usage` books them, and to the period that `billing.funding.periods` chooses. Purchased credits have no lot
# here: there were none.
BOOK = """
    INSERT INTO billing_ledgerentry (
        uuid, organization_id, created_at, kind, debit, credit, amount, reference, occurred_at, period_id, member_id, request_id, reason
    )
    SELECT gen_random_uuid(), record.organization_id, now(), fund.kind,
        CASE WHEN fund.amount > 0 THEN 'usage' ELSE fund.account END, CASE WHEN fund.amount > 0 THEN fund.account ELSE 'usage' END,
        abs(fund.amount), concat('usage:', record.request_id, ':', record.part, ':', fund.suffix), record.admitted_at, paying.id,
        record.member_id, record.request_id, fund.reason
    FROM billing_usagerecord AS record
    CROSS JOIN LATERAL (VALUES
        ('usage_quota', 'allowance', record.from_quota, 'quota', ''),
        ('usage_purchased', 'credits', record.from_purchased, 'purchased:none', 'No lot had anything left.'),
        ('overage', 'receivable', record.from_overage, 'overage', ''),
        ('overdraft', 'overdraft', record.overdraft, 'overdraft', '')
    ) AS fund (kind, account, amount, suffix, reason)
    LEFT JOIN LATERAL (
        SELECT period.id FROM billing_subscription AS own
        JOIN billing_subscriptionperiod AS period ON period.subscription_id = own.id
        WHERE own.organization_id = record.organization_id AND period.starts_at = record.period_starts_at
            AND record.source = CASE WHEN own.member_id IS NULL THEN 'o' ELSE concat('m', own.member_id) END
        ORDER BY date_trunc('second', own.started_at) <= record.admitted_at DESC, own.started_at DESC, own.id DESC LIMIT 1
    ) AS paying ON true
    WHERE record.organization_id = %s AND fund.amount <> 0
        AND NOT (fund.kind = 'usage_purchased' AND EXISTS (
            SELECT FROM billing_ledgerentry AS entry
            WHERE entry.organization_id = record.organization_id AND entry.request_id = record.request_id
                AND entry.kind = 'usage_purchased'
                AND starts_with(entry.reference, concat('usage:', record.request_id, ':', record.part, ':purchased:'))
        ))
    ORDER BY record.admitted_at, record.request_id, record.part
    ON CONFLICT (organization_id, reference) DO NOTHING
"""
SPAN = "SELECT min(admitted_at), max(admitted_at) FROM billing_usagerecord WHERE organization_id = %s"
WEEK = timedelta(days=7)


def book(organization_id: int) -> int:
    """How many entries one organization's ledger lacked; its hourly sums are made anew."""
    with transaction.atomic():
        posting.lock(organization_id)
        with connection.cursor() as cursor:
            cursor.execute(SPAN, [organization_id])
            start, newest = cursor.fetchone()
            if start is None:
                return 0
            cursor.execute(BOOK, [organization_id])
            booked = cursor.rowcount
        until = newest + timedelta(seconds=1)
        while start < until:
            rollups.rebuild(organization_id, start, min(start + WEEK, until))
            start += WEEK
    return booked


def book_all(apps, schema_editor):
    for organization_id in apps.get_model("accounts", "Organization").objects.order_by("pk").values_list("pk", flat=True):
        book(organization_id)


class Migration(migrations.Migration):
    # An organization at a time: a large log is no single transaction.
    atomic = False

    dependencies = [("billing", "0014_periods_by_end")]

    operations = [migrations.RunPython(book_all, migrations.RunPython.noop)]
