"""Forms of the limits: what a person typed, and the error beside the field it belongs to. Rules live in the domain modules."""

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from accounts.models import Member
from config.errors import DomainError
from quotas import requests
from quotas.models import Limit
from quotas.remaining import counted

METRICS = [
    ("credits", gettext_lazy("Credits")),
    ("tokens", gettext_lazy("Tokens")),
    ("requests", gettext_lazy("Requests")),
    ("requests_per_second", gettext_lazy("Requests per second")),
    ("requests_per_minute", gettext_lazy("Requests per minute")),
    ("concurrent", gettext_lazy("Requests at once")),
]
RATES = ("requests_per_second", "requests_per_minute", "concurrent")
WINDOW_CHOICES = [
    ("5h", gettext_lazy("Last 5 hours (rolling)")),
    ("1d", gettext_lazy("Last 24 hours (rolling)")),
    ("7d", gettext_lazy("Last 7 days (rolling)")),
    ("30d", gettext_lazy("Last 30 days (rolling)")),
    ("day", gettext_lazy("Calendar day")),
    ("week", gettext_lazy("Week, from Monday")),
    ("month", gettext_lazy("Calendar month")),
    ("period", gettext_lazy("Plan period")),
]
NONE = "none"
LAST_YEAR = 2199


class LimitForm(forms.Form):
    """A new limit. `level` is `organization`, or `team:<uuid>`, `member:<uuid>`, `key:<uuid>`."""

    level = forms.CharField(max_length=60, label=gettext_lazy("Whose use"))
    metric = forms.ChoiceField(choices=METRICS, label=gettext_lazy("What is counted"), initial="credits")
    window = forms.ChoiceField(
        choices=[("", gettext_lazy("For rates and requests at once: none")), *WINDOW_CHOICES],
        required=False,
        label=gettext_lazy("In which time"),
    )
    amount = forms.CharField(max_length=40, label=gettext_lazy("At most"))
    models = forms.CharField(max_length=1000, required=False, label=gettext_lazy("Only these models"))
    is_exact = forms.BooleanField(required=False, label=gettext_lazy("Count exactly"))

    def clean_amount(self) -> str:
        return plain(self.cleaned_data["amount"])

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        metric, window = data.get("metric"), data.get("window")
        if metric in RATES:
            # A rate has no time to choose; what stood in the field is no mistake.
            data["window"] = ""
        elif metric is not None and "window" in data and not window:
            self.add_error("window", _("In which time? A limit of %(metric)s needs one.") % {"metric": metric})
        return data

    @property
    def model_names(self) -> list[str]:
        return [name.strip() for name in self.cleaned_data["models"].replace("\n", ",").split(",") if name.strip()]


class AmountForm(forms.Form):
    """Another amount of a limit that is there."""

    amount = forms.CharField(max_length=40, label=gettext_lazy("At most"))

    def clean_amount(self) -> str:
        amount = plain(self.cleaned_data["amount"])
        if amount.lower() == NONE:
            raise forms.ValidationError(_("To lift the limit, remove it. 0 blocks."))
        return amount


class MoreForm(forms.Form):
    """More of a limit for a time: a boost that is given, or asked for. `until` is the last day of it."""

    extra = forms.CharField(max_length=40, label=gettext_lazy("How much more"))
    until = forms.DateField(
        label=gettext_lazy("Until the end of"), error_messages={"invalid": gettext_lazy("A day, like 2026-12-04.")}
    )
    note = forms.CharField(max_length=1000, required=False, label=gettext_lazy("Why"))

    def clean_extra(self) -> str:
        return plain(self.cleaned_data["extra"])

    def clean_until(self) -> date:
        until: date = self.cleaned_data["until"]
        if until.year > LAST_YEAR:
            # Its end could not be told any more: dates end with the year 9999.
            raise forms.ValidationError(
                ngettext(
                    "At most %(days)s day. What is needed for longer is a higher limit.",
                    "At most %(days)s days. What is needed for longer is a higher limit.",
                    requests.MOST_DAYS,
                )
                % {"days": requests.MOST_DAYS}
            )
        return until

    def ends_at(self, zone: ZoneInfo) -> datetime:
        """The first moment after the day, in the organization's zone."""
        return end_of(self.cleaned_data["until"], zone)


class AskForm(MoreForm):
    limit = forms.UUIDField(
        label=gettext_lazy("Of which limit"), error_messages={"invalid": gettext_lazy("Choose one of the limits.")}
    )


class DecisionForm(forms.Form):
    decision = forms.ChoiceField(choices=[("approve", gettext_lazy("Approve")), ("deny", gettext_lazy("Deny"))])
    note = forms.CharField(max_length=1000, required=False, label=gettext_lazy("A word to the member"))


class InviteForm(forms.Form):
    email = forms.EmailField(max_length=254, label=gettext_lazy("E-mail"))
    name = forms.CharField(max_length=120, required=False, label=gettext_lazy("Name"))
    role = forms.ChoiceField(choices=Member.Role.choices, label=gettext_lazy("Role"))
    team = forms.CharField(max_length=80, required=False, label=gettext_lazy("Team"))


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=Member.Role.choices, label=gettext_lazy("Role"))
    team = forms.CharField(max_length=80, required=False, label=gettext_lazy("Team"))


def plain(text: str) -> str:
    """A number without the commas and spaces that people group digits with; anything else as it was typed."""
    bare = text.strip()
    for separator in (",", "’", "\u202f", "\u00a0", " "):
        bare = bare.replace(separator, "")
    return bare if bare.replace(".", "", 1).isdigit() else text.strip()


def end_of(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day + timedelta(days=1), datetime.min.time(), zone)


def until_for(limit: Limit | None, now: datetime, zone: ZoneInfo) -> date:
    """The day that is offered: today for what a day's limit holds back, else a week on."""
    today = now.astimezone(zone).date()
    return today if limit is not None and limit.window in ("5h", "1d", "day") else today + timedelta(days=7)


def last_day(now: datetime, zone: ZoneInfo) -> date:
    """The last one that may be asked for: its end is within `requests.MOST_DAYS`."""
    return (now + timedelta(days=requests.MOST_DAYS)).astimezone(zone).date() - timedelta(days=1)


def told(form: forms.Form, field: str, error: DomainError) -> None:
    """Puts a refusal of the domain beside the field it is about."""
    form.add_error(field, error.message)


def describe(limit: Limit) -> str:
    """What a limit counts, as a row's head: `Credits, last 7 days`, `Requests per minute`."""
    if limit.metric in RATES:
        return str(dict(METRICS)[limit.metric])
    return counted(limit.metric, limit.window, is_head=True)
