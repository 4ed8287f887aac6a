"""The admin's pages of money: ledger, lots and invoices, which nobody changes, and purchases. All that moves calls the domain."""

import uuid
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AutocompleteSelect
from django.db import models
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanWidget

from accounts import administration
from accounts.backoffice import OF_ORGANIZATION, InstallAdmin, LogAdmin, OperatorAdmin, actor, operator
from accounts.models import Organization, User
from accounts.permissions import Action
from billing import credits, invoicing, ledger, purchases
from billing.models import CreditLot, Invoice, InvoiceLine, InvoiceSeries, LedgerEntry, Purchase
from config.admin_words import named
from config.clock import utc_now


class CreditsField(forms.CharField):
    """A decimal number of credits; cleaned to micro-credits."""

    widget = UnfoldAdminTextInputWidget

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return credits.parse(text)
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from error


class MoveForm(forms.ModelForm):  # type: ignore[type-arg]
    """What every movement of credits by hand says. `reference` keeps a form that is sent twice from moving twice."""

    organization = forms.ModelChoiceField(Organization.objects.all(), label=_("Organization"))
    how_many = CreditsField(label=_("Credits"))
    reason = forms.CharField(
        label=_("Reason"), max_length=200, help_text=_("Stands in the ledger."), widget=UnfoldAdminTextInputWidget
    )
    reference = forms.CharField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Made here, for a widget that is made with the class speaks the language of that moment for ever. A row that is looked at
        # has no such field.
        field = self.fields.get("organization")
        if isinstance(field, forms.ModelChoiceField):
            field.widget = AutocompleteSelect(CreditLot._meta.get_field("organization"), admin.site, choices=field.choices)
            field.widget.is_required = True


class GrantForm(MoveForm):
    never_expires = forms.BooleanField(
        label=_("Never expires"), required=False, widget=UnfoldBooleanWidget, help_text=_("Else they expire in 12 months.")
    )

    class Meta:
        model = CreditLot
        fields: ClassVar[list[str]] = []


class AdjustForm(MoveForm):
    corrects = forms.UUIDField(
        label=_("Corrects"),
        required=False,
        widget=UnfoldAdminTextInputWidget,
        help_text=_("The UUID of the entry that was wrong, if one was."),
    )

    class Meta:
        model = LedgerEntry
        fields: ClassVar[list[str]] = []

    def clean(self) -> dict[str, Any]:
        said = super().clean() or self.cleaned_data
        if said.get("corrects") and said.get("organization"):
            entry = LedgerEntry.objects.for_organization(said["organization"]).filter(uuid=said["corrects"]).first()
            if entry is None:
                self.add_error("corrects", _("This organization has no such entry."))
            said["corrects"] = entry
        return said


class MovingAdmin(OperatorAdmin):
    """Rows that are read, and added by a domain function: `move` gives the row that it made."""

    form_fields: ClassVar[tuple[str, ...]] = ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return administration.is_operator(request)

    def get_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        return super().get_fields(request, obj) if obj is not None else list(self.form_fields)

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        return super().get_readonly_fields(request, obj) if obj is not None else []

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {**super().get_changeform_initial_data(request), "reference": str(uuid.uuid4())}

    def save_form(self, request: HttpRequest, form: "ModelForm[Any]", change: bool) -> Any:
        return self.move(form.cleaned_data, operator(request))

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """The domain function has written it."""

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """There is nothing else."""

    def move(self, said: dict[str, Any], operator: User) -> models.Model:
        raise NotImplementedError


@admin.register(CreditLot)
class CreditLotAdmin(MovingAdmin):
    """Added by granting credits; the next request may use them."""

    form = GrantForm
    form_fields = ("organization", "how_many", "reason", "never_expires", "reference")
    seen_by = Action.SEE_MONEY
    list_display = ("organization", "kind", "amount_text", "left_text", "expires_at", "created_at", "note")
    list_filter = ("kind", ("expires_at", admin.EmptyFieldListFilter), OF_ORGANIZATION, "created_at")
    list_select_related = ("organization",)
    search_fields = ("=reference", "=uuid", "=organization__slug", "note")
    date_hierarchy = "created_at"
    ordering = ("-id",)
    derived = ("amount_text", "left_text")

    def move(self, said: dict[str, Any], operator: User) -> CreditLot:
        return ledger.grant(
            said["organization"],
            said["how_many"],
            reason=said["reason"],
            actor=operator,
            now=utc_now(),
            expires_at=None if said["never_expires"] else ledger.Expiry.DEFAULT,
            reference=f"grant:{said['reference']}",
        )

    @admin.display(description=_("Credits"), ordering="amount")
    def amount_text(self, obj: CreditLot) -> str:
        return credits.text(obj.amount)

    @admin.display(description=_("Left, credits"))
    def left_text(self, obj: CreditLot) -> str:
        return credits.text(obj.amount - obj.drawn - obj.expired)


@admin.register(LedgerEntry)
class LedgerEntryAdmin(LogAdmin, MovingAdmin):
    """Added by adjusting credits: a correction is a new entry that names the old one."""

    form = AdjustForm
    form_fields = ("organization", "how_many", "reason", "corrects", "reference")
    plural = named("ledger entries")
    seen_by = Action.SEE_MONEY
    list_display = ("occurred_at", "organization", "kind", "debit", "credit", "amount_text", "reference", "reason")
    list_filter = ("kind", OF_ORGANIZATION, "occurred_at")
    list_select_related = ("organization",)
    search_fields = ("=reference", "=request_id", "=organization__slug")
    search_help_text = _("A reference or a request’s id as a whole, an organization’s slug, or a member’s address.")
    words = ("reference", "request_id")
    derived = ("amount_text",)

    def move(self, said: dict[str, Any], operator: User) -> LedgerEntry:
        reference = f"adjustment:{said['reference']}"
        ledger.adjust(
            said["organization"],
            said["how_many"],
            reason=said["reason"],
            actor=operator,
            now=utc_now(),
            corrects=said["corrects"],
            reference=reference,
        )
        return LedgerEntry.objects.get(organization=said["organization"], reference=reference)

    @admin.display(description=_("Credits"), ordering="amount")
    def amount_text(self, obj: LedgerEntry) -> str:
        return credits.text(obj.amount)


@admin.register(Purchase)
class PurchaseAdmin(OperatorAdmin):
    seen_by = Action.SEE_MONEY
    list_display = ("created_at", "organization", "provider", "payment_id", "credits_text", "amount", "currency", "status")
    list_filter = ("status", "provider", OF_ORGANIZATION, "created_at")
    list_select_related = ("organization",)
    search_fields = ("=payment_id", "=uuid", "=organization__slug")
    member_hidden = ("payload",)
    date_hierarchy = "created_at"
    ordering = ("-id",)
    derived = ("credits_text",)
    actions = ("complete", "refund")

    @admin.display(description=_("Credits"), ordering="credits")
    def credits_text(self, obj: Purchase) -> str:
        return credits.text(obj.credits)

    @admin.action(description=_("Complete: the payment has arrived"))
    def complete(self, request: HttpRequest, queryset: QuerySet[Purchase]) -> None:
        by = actor(request)

        def change(row: Purchase) -> None:
            purchases.complete(
                row.provider,
                row.payment_id,
                organization=row.organization,
                amount=row.credits,
                price=row.amount,
                currency=row.currency,
                now=utc_now(),
                actor=by,
            )

        self.apply(request, queryset, "completed", change)

    @admin.action(description=_("Refund: take back what is left of the credits"))
    def refund(self, request: HttpRequest, queryset: QuerySet[Purchase]) -> None:
        by = actor(request)
        self.apply(
            request, queryset, "refunded", lambda row: purchases.refund(row.provider, row.payment_id, now=utc_now(), actor=by)
        )


@admin.register(Invoice)
class InvoiceAdmin(OperatorAdmin):
    """As issued. What is wrong is taken back by a credit note."""

    seen_by = Action.SEE_MONEY
    list_display = ("printed_number", "organization", "kind", "corrects", "issued_at", "total", "currency", "credits_text")
    list_filter = ("kind", "currency", OF_ORGANIZATION, "issued_at")
    list_select_related = ("organization", "corrects", "series", "corrects__series")
    search_fields = ("=uuid", "=organization__slug", "customer_name")
    date_hierarchy = "issued_at"
    ordering = ("-id",)
    derived = ("printed_number", "credits_text", "printed_lines")
    actions = ("take_back",)

    @admin.display(description=_("Number"))
    def printed_number(self, obj: Invoice) -> str:
        return str(obj.frozen.get("number", obj))

    @admin.display(description=_("Credits"), ordering="credits")
    def credits_text(self, obj: Invoice) -> str:
        return credits.text(obj.credits)

    @admin.display(description=_("Lines"))
    def printed_lines(self, obj: Invoice) -> str:
        return "; ".join(f"{line.description}: {line.amount} {obj.currency}" for line in obj.lines.order_by("position")[:100])

    @admin.action(description=_("Take back all that is left, by a credit note"))
    def take_back(self, request: HttpRequest, queryset: QuerySet[Invoice]) -> None:
        by = actor(request)
        self.apply(
            request,
            queryset,
            "taken back",
            lambda row: invoicing.credit_note(row, reason="Taken back by the operator", by=by, now=utc_now()),
        )


@admin.register(InvoiceLine)
class InvoiceLineAdmin(OperatorAdmin):
    seen_by = Action.SEE_MONEY
    list_display = ("invoice", "position", "kind", "description", "credits_text", "quantity", "unit_price", "amount")
    list_filter = ("kind", OF_ORGANIZATION)
    list_select_related = ("invoice__series",)
    search_fields = ("description", "=invoice__uuid", "=organization__slug")
    ordering = ("-invoice", "position")
    derived = ("credits_text",)

    @admin.display(description=_("Credits"), ordering="credits")
    def credits_text(self, obj: InvoiceLine) -> str:
        return credits.text(obj.credits)


@admin.register(InvoiceSeries)
class InvoiceSeriesAdmin(InstallAdmin):
    """One for each organization that was ever invoiced; the next number is taken by the next invoice."""

    list_display = ("name", "next_number")
    list_filter = ("next_number",)
    search_fields = ("=name",)
