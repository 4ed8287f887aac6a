"""The form of one change for many members: what a person typed. Rules live in `bulk`."""

from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.utils.translation import gettext_lazy as _

from accounts.models import Team
from quotas import boost_forms
from quotas.boost_forms import MoreForm, plain
from quotas.bulk import Kind, Wish

TITLES = {
    Kind.LIMIT: _("Set one limit"),
    Kind.BOOST: _("Give more for a time"),
    Kind.MOVE: _("Move to a team"),
    Kind.REMOVE: _("Remove"),
}
EVERYWHERE = "-"
"""The choice of no team."""


class _Question(forms.Form):
    metric = forms.ChoiceField(choices=boost_forms.METRICS, label=_("What is counted"), initial="credits")
    window = forms.ChoiceField(
        choices=[("", "–"), *boost_forms.WINDOW_CHOICES], required=False, label=_("In which time"), initial="7d"
    )

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or self.cleaned_data
        if data.get("metric") in boost_forms.RATES:
            data["window"] = ""
        elif "metric" in data and "window" in data and not data["window"]:
            self.add_error("window", _("In which time? This needs one."))
        return data


class BulkLimitForm(_Question):
    amount = forms.CharField(max_length=40, label=_("At most"))

    def wish(self, zone: ZoneInfo, teams: list[Team]) -> Wish:
        data = self.cleaned_data
        return Wish(Kind.LIMIT, metric=data["metric"], window=data["window"], amount=plain(data["amount"]))


class BulkBoostForm(_Question, MoreForm):
    field_order = ("metric", "window", "extra", "until", "note")

    def wish(self, zone: ZoneInfo, teams: list[Team]) -> Wish:
        data = self.cleaned_data
        return Wish(
            Kind.BOOST,
            metric=data["metric"],
            window=data["window"],
            extra=data["extra"],
            until=self.ends_at(zone),
            note=data["note"],
        )


class BulkMoveForm(forms.Form):
    team = forms.CharField(max_length=40, label=_("Team"))

    def wish(self, zone: ZoneInfo, teams: list[Team]) -> Wish:
        wanted = self.cleaned_data["team"]
        return Wish(Kind.MOVE, team=next((team for team in teams if str(team.uuid) == wanted), None))


class BulkRemoveForm(forms.Form):
    def wish(self, zone: ZoneInfo, teams: list[Team]) -> Wish:
        return Wish(Kind.REMOVE)


BulkForm = BulkLimitForm | BulkBoostForm | BulkMoveForm | BulkRemoveForm
FORMS: dict[Kind, type[BulkForm]] = {
    Kind.LIMIT: BulkLimitForm,
    Kind.BOOST: BulkBoostForm,
    Kind.MOVE: BulkMoveForm,
    Kind.REMOVE: BulkRemoveForm,
}
