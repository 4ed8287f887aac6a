"""Alerts in the words of the pages: what happened, with what is left and when it comes back, and the next step. Pure.

Texts are made when they are shown or sent: amounts are those of the moment it was told, names are today's.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, gettext_noop, ngettext

from accounts import display, locales, permissions
from accounts.models import Member
from accounts.permissions import Action
from quotas import remaining
from quotas.alerts import audience
from quotas.alerts.found import LINES
from quotas.alerts.models import Alert
from quotas.remaining import limit_name

_LEADS = gettext_lazy("Leads of the whole organization, owners")
RULES = {
    Alert.Kind.LIMIT: (
        gettext_lazy("20 %, 5 % or nothing left of a limit"),
        gettext_lazy("Credits, tokens and requests"),
        gettext_lazy("The member, leads, owners"),
    ),
    Alert.Kind.QUOTA: (
        gettext_lazy("20 %, 5 % or nothing left of a quota"),
        gettext_lazy("The plan’s quota and seats"),
        gettext_lazy("Leads of the whole organization, owners, the seat’s member"),
    ),
    Alert.Kind.OVERAGE: (
        gettext_lazy("A quota will probably not last"),
        gettext_lazy("The same, from five days of use on"),
        gettext_lazy("Leads of the whole organization, owners, finance"),
    ),
    Alert.Kind.ANOMALY: (
        gettext_lazy("An hour at 4 times the usual"),
        gettext_lazy("Members with five active hours in 14 days"),
        gettext_lazy("Leads, owners"),
    ),
    Alert.Kind.ACCOUNT: (gettext_lazy("An account needs sign-in"), gettext_lazy("Every account of the pool"), _LEADS),
    Alert.Kind.NO_ACCOUNT: (
        gettext_lazy("No account can serve a request"),
        gettext_lazy("Every model that was asked for"),
        _LEADS,
    ),
    Alert.Kind.IMPLAUSIBLE: (gettext_lazy("Implausible usage"), gettext_lazy("What upstreams report"), _LEADS),
    Alert.Kind.DRIFT: (gettext_lazy("Books that drift"), gettext_lazy("Counters, log and ledger"), _LEADS),
}
"""When, for what, and who is told, by kind."""

_LEFT = {
    "credits": gettext_noop("%(left)s of %(limit)s credits left"),
    "tokens": gettext_noop("%(left)s of %(limit)s tokens left"),
    "requests": gettext_noop("%(left)s of %(limit)s requests left"),
}
URGENT = frozenset({Alert.Kind.ACCOUNT, Alert.Kind.NO_ACCOUNT})
"""Nothing gets better by itself: somebody has to do something."""


@dataclass(frozen=True, slots=True)
class Words:
    """`title` is a sentence without its full stop; `details` are clauses. `step` and `path`: what to do next, and where."""

    title: str
    details: tuple[str, ...]
    step: str
    path: str

    @property
    def detail(self) -> str:
        return " · ".join(self.details)

    @property
    def link(self) -> str:
        return settings.PUBLIC_URL.rstrip("/") + self.path


def words(alert: Alert, *, reader: Member | None, now: datetime, is_zone_named: bool = False) -> Words:
    """For a reader, or (None) for a webhook. `is_zone_named`: where nothing else says in which zone times are.

    The alert is read with `audience.RELATED`; asks nothing.
    """
    tell = _Teller(alert, reader, now, is_zone_named)
    title, details = {
        Alert.Kind.LIMIT: tell.limit,
        Alert.Kind.QUOTA: tell.quota,
        Alert.Kind.OVERAGE: tell.overage,
        Alert.Kind.ANOMALY: tell.anomaly,
        Alert.Kind.ACCOUNT: tell.account,
        Alert.Kind.NO_ACCOUNT: tell.no_account,
        Alert.Kind.IMPLAUSIBLE: tell.implausible,
        Alert.Kind.DRIFT: tell.drift,
    }[Alert.Kind(alert.kind)]()
    step, path = tell.step()
    return Words(title, tuple(details), step, path)


def line_name(line: int) -> str:
    """`20 % line`; lines are stored as what is used and told as what is left."""
    return _("nothing left") if line == 100 else _("%(percent)s %% line") % {"percent": 100 - line}


class _Teller:
    def __init__(self, alert: Alert, reader: Member | None, now: datetime, is_zone_named: bool) -> None:
        self.alert, self.reader, self.now, self.is_zone_named = alert, reader, now, is_zone_named
        self.facts = alert.facts
        self.organization = alert.organization
        self.zone = ZoneInfo(self.organization.timezone)
        holder = audience.holder(alert)
        self.is_own = reader is not None and holder is not None and holder.pk == reader.pk

    def at(self, second: int) -> str:
        text = display.full_moment(datetime.fromtimestamp(second, UTC), self.zone, self.now)
        return f"{text} ({self.organization.timezone})" if self.is_zone_named else text

    # ------------------------------------------------------------------------------------------------------- sentences

    def limit(self) -> tuple[str, list[str]]:
        facts = self.facts
        name = remaining.for_models(limit_name(facts["metric"], facts["window"]), facts.get("models"))
        if self.alert.key is not None:
            whose = (_("Your key %(key)s") if self.is_own else _("The key %(key)s")) % {"key": self.alert.key.name}
        elif self.alert.member is not None:
            whose = _("You") if self.is_own else str(self.alert.member)
        elif self.alert.team is not None:
            whose = _("The %(team)s team") % {"team": self.alert.team.name}
        else:
            whose = self.organization.name
        about = {"whose": whose, "limit": name, "percent": 100 - self.alert.line}
        if self.alert.line == 100:
            title = _("%(whose)s: nothing of the %(limit)s left") % about
        else:
            title = _("%(whose)s: at most %(percent)s %% of the %(limit)s left") % about
        return title, [
            self._amounts(facts["metric"]),
            self._resets() if facts["resets_at"] else _("comes back bit by bit"),
            *self._next_line(),
        ]

    def quota(self) -> tuple[str, list[str]]:
        facts = self.facts
        details = [self._amounts("credits")]
        if self.alert.line < 100:
            details += [self._resets(), *self._next_line()]
        elif facts["purchased"] > 0:
            left = {"left": display.credits(facts["purchased"])}
            details += [_("purchased credits pay from now on, %(left)s left") % left, self._resets()]
        elif facts["overage"] > 0:
            left = {"left": display.credits(facts["overage"])}
            details += [_("overage pays from now on, %(left)s left of its cap") % left, self._resets()]
        else:
            details += [_("requests are refused until %(at)s") % {"at": self.at(facts["resets_at"])}]
        about = {"quota": self._quota_name(), "percent": 100 - self.alert.line}
        if self.alert.line == 100:
            return _("%(quota)s: nothing left") % about, details
        return _("%(quota)s: at most %(percent)s %% left") % about, details

    def overage(self) -> tuple[str, list[str]]:
        facts = self.facts
        amounts = {name: display.credits(facts[name]) for name in ("expected", "low", "high")}
        if facts["runs_out_at"]:
            about = {"quota": self._quota_name(), "at": self.at(facts["runs_out_at"])}
            title = _("%(quota)s will probably run out around %(at)s") % about
        else:
            title = _("%(quota)s will probably run out") % {"quota": self._quota_name()}
        days = facts["days"]
        return title, [
            _("%(expected)s credits too little by the reset, %(low)s to %(high)s") % amounts,
            ngettext("from the last %(days)s days", "from the last %(days)s days", days) % {"days": days},
            self._resets(),
        ]

    def anomaly(self) -> tuple[str, list[str]]:
        facts = self.facts
        tenths, hours = facts["tenths"], facts["hours"]
        times: dict[str, object] = {"times": f"{tenths // 10}{locales.current().decimal}{tenths % 10}"}
        if self.is_own:
            title = _("You burned %(times)s times your usual hour") % times
        else:
            about = {"name": self.alert.member or _("A former member"), **times}
            title = _("%(name)s burned %(times)s times their usual hour") % about
        amounts = {"credits": display.credits(facts["credits"]), "usual": display.credits(facts["usual"])}
        return title, [
            _("%(credits)s credits in an hour, usually about %(usual)s") % amounts,
            ngettext("from %(hours)s active hours in 14 days", "from %(hours)s active hours in 14 days", hours) % {"hours": hours},
        ]

    def account(self) -> tuple[str, list[str]]:
        reason = self._reason()
        title = _("%(account)s needs sign-in") % {"account": self.facts["label"]}
        return title, [*([reason] if reason else []), _("its requests go to other accounts")]

    def no_account(self) -> tuple[str, list[str]]:
        refused, members = self.facts["refused"], self.facts["members"]
        reason = self._reason()
        if self.facts["model"]:
            title = _("No account of the pool can serve %(model)s") % {"model": self.facts["model"]}
        else:
            title = _("No account of the pool can serve a request")
        about = {
            "requests": ngettext("%(count)s request", "%(count)s requests", refused) % {"count": refused},
            "of_members": ngettext("of %(count)s member", "of %(count)s members", members) % {"count": members},
        }
        return title, [_("%(requests)s %(of_members)s refused") % about, *([reason] if reason else [])]

    def implausible(self) -> tuple[str, list[str]]:
        count = self.facts["requests"]
        title = ngettext(
            "%(count)s answer reported usage that cannot be", "%(count)s answers reported usage that cannot be", count
        ) % {"count": count}
        held = {"credits": display.credits(self.facts["credits"])}
        return title, [
            _("booked at the amounts that were held, %(credits)s credits") % held,
            _("what the upstream said is kept with each request"),
        ]

    def drift(self) -> tuple[str, list[str]]:
        count, standing = self.facts["differences"], self.facts["standing"]
        title = ngettext("%(count)s difference between the books", "%(count)s differences between the books", count)
        stands = ngettext("%(count)s stands and wait for the operator", "%(count)s stand and wait for the operator", standing)
        return title % {"count": count}, [
            stands % {"count": standing} if standing else _("all were put right"),
            _("counters, log and ledger are compared every hour"),
        ]

    # ----------------------------------------------------------------------------------------------------------- parts

    def _quota_name(self) -> str:
        if self.alert.member is None:
            return _("The plan’s quota")
        return _("Your seat’s quota") if self.is_own else _("%(name)s’s seat") % {"name": self.alert.member}

    def _reason(self) -> str:
        """Kept in English; what is known of it is told as the reader speaks."""
        kept = str(self.facts["reason"])
        return _(kept).rstrip(".") if kept else ""

    def _resets(self) -> str:
        return _("resets %(at)s") % {"at": self.at(self.facts["resets_at"])}

    def _amounts(self, unit: str) -> str:
        used, limit = self.facts["used"], self.facts["limit"]
        about = {"left": remaining.amount(unit, limit - used), "limit": remaining.amount(unit, limit)}
        return (_(_LEFT[unit]) if unit in _LEFT else f"%(left)s of %(limit)s {unit} left") % about

    def _next_line(self) -> list[str]:
        following = [line for line in LINES if line > self.alert.line]
        if not following:
            return []
        if following[-1] == 100:
            return [_("next told at nothing left")]
        return [_("next told at %(percent)s %% left") % {"percent": 100 - following[-1]}]

    # ------------------------------------------------------------------------------------------------------- next step

    def step(self) -> tuple[str, str]:
        """What the reader can do about it, and where; without a reader, what an owner can."""
        alert = self.alert
        may_set = self.reader is None or audience.may_acknowledge(self.reader, alert)
        holder = audience.holder(alert)
        if alert.kind == Alert.Kind.LIMIT:
            if not may_set:
                return _("Ask for more"), f"{self._page('key')}?ask={alert.limit_uuid}"
            if holder is not None:
                return _("Change limit"), f"{self._page('member', uuid=holder.uuid)}?edit={alert.limit_uuid}"
            return _("Change limit"), f"{self._page('members')}?edit={alert.limit_uuid}#levels"
        if alert.kind in (Alert.Kind.QUOTA, Alert.Kind.OVERAGE):
            if self._may(Action.MANAGE_ORGANIZATION):
                return _("Change plan"), self._page("change_plan")
            return _("See what is left"), self._page("overview")
        if alert.kind == Alert.Kind.ANOMALY:
            who = f"?member={holder.uuid}" if holder is not None and not self.is_own else ""
            return _("See requests"), f"{self._page('request_log')}{who}"
        if alert.kind == Alert.Kind.ACCOUNT:
            return (_("Sign in again") if self.facts["is_sign_in"] else _("Give its key")), self._page("pool")
        if alert.kind == Alert.Kind.NO_ACCOUNT:
            return _("Look at the pool"), self._page("pool")
        return _("See requests"), self._page("request_log")

    def _may(self, action: Action) -> bool:
        return self.reader is None or permissions.can(self.reader, action)

    def _page(self, name: str, **names: object) -> str:
        return reverse(name, kwargs={"slug": self.organization.slug, **names})
