"""Forms of the accounts pages; rules live in the domain modules."""

from django import forms
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
    name = forms.CharField(max_length=80, label=gettext_lazy("Name of a new key"))
