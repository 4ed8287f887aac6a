"""What operators fill in about rates: a card's file, the fallback's price, an alias, an organization's own price."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from accounts.models import Organization
from billing import cardfile, rates_import
from billing.overrides import Terms


class CardForm(forms.Form):
    file = forms.FileField(label=_("Rate card (JSON, ratecard-facts/1)"))

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file.size > rates_import.MOST_BYTES:
            raise forms.ValidationError(_("The file is larger than %(most)s bytes."), params={"most": rates_import.MOST_BYTES})
        return file


class _DecimalField(forms.CharField):
    """Decimal text, read by `read` to an integer; kept as None where it is left out."""

    def __init__(self, read: Callable[[str], int], **options: Any) -> None:
        super().__init__(max_length=24, **options)
        self._read = read

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text:
            return None
        try:
            return self._read(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


def _price(label: Any, **options: Any) -> _DecimalField:
    return _DecimalField(cardfile.price, label=label, **options)


def _times(label: Any) -> _DecimalField:
    return _DecimalField(cardfile.thousandths, label=label, required=False, help_text=_("Empty: as on the rate card."))


class PricesForm(forms.Form):
    input = _price(_("Input, credits per million tokens"))
    cached_input = _price(_("Cached input, credits per million tokens"))
    cache_write = _price(_("Cache write, credits per million tokens"), required=False, help_text=_("Empty: as input."))
    output = _price(_("Output, credits per million tokens"))


class FallbackForm(PricesForm):
    """The price of models without a rate."""

    @property
    def texts(self) -> dict[str, str | None]:
        """The prices as they were written, for a card of one row."""
        return {name: self.data.get(name, "").strip() or None for name in ("input", "cached_input", "cache_write", "output")}


class _Dated(forms.Form):
    valid_from = forms.DateTimeField(required=False, label=_("Begins (UTC)"), help_text=_("Empty: now. The past is not repriced."))
    valid_to = forms.DateTimeField(required=False, label=_("Ends (UTC)"), help_text=_("Empty: never."))
    reason = forms.CharField(required=False, max_length=200, label=_("Reason"))


class AliasForm(_Dated):
    alias = forms.CharField(max_length=120, label=_("Name that clients use"))
    model = forms.CharField(max_length=120, label=_("Model that it stands for"), help_text=_("As on the rate card."))
    field_order = ("alias", "model")


class OverrideForm(PricesForm, _Dated):
    organization = forms.ModelChoiceField(Organization.objects.all(), to_field_name="slug", label=_("Organization"))
    model = forms.CharField(
        max_length=120, label=_("Model"), help_text=_("As on the rate card; a model of their own; or fallback.")
    )
    fast_thousandths = _times(_("Fast mode, times"))
    long_context_threshold = forms.IntegerField(
        required=False,
        min_value=0,
        max_value=2**31 - 1,
        label=_("Long context above, input tokens"),
        help_text=_("Empty: as on the rate card."),
    )
    long_context_input_thousandths = _times(_("Long context input, times"))
    long_context_output_thousandths = _times(_("Long context output, times"))
    field_order = ("organization", "model", "input", "cached_input", "cache_write", "output")

    @property
    def terms(self) -> Terms:
        return Terms(**{name: self.cleaned_data[name] for name in Terms.__dataclass_fields__})
