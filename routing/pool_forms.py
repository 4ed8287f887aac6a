"""Forms of the pool: what a person typed, and the error beside the field it belongs to. Rules live in the domain modules.

No form gives a secret back: API keys and pasted addresses are never rendered again.
"""

from decimal import Decimal
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy

from accounts.forms import listed
from config.errors import DomainError
from routing import capacity, upkeep
from routing.models import Pool, PoolAccount

PLANS = [("", gettext_lazy("As the sign-in says")), *((name, name.replace("_", " ")) for name in capacity.DATED[-1].by_plan)]
BY_KEY = [(PoolAccount.Kind.OPENAI.value, "OpenAI"), (PoolAccount.Kind.ANTHROPIC.value, "Anthropic")]
KINDS = [*BY_KEY, (PoolAccount.Kind.COMPATIBLE.value, gettext_lazy("Compatible endpoint"))]
DIALECTS = [
    ("responses", gettext_lazy("Responses")),
    ("chat", gettext_lazy("Chat completions")),
    ("messages", gettext_lazy("Messages (Anthropic)")),
]
LONGEST_MODELS = 2000


def told(form: forms.Form, field: str, error: DomainError) -> None:
    """Puts a refusal of the domain beside its field."""
    name = str(error.facts.get("field", field))
    form.add_error(name if name in form.fields else field, error.message)


class AccountForm(forms.Form):
    """What a lead changes of an account; an empty cap, weight or list lifts it."""

    label = forms.CharField(max_length=80, label=gettext_lazy("Name"))
    floor_percent = forms.IntegerField(min_value=0, max_value=100, label=gettext_lazy("Keep for its person, percent"))
    concurrency_cap = forms.IntegerField(
        min_value=1, max_value=upkeep.MOST_AT_ONCE, required=False, label=gettext_lazy("At once, at most")
    )
    priority = forms.IntegerField(min_value=-upkeep.HIGHEST_TIER, max_value=upkeep.HIGHEST_TIER, label=gettext_lazy("Tier"))
    weight = forms.DecimalField(
        min_value=Decimal("0.001"),
        max_value=Decimal(1000),
        max_digits=7,
        decimal_places=3,
        required=False,
        label=gettext_lazy("Weight, in Plus"),
    )
    models = forms.CharField(max_length=LONGEST_MODELS, required=False, label=gettext_lazy("Only these models"))
    efforts = forms.CharField(max_length=200, required=False, label=gettext_lazy("Only these reasoning efforts"))
    tiers = forms.CharField(max_length=200, required=False, label=gettext_lazy("Only these service tiers"))

    def fields_set(self) -> dict[str, Any]:
        """For `upkeep.change`."""
        data = self.cleaned_data
        return {
            "label": data["label"],
            "floor_percent": data["floor_percent"],
            "concurrency_cap": data["concurrency_cap"],
            "priority": data["priority"],
            "weight_thousandths": None if data["weight"] is None else int(data["weight"] * 1000),
            "models_served": listed(data["models"]),
            "efforts_served": listed(data["efforts"]),
            "tiers_served": listed(data["tiers"]),
        }


class StrategyForm(forms.Form):
    """How a pool chooses: room in turns, what one Plus is taken to carry."""

    strategy = forms.ChoiceField(choices=Pool.Strategy.choices, label=gettext_lazy("Strategy"))
    safety = forms.DecimalField(
        min_value=1, max_value=20, max_digits=4, decimal_places=2, label=gettext_lazy("Room for a fresh turn, in turns")
    )
    loyalty = forms.DecimalField(
        min_value=0, max_value=10, max_digits=4, decimal_places=2, label=gettext_lazy("A warm session stays above, in turns")
    )
    base_short = forms.IntegerField(min_value=1, max_value=10**8, label=gettext_lazy("One Plus carries in 5 hours, credits"))
    base_weekly = forms.IntegerField(min_value=1, max_value=10**8, label=gettext_lazy("One Plus carries in a week, credits"))

    def fields_set(self) -> dict[str, Any]:
        """For `pools.set_strategy`."""
        data = self.cleaned_data
        return {
            "strategy": data["strategy"],
            "safety_percent": int(data["safety"] * 100),
            "loyalty_percent": int(data["loyalty"] * 100),
            "base_short_credits": data["base_short"],
            "base_weekly_credits": data["base_weekly"],
        }


class PoolForm(forms.Form):
    """Another pool."""

    name = forms.CharField(max_length=80, label=gettext_lazy("Its name"))


class ExplainForm(forms.Form):
    """Where a request for a model would go."""

    model = forms.CharField(max_length=120, label=gettext_lazy("Model"))
    effort = forms.CharField(max_length=20, required=False, label=gettext_lazy("Reasoning effort"))
    dialect = forms.ChoiceField(choices=DIALECTS, required=False, label=gettext_lazy("API"))


class PlaceForm(forms.Form):
    """Where a new account begins: what its person keeps, and its tier; empty: as every new one of its kind."""

    floor_percent = forms.IntegerField(
        min_value=0, max_value=100, required=False, label=gettext_lazy("Keep for its person, percent")
    )
    priority = forms.IntegerField(
        min_value=-upkeep.HIGHEST_TIER, max_value=upkeep.HIGHEST_TIER, required=False, label=gettext_lazy("Tier, the lowest first")
    )

    def place(self) -> dict[str, int]:
        """For `upkeep.change`: what was given."""
        names = ("floor_percent", "priority")
        return {name: self.cleaned_data[name] for name in names if self.cleaned_data.get(name) is not None}


class SignInForm(PlaceForm):
    """The begin of a sign-in, in a browser or on a device."""

    label = forms.CharField(max_length=80, required=False, label=gettext_lazy("Name"))
    plan = forms.ChoiceField(choices=PLANS, required=False, label=gettext_lazy("Plan"))
    # A tick and nothing else: what is accepted is recorded.
    accept_terms = forms.TypedChoiceField(
        choices=[("on", "")],
        coerce=bool,
        empty_value="",
        required=False,
        label=gettext_lazy("I accept these terms for the organization"),
    )


class FilesForm(SignInForm):
    """`auth.json` files; the files themselves are read by the door."""


class CallbackForm(PlaceForm):
    """The end of a sign-in in a browser."""

    pasted = forms.CharField(max_length=20_000, label=gettext_lazy("The address that the browser ended at"))


class KeyForm(PlaceForm):
    """An API key, of OpenAI, of Anthropic, or for an endpoint that is compatible with OpenAI's."""

    kind = forms.ChoiceField(choices=KINDS, label=gettext_lazy("Of"))
    label = forms.CharField(max_length=80, label=gettext_lazy("Name"))
    api_key = forms.CharField(max_length=1000, label=gettext_lazy("API key"), widget=forms.PasswordInput)
    base_url = forms.CharField(max_length=200, required=False, label=gettext_lazy("Base URL"))
    models = forms.CharField(max_length=LONGEST_MODELS, required=False, label=gettext_lazy("Only these models"))


class MoveForm(forms.Form):
    """Into which pool of the organization."""

    pool = forms.UUIDField(label=gettext_lazy("Pool"))
