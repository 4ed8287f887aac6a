"""Forms of the accounts pages; rules live in the domain modules."""

from datetime import date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from accounts.organizations import known_zones


def zones() -> list[tuple[str, str]]:
    """Zones that people live in, by name; UTC first. The tz database's old spellings work, but are not offered."""
    areas = ("Africa/", "America/", "Antarctica/", "Asia/", "Atlantic/", "Australia/", "Europe/", "Indian/", "Pacific/")
    return [(name, name) for name in ("UTC", *sorted(zone for zone in known_zones() if zone.startswith(areas)))]


class JoinForm(forms.Form):
    """Accepting a one-time link: one's name and password; the first owner also names the organization and its zone."""

    organization = forms.CharField(max_length=120, required=False, label=gettext_lazy("Organization"))
    timezone = forms.ChoiceField(choices=zones, required=False, label=gettext_lazy("Its time zone"))
    email = forms.EmailField(max_length=254, required=False, label=gettext_lazy("Work e-mail"))
    name = forms.CharField(max_length=120, label=gettext_lazy("Your name"), required=False)
    password = forms.CharField(widget=forms.PasswordInput, label=gettext_lazy("Password"), strip=False, max_length=200)


class IssueKeyForm(forms.Form):
    """A new key; and, for who wants that, what it is narrowed to. What is left empty narrows nothing."""

    name = forms.CharField(max_length=80, label=gettext_lazy("Name of a new key"))
    models = forms.CharField(max_length=2000, required=False, label=gettext_lazy("Only these models"))
    efforts = forms.CharField(max_length=200, required=False, label=gettext_lazy("Only these reasoning efforts"))
    until = forms.DateField(
        required=False,
        label=gettext_lazy("Until the end of"),
        error_messages={"invalid": gettext_lazy("A day, like 2026-12-04.")},
    )
    never_fast = forms.BooleanField(required=False, label=gettext_lazy("Without fast mode"))

    NARROWING = ("models", "efforts", "until", "never_fast")

    def clean_until(self) -> date | None:
        until: date | None = self.cleaned_data["until"]
        if until is not None and until.year > LAST_YEAR:
            raise forms.ValidationError(_("Leave it empty for a key that works until it is revoked."))
        return until

    @property
    def is_narrowed(self) -> bool:
        """Something of it was typed, or is wrong."""
        return any(self[name].value() or name in self.errors for name in self.NARROWING)

    def fields_set(self, zone: ZoneInfo) -> dict[str, Any]:
        """For `keys.issue`; `zone`: whose days are meant."""
        data = self.cleaned_data
        day = data["until"]
        return {
            "name": data["name"],
            "allowed_models": listed(data["models"]),
            "allowed_efforts": listed(data["efforts"]),
            "expires_at": None if day is None else datetime.combine(day + timedelta(days=1), datetime.min.time(), zone),
            "fast_allowed": not data["never_fast"],
        }


LAST_YEAR = 2199
"""A day after it is a slip; dates end with the year 9999."""


def listed(text: str) -> list[str] | None:
    """Names divided by commas, blanks or lines; None where there are none: every one."""
    return text.replace(",", " ").split() or None
