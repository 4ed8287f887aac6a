"""The admin's pages of rates: cards and their imports, rows, aliases, organizations' own prices. Rows are dated, never changed."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST
from unfold.decorators import action

from accounts.backoffice import OF_ORGANIZATION, InstallAdmin, operator
from accounts.models import Member, User
from accounts.permissions import Action
from billing import aliases, credits, overrides, ratecard_pages, rates_import
from billing.models import Rate, RateAlias, RateCard, RateImport, RateOverride
from billing.ratecard_forms import AliasForm, CardForm, FallbackForm, OverrideForm
from billing.timelines import whole_second
from config.admin_words import named
from config.clock import utc_now
from config.errors import DomainError


class RatesAdmin(InstallAdmin):
    """Adds by forms of its own, each of which calls one domain function."""

    def form_page(
        self, request: HttpRequest, form: Form, *, title: Any, button: Any, submit: Callable[[User], str], intro: Any = ""
    ) -> HttpResponse:
        """Shows the form; a valid POST is submitted, and leads where `submit` says. A refusal of the domain is shown with it."""
        status = 200
        if request.method == "POST":
            if form.is_valid():
                try:
                    return redirect(submit(operator(request)))
                except DomainError as error:
                    form.add_error(None, error.message)
            status = 400
        page = {**self.admin_site.each_context(request), "form": form, "title": title, "button": button, "intro": intro}
        return render(request, "admin/billing/form.html", page, status=status)

    def list_url(self) -> str:
        return reverse(f"admin:billing_{self.model._meta.model_name}_changelist")


class PricedAdmin(RatesAdmin):
    @admin.display(description=_("Input, credits per million"), ordering="input")
    def input_credits(self, obj: Rate | RateOverride) -> str:
        return _credits(obj.input)

    @admin.display(description=_("Cached input"), ordering="cached_input")
    def cached_credits(self, obj: Rate | RateOverride) -> str:
        return _credits(obj.cached_input)

    @admin.display(description=_("Output"), ordering="output")
    def output_credits(self, obj: Rate | RateOverride) -> str:
        return _credits(obj.output)


@admin.register(RateCard)
class RateCardAdmin(InstallAdmin):
    list_display = ("name", "imported_at", "sha256")
    list_filter = ("imported_at",)
    search_fields = ("name", "=sha256")


@admin.register(RateImport)
class RateImportAdmin(RatesAdmin):
    """Upload a card, look at what it would change, apply exactly that."""

    list_display = ("name", "created_at", "uploaded_by", "applied_at", "difference_link")
    list_filter = (("applied_at", admin.EmptyFieldListFilter), "created_at")
    list_select_related = ("uploaded_by",)
    search_fields = ("name", "=sha256")
    hidden = ("difference",)
    derived = ("difference_link",)
    actions_list = ("upload", "fallback")

    def get_urls(self) -> list[URLPattern]:
        site = self.admin_site
        own = [
            path("<uuid:uuid>/difference/", site.admin_view(self.show), name="billing_rateimport_difference"),
            path("<uuid:uuid>/apply/", site.admin_view(require_POST(self.apply_import)), name="billing_rateimport_apply"),
        ]
        return [*own, *super().get_urls()]

    @admin.display(description=_("Difference"))
    def difference_link(self, obj: RateImport) -> str:
        return format_html('<a href="{}">{}</a>', _difference_url(obj.uuid), _("Show"))

    @action(description=_("Upload a rate card"), url_path="upload")  # type: ignore[untyped-decorator]  # unfold has no types
    def upload(self, request: HttpRequest) -> HttpResponse:
        form = CardForm(request.POST or None, request.FILES or None)

        def submit(by: User) -> str:
            file = form.cleaned_data["file"]
            return _difference_url(rates_import.propose(file.read(), name=file.name, now=utc_now(), by=by).uuid)

        operator(request)
        return self.form_page(
            request,
            form,
            title=_("Upload a rate card"),
            button=_("Show what it would change"),
            submit=submit,
            intro=_("Nothing changes before you have seen the difference and confirmed it."),
        )

    @action(description=_("Set the fallback rate"), url_path="fallback")  # type: ignore[untyped-decorator]  # unfold has no types
    def fallback(self, request: HttpRequest) -> HttpResponse:
        form = FallbackForm(request.POST or None)

        def submit(by: User) -> str:
            now = utc_now()
            content = rates_import.fallback_card(form.texts, start=whole_second(now))
            return _difference_url(rates_import.propose(content, name="fallback rate", now=now, by=by).uuid)

        operator(request)
        return self.form_page(
            request,
            form,
            title=_("Set the fallback rate"),
            button=_("Show what it would change"),
            submit=submit,
            intro=_("What models without a rate cost, for the organizations whose unpriced models are not refused."),
        )

    def show(self, request: HttpRequest, uuid: UUID, *, trouble: str = "", status: int = 200) -> HttpResponse:
        operator(request)
        row = get_object_or_404(RateImport, uuid=uuid)
        page = {
            **self.admin_site.each_context(request),
            **ratecard_pages.shown(row, trouble=trouble),
            "title": _("What the card changed") if row.applied_at else _("What the card would change"),
        }
        return render(request, "admin/billing/ratecard_import.html", page, status=status)

    def apply_import(self, request: HttpRequest, uuid: UUID) -> HttpResponse:
        by = operator(request)
        row = get_object_or_404(RateImport, uuid=uuid)
        try:
            outcome = rates_import.apply(row, seen=request.POST.get("seen", ""), now=utc_now(), by=by)
        except DomainError as error:
            return self.show(request, uuid, trouble=error.message, status=error.status)
        said = {"card": row.name, "count": outcome.imported.added}
        if outcome.is_repeated:
            messages.success(request, _("%(card)s was imported before; nothing changed.") % said)
        else:
            messages.success(request, _("%(card)s imported: %(count)s rows added.") % said)
        return redirect(_difference_url(uuid))


@admin.register(Rate)
class RateAdmin(PricedAdmin):
    """Rates are imported: a change is a new row, and the past is never recomputed."""

    list_display = ("model", "valid_from", "valid_to", "input_credits", "cached_credits", "output_credits", "fast_thousandths")
    list_filter = ("card", ("input", admin.EmptyFieldListFilter), ("valid_to", admin.EmptyFieldListFilter))
    search_fields = ("model",)
    list_select_related = ("card",)


@admin.register(RateAlias)
class RateAliasAdmin(RatesAdmin):
    plural = named("rate aliases")
    list_display = ("alias", "model", "valid_from", "valid_to", "card")
    list_filter = ("card", ("valid_to", admin.EmptyFieldListFilter))
    list_select_related = ("card",)
    search_fields = ("alias", "model")
    actions_list = ("add_alias",)
    actions = ("end",)

    @action(description=_("Add an alias"), url_path="add-alias")  # type: ignore[untyped-decorator]  # unfold has no types
    def add_alias(self, request: HttpRequest) -> HttpResponse:
        form = AliasForm(request.POST or None)

        def submit(by: User) -> str:
            aliases.add(**form.cleaned_data, now=utc_now(), by=by)
            return self.list_url()

        operator(request)
        return self.form_page(request, form, title=_("Add an alias"), button=_("Add"), submit=submit)

    @admin.action(description=_("End: stands for nothing from now on"))
    def end(self, request: HttpRequest, queryset: QuerySet[RateAlias]) -> None:
        self.apply(request, queryset, "ended", lambda row: aliases.end(row, now=utc_now(), by=operator(request)))


@admin.register(RateOverride)
class RateOverrideAdmin(PricedAdmin):
    seen_by = Action.SEE_MONEY
    tenant = "organization"
    list_display = (
        "organization", "model", "valid_from", "valid_to", "input_credits", "cached_credits", "output_credits", "reason",
    )  # fmt: skip
    list_filter = (("valid_to", admin.EmptyFieldListFilter), OF_ORGANIZATION)
    list_select_related = ("organization",)
    search_fields = ("model", "organization__slug", "organization__name", "reason")
    actions_list = ("set_override",)
    actions = ("end",)

    def rows_of(self, member: Member, rows: QuerySet[RateOverride]) -> QuerySet[RateOverride]:
        return rows.filter(organization_id=member.organization_id)

    def organizations_of(self, obj: RateOverride) -> Iterable[int]:
        return [obj.organization_id]

    @action(description=_("Set an organization's own price"), url_path="set")  # type: ignore[untyped-decorator]  # unfold has no types
    def set_override(self, request: HttpRequest) -> HttpResponse:
        form = OverrideForm(request.POST or None)

        def submit(by: User) -> str:
            dated = {name: form.cleaned_data[name] for name in ("valid_from", "valid_to", "reason")}
            organization, model = form.cleaned_data["organization"], form.cleaned_data["model"]
            overrides.set_override(organization, model, form.terms, now=utc_now(), by=by, **dated)
            return self.list_url()

        operator(request)
        return self.form_page(request, form, title=_("Set an organization's own price"), button=_("Set"), submit=submit)

    @admin.action(description=_("End: the card's price holds from now on"))
    def end(self, request: HttpRequest, queryset: QuerySet[RateOverride]) -> None:
        self.apply(request, queryset, "ended", lambda row: overrides.end(row, now=utc_now(), by=operator(request)))


def _difference_url(uuid: UUID) -> str:
    return reverse("admin:billing_rateimport_difference", kwargs={"uuid": uuid})


def _credits(amount: int | None) -> str:
    return str(named("unpriced")) if amount is None else credits.text(amount)
