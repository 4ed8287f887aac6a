"""Sums and rows of the usage log. Every grouping of the same time adds up to the same credits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from accounts.models import ApiKey, Member, Organization, Team
from billing import credits
from billing.models import UsageRecord

GROUPINGS = ("day", "member", "key", "model", "account")
CREDIT_COLUMNS = ("credits", "from_quota", "from_purchased", "from_overage", "overdraft")

TOKENS = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_LINE_KEYS = ("input", "cached_input", "cache_write", "output", "reasoning")

_PLAIN = {"day": "(admitted_at AT TIME ZONE %s)::date::text", "member": "member_id", "key": "key_id"}
_BY_LINE = {"model": ("line ->> 'model'", "model_served"), "account": ("(line ->> 'account_id')::bigint", "account_id")}
_WHERE = "organization_id = %s AND admitted_at >= %s AND admitted_at < %s AND (%s::bigint[] IS NULL OR member_id = ANY(%s))"


@dataclass(frozen=True, slots=True)
class UsageSum:
    """What one day (ISO date), member, key or account (id; None: no account) or model used. Credits are micro-credits."""

    group: str | int | None
    requests: int
    input_tokens: int
    cached_input_tokens: int
    cache_write_tokens: int
    output_tokens: int
    reasoning_tokens: int
    credits: int


def usage_by(
    organization: Organization, by: str, start: datetime, end: datetime, *, members: Sequence[int] | None = None
) -> list[UsageSum]:
    """Sums over what was admitted in [start, end), of all or of some members. One query; raises ValueError for another grouping.

    Days are those of the organization's zone; only days with use appear. Days come in order, others with the most credits first.
    By model and by account, each priced line of a request counts where it was spent; what lines do not explain (an orphan's
    estimate, an amendment's difference) and the request itself count for the model and account that the record names.
    """
    ids = None if members is None else list(members)
    where: list[Any] = [organization.pk, start, end, ids, ids]
    if by in _PLAIN:
        tokens = ", ".join(f"SUM({name})::bigint" for name in TOKENS)
        group = _PLAIN[by]
        statement = f"""
            SELECT {group}, SUM(counted_requests)::bigint, {tokens}, SUM(credits)::bigint
            FROM billing_usagerecord WHERE {_WHERE} GROUP BY 1
        """  # noqa: S608
        parameters = [organization.timezone, *where] if by == "day" else where
    elif by in _BY_LINE:
        statement, parameters = _by_line(*_BY_LINE[by]), where
    else:
        raise ValueError(f"usage is summed by {', '.join(GROUPINGS)}, not by {by!r}")
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        sums = [UsageSum(*row) for row in cursor.fetchall()]
    if by == "day":
        return sorted(sums, key=lambda one: str(one.group))
    return sorted(sums, key=lambda one: (-one.credits, str(one.group)))


def _by_line(of_line: str, of_record: str) -> str:
    values = ", ".join(f"COALESCE((line ->> '{key}')::bigint, 0) AS {name}" for key, name in zip(_LINE_KEYS, TOKENS, strict=True))
    line_sums = ", ".join(f"SUM(COALESCE((line ->> '{key}')::bigint, 0)) AS {key}" for key in (*_LINE_KEYS, "credits"))
    rest = ", ".join(f"{name} - COALESCE(lined.{key}, 0)" for key, name in zip(_LINE_KEYS, TOKENS, strict=True))
    tokens = ", ".join(f"SUM({name})::bigint" for name in TOKENS)
    return f"""
        WITH chosen AS (SELECT * FROM billing_usagerecord WHERE {_WHERE}), shares AS (
            SELECT {of_line} AS spent_on, 0 AS requests, {values}, COALESCE((line ->> 'credits')::bigint, 0) AS credits
            FROM chosen CROSS JOIN LATERAL jsonb_array_elements(lines) AS line
            UNION ALL
            SELECT {of_record}, counted_requests, {rest}, chosen.credits - COALESCE(lined.credits, 0)
            FROM chosen CROSS JOIN LATERAL (SELECT {line_sums} FROM jsonb_array_elements(lines) AS line) AS lined
        )
        SELECT spent_on, SUM(requests)::bigint, {tokens}, SUM(credits)::bigint FROM shares GROUP BY 1
    """  # noqa: S608


def rows(
    organization: Organization, start: datetime, end: datetime, *, members: Sequence[int] | None = None
) -> Iterator[dict[str, Any]]:
    """The usage log's rows of [start, end), oldest first, under the columns' names; credits as decimal strings, times as ISO 8601.

    Beside the ids stand readable names: `organization` (slug), `team` (name), `member` (e-mail, or the name that is left of a
    former one), `key` (public id). Read in pages, however many there are.
    """
    found = UsageRecord.objects.for_organization(organization).filter(admitted_at__gte=start, admitted_at__lt=end)
    if members is not None:
        found = found.filter(member_id__in=list(members))
    teams = dict(Team.objects.filter(organization=organization).values_list("pk", "name"))
    names, public_ids = member_names(organization), key_public_ids(organization)
    for values in found.order_by("admitted_at", "id").values().iterator(chunk_size=2000):
        row: dict[str, Any] = dict(values)
        row.update((name, credits.text(row[name])) for name in CREDIT_COLUMNS)
        row["lines"] = [{**line, "credits": credits.text(line["credits"])} for line in row["lines"]]
        row.update((name, value.isoformat()) for name, value in row.items() if isinstance(value, datetime))
        row["organization"] = organization.slug
        row["team"] = teams.get(row["team_id"])
        row["member"] = names[row["member_id"]]
        row["key"] = public_ids[row["key_id"]]
        yield row


def member_names(organization: Organization) -> Mapping[int, str]:
    """E-mail by member id; of a former member the name that is left."""
    members = Member.objects.for_organization(organization).select_related("user")
    return {member.pk: member.user.email if member.user is not None else str(member) for member in members}


def key_public_ids(organization: Organization) -> Mapping[int, str]:
    """Public id by key id."""
    return dict(ApiKey.objects.for_organization(organization).values_list("pk", "public_id"))
