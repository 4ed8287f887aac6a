"""Alerts in the words of the pages: what happened, with what is left and when it comes back, and the next step. Pure.

Texts are made when they are shown or sent: amounts are those of the moment it was told, names are today's.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from django.conf import settings
from django.urls import reverse

from accounts import display, permissions
from accounts.models import Member
from accounts.permissions import Action
from quotas import remaining
from quotas.alerts import audience
from quotas.alerts.found import LINES
from quotas.alerts.models import Alert
from quotas.refused import limit_name

_LEADS = "Leads of the whole organization, owners"
RULES: dict[str, tuple[str, str, str]] = {
    Alert.Kind.LIMIT: ("20 %, 5 % or nothing left of a limit", "Credits, tokens and requests", "The member, leads, owners"),
    Alert.Kind.QUOTA: ("20 %, 5 % or nothing left of a quota", "The plan’s quota and seats", f"{_LEADS}, the seat’s member"),
    Alert.Kind.OVERAGE: ("A quota will probably not last", "The same, from five days of use on", f"{_LEADS}, finance"),
    Alert.Kind.ANOMALY: ("An hour at 4 times the usual", "Members with five active hours in 14 days", "Leads, owners"),
    Alert.Kind.ACCOUNT: ("An account needs sign-in", "Every account of the pool", _LEADS),
    Alert.Kind.NO_ACCOUNT: ("No account can serve a request", "Every model that was asked for", _LEADS),
    Alert.Kind.IMPLAUSIBLE: ("Usage that cannot be", "What upstreams report", _LEADS),
    Alert.Kind.DRIFT: ("Books that drift", "Counters, log and ledger", _LEADS),
}
"""When, for what, and who is told, by kind."""

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
    return "nothing left" if line == 100 else f"{100 - line} % line"


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
        name = limit_name(facts["metric"], facts["window"]) + (f" for {facts['models']}" if facts.get("models") else "")
        if self.alert.key is not None:
            whose = f"{'Your' if self.is_own else 'The'} key {self.alert.key.name}"
        elif self.alert.member is not None:
            whose = "You" if self.is_own else str(self.alert.member)
        elif self.alert.team is not None:
            whose = f"The {self.alert.team.name} team"
        else:
            whose = self.organization.name
        return f"{whose}: {self._left(self.alert.line)} of the {name} left", [
            self._amounts(facts["metric"]),
            f"resets {self.at(facts['resets_at'])}" if facts["resets_at"] else "comes back bit by bit",
            *self._next_line(),
        ]

    def quota(self) -> tuple[str, list[str]]:
        facts = self.facts
        details = [self._amounts("credits")]
        resets = self.at(facts["resets_at"])
        if self.alert.line < 100:
            details += [f"resets {resets}", *self._next_line()]
        elif facts["purchased"] > 0:
            details += [f"purchased credits pay from now on, {display.credits(facts['purchased'])} left", f"resets {resets}"]
        elif facts["overage"] > 0:
            details += [f"overage pays from now on, {display.credits(facts['overage'])} left of its cap", f"resets {resets}"]
        else:
            details += [f"requests are refused until {resets}"]
        return f"{self._quota_name()}: {self._left(self.alert.line)} left", details

    def overage(self) -> tuple[str, list[str]]:
        facts = self.facts
        low, high = display.credits(facts["low"]), display.credits(facts["high"])
        when = f" around {self.at(facts['runs_out_at'])}" if facts["runs_out_at"] else ""
        return f"{self._quota_name()} will probably run out{when}", [
            f"{display.credits(facts['expected'])} credits too little by the reset, {low} to {high}",
            f"from the last {facts['days']} days",
            f"resets {self.at(facts['resets_at'])}",
        ]

    def anomaly(self) -> tuple[str, list[str]]:
        facts = self.facts
        whose, usual = ("You", "your") if self.is_own else (str(self.alert.member or "A former member"), "their")
        tenths = facts["tenths"]
        return f"{whose} burned {tenths // 10}.{tenths % 10} times {usual} usual hour", [
            f"{display.credits(facts['credits'])} credits in an hour, usually about {display.credits(facts['usual'])}",
            f"from {facts['hours']} active hours in 14 days",
        ]

    def account(self) -> tuple[str, list[str]]:
        reason = str(self.facts["reason"]).rstrip(".")
        return f"{self.facts['label']} needs sign-in", [*([reason] if reason else []), "its requests go to other accounts"]

    def no_account(self) -> tuple[str, list[str]]:
        refused, members = self.facts["refused"], self.facts["members"]
        reason = str(self.facts["reason"]).rstrip(".")
        return f"No account of the pool can serve {self.facts['model'] or 'a request'}", [
            f"{refused} request{'s' if refused != 1 else ''} of {members} member{'s' if members != 1 else ''} refused",
            *([reason] if reason else []),
        ]

    def implausible(self) -> tuple[str, list[str]]:
        count = self.facts["requests"]
        return f"{count} answer{'s' if count != 1 else ''} reported usage that cannot be", [
            f"booked at the amounts that were held, {display.credits(self.facts['credits'])} credits",
            "what the upstream said is kept with each request",
        ]

    def drift(self) -> tuple[str, list[str]]:
        count, standing = self.facts["differences"], self.facts["standing"]
        return f"{count} difference{'s' if count != 1 else ''} between the books", [
            f"{standing} stand{'s' if standing == 1 else ''} and wait for the operator" if standing else "all were put right",
            "counters, log and ledger are compared every hour",
        ]

    # ----------------------------------------------------------------------------------------------------------- parts

    def _quota_name(self) -> str:
        if self.alert.member is None:
            return "The plan’s quota"
        return "Your seat’s quota" if self.is_own else f"{self.alert.member}’s seat"

    def _left(self, line: int) -> str:
        return "nothing" if line == 100 else f"at most {100 - line} %"

    def _amounts(self, unit: str) -> str:
        used, limit = self.facts["used"], self.facts["limit"]
        left = remaining.amount(unit, limit - used)
        return f"{left} of {remaining.amount(unit, limit)} {unit} left"

    def _next_line(self) -> list[str]:
        following = [line for line in LINES if line > self.alert.line]
        if not following:
            return []
        return [f"next told at {'nothing' if following[-1] == 100 else f'{100 - following[-1]} %'} left"]

    # ------------------------------------------------------------------------------------------------------- next step

    def step(self) -> tuple[str, str]:
        """What the reader can do about it, and where; without a reader, what an owner can."""
        alert = self.alert
        may_set = self.reader is None or audience.may_acknowledge(self.reader, alert)
        holder = audience.holder(alert)
        if alert.kind == Alert.Kind.LIMIT:
            if not may_set:
                return "Ask for more", f"{self._page('key')}?ask={alert.limit_uuid}"
            if holder is not None:
                return "Change limit", f"{self._page('member', uuid=holder.uuid)}?edit={alert.limit_uuid}"
            return "Change limit", f"{self._page('members')}?edit={alert.limit_uuid}#levels"
        if alert.kind in (Alert.Kind.QUOTA, Alert.Kind.OVERAGE):
            if self._may(Action.MANAGE_ORGANIZATION):
                return "Change plan", self._page("change_plan")
            return "See what is left", self._page("overview")
        if alert.kind == Alert.Kind.ANOMALY:
            who = f"?member={holder.uuid}" if holder is not None and not self.is_own else ""
            return "See requests", f"{self._page('request_log')}{who}"
        if alert.kind == Alert.Kind.ACCOUNT:
            return ("Sign in again" if self.facts["is_sign_in"] else "Give its key"), self._page("pool")
        if alert.kind == Alert.Kind.NO_ACCOUNT:
            return "Look at the pool", self._page("pool")
        return "See requests", self._page("request_log")

    def _may(self, action: Action) -> bool:
        return self.reader is None or permissions.can(self.reader, action)

    def _page(self, name: str, **names: object) -> str:
        return reverse(name, kwargs={"slug": self.organization.slug, **names})
