"""What the admin's first page shows of `config.admin_numbers`: to whom, in which words, and where each number leads.

An operator sees a table of organizations; who looks after one sees that one's numbers. A number is left out where its reader's role
may not see what it counts.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from accounts import administration, display
from accounts.models import Job, Organization
from billing.models import SubscriptionPeriod, UsageHour, UsageRecord
from config import admin_numbers
from config.admin_numbers import Accounts, Numbers, Row
from config.clock import utc_now
from quotas.models import AlertDelivery, DeadLetter, Drift, UsageDrain
from routing.models import PoolAccount

LATE_SECONDS = 30
"""A log that is further behind needs somebody."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A number and where it leads. `tone`: bad, warn or nothing; `note` says what it is of."""

    text: str
    url: str = ""
    tone: str = ""
    note: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    name: Cell
    is_active: bool
    cells: tuple[Cell | None, ...]
    """One for each of the columns; None where there is nothing to say."""


def fill(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Called by unfold with the page's context."""
    now = utc_now()
    numbers = admin_numbers.read(now=now)
    page = _Page(request, numbers, now)
    context["numbers"] = numbers
    context["answer"] = page.answer()
    context["tiles"] = page.tiles()
    context["is_operator"] = page.is_operator
    if page.is_operator:
        context["columns"] = page.columns()
        context["lines"] = [page.line(row) for row in numbers.rows]
        context["ratecards"] = reverse("admin:billing_rateimport_changelist")
        context["upload"] = reverse("admin:billing_rateimport_upload")
    return context


class _Page:
    def __init__(self, request: HttpRequest, numbers: Numbers, now: datetime) -> None:
        self.request, self.numbers, self.now = request, numbers, now
        self.is_operator = administration.is_operator(request)

    # ------------------------------------------------------------------------------------------------------------- links

    def sees(self, model: type[Model]) -> bool:
        return bool(admin.site.get_model_admin(model).has_view_permission(self.request))

    def to(self, model: type[Model], row: Row | None = None, /, *, of: str = "organization", **query: Any) -> str:
        """The list of a model's rows, of one organization if one is named; nothing for who may not open it."""
        if not self.sees(model):
            return ""
        if row is not None and self.is_operator:
            query = {f"{of}__id__exact": row.organization_id, **query}
        url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        return f"{url}?{urlencode(query)}" if query else url

    def drift_url(self, row: Row | None = None) -> str:
        return self.to(Drift, row, repaired_at__isempty="1")

    def accounts_url(self, row: Row | None = None, status: str = "") -> str:
        return self.to(PoolAccount, row, of="pool__organization", **({"status__exact": status} if status else {}))

    def deliveries_url(self, row: Row | None = None) -> str:
        return self.to(AlertDelivery, row, status__exact="failed", created_at__gte=self._since(admin_numbers.RECENT))

    def jobs_url(self, row: Row | None = None) -> str:
        return self.to(Job, row, state__exact="failed", created_at__gte=self._since(admin_numbers.RECENT))

    def implausible_url(self, row: Row | None = None) -> str:
        return self.to(UsageRecord, row, is_implausible__exact="1", admitted_at__gte=self._since(admin_numbers.IMPLAUSIBLE))

    def _since(self, span: timedelta) -> str:
        since: datetime = self.now - span
        return since.strftime("%Y-%m-%d %H:%M:%S+00:00")

    # ----------------------------------------------------------------------------------------------------------- sentence

    def troubles(self) -> list[str]:
        """What needs somebody, of what the reader may see."""
        count = self.numbers.total
        needs = self.numbers.accounts("needs_sign_in") if self.sees(PoolAccount) else 0
        found = [
            (needs, _("%(count)s accounts need a sign-in")),
            (count("drift") if self.sees(Drift) else 0, _("%(count)s differences in the books")),
            (count("deliveries") if self.sees(AlertDelivery) else 0, _("%(count)s alerts were not delivered")),
            (count("jobs") if self.sees(Job) else 0, _("%(count)s jobs failed")),
            (count("implausible") if self.sees(UsageRecord) else 0, _("%(count)s requests with usage that cannot be")),
            (self.numbers.dead_letters if self.sees(DeadLetter) else 0, _("%(count)s usage events could not be written")),
        ]
        said = [text % {"count": display.count(number)} for number, text in found if number]
        if self.numbers.behind > LATE_SECONDS:
            said.append(_("the log is %(time)s behind") % {"time": display.duration(self.numbers.behind)})
        if not self.numbers.is_live:
            said.append(_("Redis did not answer: what waits and what cools down is not known"))
        return said

    def answer(self) -> str:
        burned = _("%(credits)s credits used today, %(week)s in seven days.") % {
            "credits": display.credits(self.numbers.total("today")),
            "week": display.credits(self.numbers.total("week")),
        }
        troubles = self.troubles()
        if not troubles:
            return _("%(burned)s Nothing needs you.") % {"burned": burned}
        return _("%(burned)s Look at this: %(troubles)s.") % {"burned": burned, "troubles": "; ".join(troubles)}

    # -------------------------------------------------------------------------------------------------------------- tiles

    def tiles(self) -> list[Cell]:
        numbers = self.numbers
        tiles = [
            Cell(display.credits(numbers.total("today")), self.to(UsageHour), note=self._week(), title=_("Credits today")),
            Cell(*_used(numbers.total("used"), numbers.total("quota")), note=self._period(), title=_("Quota used"))
            if not self.is_operator
            else Cell(
                display.count(sum(row.is_active for row in numbers.rows)),
                self.to(Organization, is_active__exact="1"),
                note=_("%(count)s suspended") % {"count": sum(not row.is_active for row in numbers.rows)},
                title=_("Organizations"),
            ),
        ]
        if self.sees(PoolAccount):
            needs, cooling, paused = (numbers.accounts(name) for name in ("needs_sign_in", "cooling", "paused"))
            note = _("%(cooling)s cooling down, %(paused)s paused") % {"cooling": cooling, "paused": paused}
            serving = display.count(numbers.accounts("serving"))
            tiles.append(Cell(serving, self.accounts_url(status="active"), note=note, title=_("Accounts serving")))
            sign_in = self.accounts_url(status="needs_sign_in")
            tiles.append(Cell(display.count(needs), sign_in, "bad" if needs else "", title=_("Accounts need sign-in")))
        waiting, behind = numbers.total("waiting"), numbers.behind
        late = "bad" if behind > LATE_SECONDS else ""
        if numbers.is_live:
            note = _("the oldest %(time)s") % {"time": display.duration(behind)} if waiting else _("the log is up to date")
            tiles.append(Cell(display.count(waiting), self.to(UsageDrain), late, note, _("Usage on its way to the log")))
        for model, number, url, title in (
            (Drift, numbers.total("drift"), self.drift_url(), _("Differences in the books")),
            (AlertDelivery, numbers.total("deliveries"), self.deliveries_url(), _("Alerts not delivered, 7 d")),
            (Job, numbers.total("jobs"), self.jobs_url(), _("Jobs failed, 7 d")),
            (UsageRecord, numbers.total("implausible"), self.implausible_url(), _("Implausible usage, 30 d")),
            (DeadLetter, numbers.dead_letters, self.to(DeadLetter), _("Usage that could not be written")),
        ):
            if self.sees(model):
                note = ""
                if model is Drift and numbers.drift_found_at is not None:
                    ago = display.duration(self.now - numbers.drift_found_at)
                    note = _("last seen %(time)s ago") % {"time": ago}
                tiles.append(Cell(display.count(number), url, "bad" if number else "", note, title))
        return tiles

    def _week(self) -> str:
        return _("%(credits)s in seven days") % {"credits": display.credits(self.numbers.total("week"))}

    def _period(self) -> str:
        used, quota = display.credits(self.numbers.total("used")), display.credits(self.numbers.total("quota"))
        return _("%(used)s of %(quota)s this period") % {"used": used, "quota": quota}

    # -------------------------------------------------------------------------------------------------------------- table

    @staticmethod
    def columns() -> tuple[str, ...]:
        return (
            _("Today"), _("7 days"), _("Quota used"), _("Serving"), _("Needs sign-in"), _("Cooling"), _("Waiting"), _("Behind"),
            _("Drift"), _("Not delivered"), _("Jobs failed"), _("Implausible"),
        )  # fmt: skip

    def line(self, row: Row) -> Line:
        accounts: Accounts = row.accounts
        name = Cell(row.name, reverse("admin:accounts_organization_change", args=[row.organization_id]))
        used, tone = _used(row.used, row.quota)[0], _used(row.used, row.quota)[2]
        return Line(
            name,
            row.is_active,
            (
                Cell(display.credits(row.today), self.to(UsageHour, row)),
                Cell(display.credits(row.week), self.to(UsageHour, row)),
                Cell(used, self.to(SubscriptionPeriod, row), tone) if row.quota else None,
                _number(accounts.serving, self.accounts_url(row, "active")),
                _number(accounts.needs_sign_in, self.accounts_url(row, "needs_sign_in"), "bad"),
                _number(accounts.cooling, self.accounts_url(row), "warn"),
                _number(row.waiting, self.to(UsageDrain, row)),
                Cell(display.duration(row.behind), self.to(UsageDrain, row), "bad" if row.behind > LATE_SECONDS else "")
                if row.behind
                else None,
                _number(row.drift, self.drift_url(row), "bad"),
                _number(row.deliveries, self.deliveries_url(row), "bad"),
                _number(row.jobs, self.jobs_url(row), "bad"),
                _number(row.implausible, self.implausible_url(row), "bad"),
            ),
        )


def _number(number: int, url: str, tone: str = "") -> Cell | None:
    return Cell(display.count(number), url, tone) if number else None


def _used(used: int, quota: int) -> tuple[str, str, str]:
    """Whole percent, rounded up: never flattering. With no way to go, and the tone."""
    if quota <= 0:
        return display.NOTHING, "", ""
    left = display.percent_left(quota - used, quota)
    return f"{100 - left} %", "", {"out": "bad", "low": "warn"}.get(display.level(quota - used, quota), "")
