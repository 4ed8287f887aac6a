"""Exports: long work that makes a file, started here or on a page, found again, stopped, and fetched by a link that ends.

A token starts and fetches what it could read, too: beside exports:write it needs the scope of what stands in the file.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.urls import path, reverse

from accounts import api_tokens, jobs, permissions
from accounts.errors import ParameterInvalid, TokenScopeMissing
from accounts.models import Job, Member
from accounts.permissions import Action
from api.base import OPTIONAL, Call, Resource, operation
from api.fields import Choice, Flag, Moment, Query, Shape, Text, Told, Uuid, Whole, iso
from api.idempotency import Answer
from api.request_log import wanted_of
from billing import job_kinds, labels, monthly_files, usage_report
from billing.usage_report import Range
from quotas import job_kinds as own_kinds

TAG = "Exports"
ONCE = "Who holds it may fetch the file: keep it like a password. It is in this answer only."
KINDS: Mapping[str, str] = {
    job_kinds.USAGE_ROWS: "Every request, with tokens and credits",
    job_kinds.USAGE_TOTALS: "Usage summed by one grouping",
    job_kinds.LEDGER: "The ledger, whole or of a time",
    job_kinds.INVOICE_LINES: "Lines of the invoices issued in a time",
    own_kinds.REQUEST_LOG: "The request log by a filter",
    own_kinds.MEMBERS: "Members and their limits, as they are",
}
READS: Mapping[str, str] = {
    job_kinds.USAGE_ROWS: api_tokens.USAGE,
    job_kinds.USAGE_TOTALS: api_tokens.USAGE,
    job_kinds.LEDGER: api_tokens.MONEY_READ,
    job_kinds.INVOICE_LINES: api_tokens.MONEY_READ,
    own_kinds.REQUEST_LOG: api_tokens.REQUESTS_READ,
    own_kinds.MEMBERS: api_tokens.MEMBERS_READ,
    monthly_files.KIND: api_tokens.MONEY_READ,
    own_kinds.AUDIT_TRAIL: api_tokens.SETTINGS_READ,
}
"""The scope of what stands in a file, also of those that are not started here. A file of another kind is not for tokens."""
FILTERS = ("member_id", "team_id", "key_id", "account_id", "model", "status")
RANGED = (job_kinds.USAGE_ROWS, job_kinds.USAGE_TOTALS, job_kinds.LEDGER, job_kinds.INVOICE_LINES, own_kinds.REQUEST_LOG)


class ExportShape(Shape):
    """Long work and what came of it."""

    id = Uuid()
    kind = Told(help_text="Other kinds than those that can be started here may be among them.")
    title = Told()
    state = Choice(choices=Job.State.choices)
    done = Whole(help_text="In records.")
    total = Whole(allow_null=True, help_text="null: not known (yet).")
    rows = Whole(allow_null=True, help_text="Records of the file.")
    error = Told(allow_null=True)
    has_file = Flag(help_text="There is a file, and it is the caller's to fetch.")
    file_name = Told(allow_null=True)
    file_bytes = Whole(allow_null=True)
    created_at = Moment()
    finished_at = Moment(allow_null=True)
    expires_at = Moment(allow_null=True, help_text="When the file is removed.")
    is_own = Flag(help_text="Started by the token's member.")


class ExportQuery(Query):
    state = Choice(choices=Job.State.choices, required=False)
    kind = Text(max_length=40, required=False)


class ExportBody(Shape):
    """What to make. Filters are for the request log; `by` is for sums."""

    kind = Choice(choices=list(KINDS.items()))
    by = Choice(choices=usage_report.GROUPINGS, required=False)
    start = Text(max_length=40, required=False, help_text="A day of the organization's zone, or an instant. Without: this period.")
    end = Text(max_length=40, required=False, help_text="A day, included, or an instant, excluded.")
    excel = Flag(required=False, help_text="Begin with a byte order mark.")
    member_id = Uuid(required=False)
    team_id = Uuid(required=False)
    key_id = Uuid(required=False)
    account_id = Uuid(required=False)
    model = Text(max_length=120, required=False)
    status = Text(max_length=20, required=False)


class FileLink(Shape):
    """The file's address. It opens without a token, for as long as its member may have the file."""

    url = Told(allow_null=True)
    expires_at = Moment(allow_null=True)
    file_name = Told()
    file_bytes = Whole()
    secret_note = Told()


class Exports(Resource):
    @operation(
        "listExports",
        tag=TAG,
        summary="List exports",
        description="The caller's own, and what is shared by their role; the newest first.",
        scope=api_tokens.EXPORTS_WRITE,
        action=Action.SEE_USAGE,
        query=ExportQuery,
        answers=ExportShape,
        is_list=True,
    )
    def get(self, call: Call) -> Any:
        rows = jobs.seen_by(call.member)
        for name in ("state", "kind"):
            if name in call.query:
                rows = rows.filter(**{name: call.query[name]})
        return call.page(rows, lambda row: _told(call, row), is_newest_first=True)

    @operation(
        "startExport",
        tag=TAG,
        summary="Start an export",
        description="A worker makes the file; the same that is still unfinished is found in its place. The token needs the scope "
        "of what stands in the file, too, such as money:read for the ledger.",
        scope=api_tokens.EXPORTS_WRITE,
        action=Action.SEE_USAGE,
        body=ExportBody,
        answers=ExportShape,
        status=202,
        idempotency=OPTIONAL,
        errors=(404,),
        examples={
            "Sums by member of a month": {"kind": "usage_totals", "by": "member", "start": "2026-11-01", "end": "2026-11-30"},
            "The whole ledger": {"kind": "ledger"},
        },
    )
    def post(self, call: Call) -> Any:
        _demand_scope(call, call.body["kind"])
        return _told(call, _start(call))


class OneExport(Resource):
    @operation(
        "getExport",
        tag=TAG,
        summary="See how far an export is",
        scope=api_tokens.EXPORTS_WRITE,
        action=Action.SEE_USAGE,
        answers=ExportShape,
    )
    def get(self, call: Call, uuid: UUID) -> Any:
        return _told(call, jobs.find(call.member, uuid))


class StoppedExport(Resource):
    @operation(
        "stopExport",
        tag=TAG,
        summary="Stop an export",
        description="By who started it, and by owners. One that is over stays as it is.",
        scope=api_tokens.EXPORTS_WRITE,
        action=Action.SEE_USAGE,
        answers=ExportShape,
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = jobs.find(call.member, uuid)
        if found.member_id != call.member.pk and not permissions.can(call.member, Action.MANAGE_ORGANIZATION):
            raise PermissionDenied
        jobs.stop(found, now=call.now, by=call.member.user)
        return _told(call, found)


class ExportFile(Resource):
    @operation(
        "linkExport",
        tag=TAG,
        summary="Get a link to an export's file",
        description="The file is fetched by GET from it, without a token. It ends by itself, with the file, and when the member "
        "loses the right to what stands in it. 410: there is no file, or not yet.",
        scope=api_tokens.EXPORTS_WRITE,
        action=Action.SEE_USAGE,
        answers=FileLink,
        errors=(410,),
    )
    def post(self, call: Call, uuid: UUID) -> Any:
        found = jobs.find(call.member, uuid)
        if found.kind not in READS:
            raise PermissionDenied
        _demand_scope(call, found.kind)
        if not jobs.may_open(call.member, found):
            raise PermissionDenied
        jobs.check_file(found, now=call.now)
        address = reverse("signed_file", kwargs={"token": jobs.link(found, call.member)})
        last = call.now + jobs.LINK_KEPT
        data = {
            "url": f"{settings.PUBLIC_URL.rstrip('/')}{address}",
            "expires_at": iso(min(last, found.expires_at) if found.expires_at is not None else last),
            "file_name": found.file_name,
            "file_bytes": found.file_bytes,
            "secret_note": ONCE,
        }
        return Answer(200, data, secrets=("url",))


def _demand_scope(call: Call, kind: str) -> None:
    """Raises TokenScopeMissing: a token that may not read something may not have it made into a file."""
    scope = READS[kind]
    if call.token is not None and scope not in call.token.scopes:
        raise TokenScopeMissing(f"This token was not made for {scope}, which this file is about.", scope=scope)


def _start(call: Call) -> Job:
    """Raises ParameterInvalid for what does not belong to the kind, and what the kinds raise."""
    kind, asked, member = call.body["kind"], call.body, call.member
    taken = {"kind", "excel"}
    taken |= {"start", "end"} if kind in RANGED else set()
    taken |= {"by"} if kind == job_kinds.USAGE_TOTALS else set()
    taken |= set(FILTERS) if kind == own_kinds.REQUEST_LOG else set()
    for name in asked:
        if name not in taken:
            raise ParameterInvalid(f"{name} does not belong to {kind}. It takes {', '.join(sorted(taken))}.", param=name)
    options: dict[str, Any] = {"now": call.now, "with_bom": asked.get("excel", False)}
    if kind == own_kinds.MEMBERS:
        return own_kinds.start_members(member, **options)
    chosen = _range(member, asked, call.now)
    if kind == own_kinds.REQUEST_LOG:
        sight = labels.sight(member)
        filters = {name: asked[name] for name in FILTERS if name in asked}
        times = {"start": chosen.start, "end": chosen.end} if chosen is not None else {}
        return own_kinds.start_request_log(member, wanted_of(call, sight, {**filters, **times}), **options)
    if kind == job_kinds.LEDGER:
        return job_kinds.start_ledger(member, chosen, **options)
    chosen = chosen or usage_report.this_period(labels.sight(member), member, call.now)
    if kind == job_kinds.USAGE_TOTALS:
        if "by" not in asked:
            raise ParameterInvalid("usage_totals needs what to sum by.", param="by")
        return job_kinds.start_usage_totals(member, asked["by"], chosen, **options)
    starts: Mapping[str, Callable[..., Job]] = {
        job_kinds.USAGE_ROWS: job_kinds.start_usage_rows,
        job_kinds.INVOICE_LINES: job_kinds.start_invoice_lines,
    }
    return starts[kind](member, chosen, **options)


def _range(member: Member, asked: Mapping[str, Any], now: datetime) -> Range | None:
    """None where no time is given. Raises RangeInvalid, ParameterInvalid."""
    if "start" not in asked and "end" not in asked:
        return None
    for name, other in (("start", "end"), ("end", "start")):
        if name not in asked:
            raise ParameterInvalid(f"{other} needs {name} beside it.", param=name)
    return usage_report.parsed(asked["start"], asked["end"], ZoneInfo(member.organization.timezone))


def _told(call: Call, row: Job) -> dict[str, Any]:
    rows = row.result.get("rows")
    return {
        "id": str(row.uuid),
        "kind": row.kind,
        "title": row.title,
        "state": row.state,
        "done": row.done,
        "total": row.total,
        "rows": rows if isinstance(rows, int) else None,
        "error": row.error or None,
        "has_file": jobs.has_file(row, now=call.now) and jobs.may_open(call.member, row),
        "file_name": row.file_name or None,
        "file_bytes": row.file_bytes,
        "created_at": iso(row.created_at),
        "finished_at": iso(row.finished_at),
        "expires_at": iso(row.expires_at),
        "is_own": row.member_id == call.member.pk,
    }


urls = [
    path("exports", Exports.as_view(), name="api_exports"),
    path("exports/<uuid:uuid>", OneExport.as_view(), name="api_export"),
    path("exports/<uuid:uuid>/stop", StoppedExport.as_view(), name="api_export_stop"),
    path("exports/<uuid:uuid>/link", ExportFile.as_view(), name="api_export_link"),
]
