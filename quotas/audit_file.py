"""The audit trail as CSV: everything of the organization that a filter finds, with the chain's links. Columns are a promise
(docs/exports.md)."""

import json
from datetime import UTC
from zoneinfo import ZoneInfo

from accounts import trail
from accounts.models import AuditEvent, Organization
from accounts.trail import Sought
from billing import csvfile

COLUMNS = ("number", "time_utc", "time", "actor", "action", "object_type", "object", "data", "event", "previous", "digest")
PAGE = 1000


class TrailFile:
    """The newest first, in pages by number; what is added later stands before the first page and is not in it."""

    def __init__(self, organization: Organization, sought: Sought, *, with_bom: bool = False) -> None:
        self._organization, self._sought, self._with_bom = organization, sought, with_bom
        self._zone = ZoneInfo(organization.timezone)
        self._before: int | None = None
        self._is_begun = self._is_done = False
        self.count = 0

    @property
    def organization(self) -> Organization:
        return self._organization

    def next_piece(self) -> str | None:
        """The next page's lines; the first has the head, the last closes with a record `total`. None once all was given."""
        if self._is_done:
            return None
        rows = trail.events(self._organization, self._sought)
        if self._before is not None:
            rows = rows.filter(number__lt=self._before)
        page = list(rows[:PAGE])
        lines = [self._line(event) for event in page]
        if not self._is_begun:
            self._is_begun = True
            lines.insert(0, (csvfile.BOM if self._with_bom else "") + csvfile.line(COLUMNS))
        self.count += len(page)
        if len(page) < PAGE:
            self._is_done = True
            lines.append(csvfile.line(("total", str(self.count), *[""] * (len(COLUMNS) - 2))))
        else:
            self._before = page[-1].number
        return "".join(lines)

    def _line(self, event: AuditEvent) -> str:
        return csvfile.line(
            (
                csvfile.number(event.number),
                event.created_at.astimezone(UTC).isoformat(timespec="microseconds"),
                csvfile.moment(event.created_at, self._zone),
                csvfile.text(event.actor_label),
                csvfile.text(event.action),
                csvfile.text(event.object_type),
                csvfile.encoded(event.object_id),
                csvfile.encoded(json.dumps(event.data, ensure_ascii=False, sort_keys=True)),
                str(event.uuid),
                event.previous or "",
                event.digest or "",
            )
        )
