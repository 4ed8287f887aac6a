"""OperatorAdmin: what all admin pages share. Secrets are not shown, nothing is deleted, changes reach the request path.

Operators see all. An owner or lead of a whole organization (`accounts.administration`) sees its rows, of the models that their
role may see, and may do of the actions what their role may. The database shows them no other rows; that a list filters by the
organization too is a second lock on the same door.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.db.models import Q, QuerySet
from django.forms import ModelForm
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from unfold.admin import ModelAdmin
from unfold.contrib.filters.admin import AutocompleteSelectFilter
from unfold.paginator import InfinitePaginator

from accounts import administration, audit
from accounts.models import Member, Organization, User
from accounts.permissions import Action
from config import admin_words, snapshot
from config.errors import DomainError

OF_ORGANIZATION = ("organization", AutocompleteSelectFilter)
"""The filter by organization: found by typing, for there may be thousands."""
_LOOKUPS = frozenset(
    {"", "exact", "in", "isnull", "isempty", "gt", "gte", "lt", "lte", "year", "month", "day", "date", "id__exact", "id__in"}
)


class OperatorAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """All fields read-only but those in `editable`; those in `hidden` are not shown at all. Rows are neither added nor deleted.

    A change is written to the audit trail and bumps the organizations that `organizations_of` names.
    """

    editable: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()
    """Methods shown among the fields."""
    plural: ClassVar[Any] = ""
    """What the rows are called, where the model's name and an "s" are not it; `admin_words.named`."""
    seen_by: ClassVar[Action | None] = None
    """Which right shows a member their organization's rows; None: the page is the operators' alone."""
    tenant: ClassVar[str] = "organization"
    """The way from a row to its organization."""
    member_hidden: ClassVar[tuple[str, ...]] = ()
    """Fields and columns that operators see and members do not."""
    member_actions: ClassVar[Mapping[str, Action]] = {}
    """Of `actions`, those that members may do, by the right that it takes."""
    is_long: ClassVar[bool] = False
    """A log that grows without end: nothing of it is counted or sorted as a whole."""
    list_per_page = 50
    show_facets = admin.ShowFacets.NEVER
    list_filter_submit = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        admin_words.translate(self.model, plural=self.plural)
        self.show_full_result_count = not self.is_long

    # ------------------------------------------------------------------------------------------------------------ rights

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return administration.may(request, self.seen_by)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return bool(self.editable) and administration.is_operator(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        member = administration.member(request)
        if member is not None:
            return self.rows_of(member, rows)
        return rows if administration.is_operator(request) else rows.none()

    def rows_of(self, member: Member, rows: QuerySet[Any]) -> QuerySet[Any]:
        """What a member whose right shows the page sees there."""
        return rows.filter(**{self.tenant: member.organization_id})

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        actions: dict[str, Any] = super().get_actions(request)
        if administration.is_operator(request):
            return actions
        mine = {name for name, right in self.member_actions.items() if administration.may(request, right)}
        return {name: action for name, action in actions.items() if name in mine}

    def get_actions_list(self, request: HttpRequest) -> list[Any]:
        return super().get_actions_list(request) if administration.is_operator(request) else []

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """An action that is not the role's is refused, not passed over."""
        asked = request.POST.get("action") if request.method == "POST" else None
        if asked and asked not in self.get_actions(request):
            raise PermissionDenied
        named = {"title": capfirst(str(self.plural))} if self.plural else {}
        answer: HttpResponse = super().changelist_view(request, {**named, **(extra_context or {})})
        return answer

    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Django's log knows no tenants: it is the operators'. Members have the audit trail."""
        if not administration.is_operator(request):
            raise Http404
        answer: HttpResponse = super().history_view(request, object_id, extra_context)
        return answer

    # ------------------------------------------------------------------------------------------------------------- lists

    def get_paginator(self, request: HttpRequest, *args: Any, **options: Any) -> Any:
        return InfinitePaginator(*args, **options) if self.is_long else super().get_paginator(request, *args, **options)

    def get_list_display(self, request: HttpRequest) -> Sequence[Any]:
        columns: Sequence[Any] = super().get_list_display(request)
        if administration.is_operator(request):
            return columns
        return [name for name in columns if name not in (self.tenant, "organization", *self.member_hidden)]

    def get_sortable_by(self, request: HttpRequest) -> Sequence[Any]:
        return () if self.is_long else super().get_sortable_by(request)

    def get_list_filter(self, request: HttpRequest) -> Sequence[Any]:
        """Members get no filter by what is not their organization's: organizations, people, plans, cards."""
        filters: Sequence[Any] = super().get_list_filter(request)
        if administration.is_operator(request):
            return filters
        return [one for one in filters if not self._reaches_out(_path(one)) and _path(one) not in self.member_hidden]

    def _reaches_out(self, path: str) -> bool:
        model, field = self.model, None
        for part in path.split("__"):
            field = model._meta.get_field(part)
            model = field.related_model or model
        return field is not None and field.is_relation and not getattr(self.admin_site._registry.get(model), "is_members", False)

    @property
    def is_members(self) -> bool:
        """Are its rows one organization's own each?"""
        return bool(self.seen_by) and self.tenant == "organization"

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """What the page's filters ask, and whole values of what it shows. A hidden field is not found out letter by letter, and
        nothing is asked of what lies behind a relation."""
        assert request is not None
        shown = set(self.get_fields(request)) | {self.opts.pk.name, "pk"}
        offered = {_path(one) for one in self.get_list_filter(request)} | shown
        return any(lookup == path or (lookup.startswith(f"{path}__") and lookup[len(path) + 2 :] in _LOOKUPS) for path in offered)

    # ------------------------------------------------------------------------------------------------------------- forms

    def get_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        hidden = self.hidden if administration.is_operator(request) else (*self.hidden, *self.member_hidden)
        own = [field.name for field in self.model._meta.fields if field.name not in hidden]
        others = [field.name for field in self.model._meta.many_to_many if field.name not in hidden]
        return [*own, *others, *(name for name in self.derived if name not in hidden)]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        editable = self.editable if administration.is_operator(request) else ()
        return [name for name in self.get_fields(request, obj) if name not in editable]

    def organizations_of(self, obj: Any) -> Iterable[int]:
        """Ids of the organizations whose requests depend on the row; none unless overridden."""
        return ()

    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What the domain refuses is said on the form, and nothing of it is written."""
        try:
            answer: HttpResponse = super().changeform_view(request, object_id, form_url, extra_context)
        except DomainError as error:
            messages.error(request, error.message)
            return redirect(request.get_full_path())
        return answer

    domain: ClassVar[tuple[str, ...]] = ()
    """Of `editable`, what `change` gives to a domain function, which checks, records and publishes by itself."""

    def change(self, obj: Any, fields: dict[str, Any], *, by: User) -> None:
        raise NotImplementedError

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Writes the changed fields only: a row read a minute ago must not undo what others wrote since."""
        changed = [name for name in form.changed_data if name in self.editable]
        through = {name: form.cleaned_data[name] for name in changed if name in self.domain}
        with transaction.atomic():
            if through:
                self.change(obj, through, by=actor(request))
            if plain := sorted(set(changed) - set(through)):
                self._write(obj, plain, by=actor(request))

    def _write(self, obj: Any, fields: list[str], *, by: User) -> None:
        concerned = sorted(set(self.organizations_of(obj)))
        # The organizations first, as everywhere: their row locks put changes in order.
        snapshot.bump_all(concerned)
        obj.save(update_fields=fields)
        audit.record(
            Organization.objects.get(pk=concerned[0]) if len(concerned) == 1 else None,
            actor=by,
            action="admin.changed",
            object_type=self.model._meta.model_name,
            object_id=str(getattr(obj, "uuid", obj.pk)),
            data={"fields": fields},
        )

    # ----------------------------------------------------------------------------------------------------------- actions

    def apply(self, request: HttpRequest, rows: QuerySet[Any], done: str, change: Callable[[Any], Any]) -> None:
        """Runs a domain function on each selected row and says how many it took; a refusal is shown and ends it.

        `done`: one of `admin_words.DONE`. `change` may return False for a row that was so already.
        """
        count = same = 0
        for row in rows:
            try:
                changed = change(row)
            except DomainError as error:
                messages.error(request, f"{row}: {error.message}")
                break
            count += changed is not False
            same += changed is False
        if count:
            messages.success(request, capfirst(_("%(count)s %(done)s.") % {"count": count, "done": admin_words.named(done)}))
        if same:
            text = _("%(count)s not %(done)s: it was so already, or over.")
            messages.info(request, capfirst(text % {"count": same, "done": admin_words.named(done)}))


class InstallAdmin(OperatorAdmin):
    """Rows that belong to no organization: operators' alone, unless `rows_of` says which a member may know."""

    tenant: ClassVar[str] = ""

    def rows_of(self, member: Member, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.none()


class LogAdmin(OperatorAdmin):
    """A log of millions of rows: found by whole words, read in an order that an index has."""

    is_long = True
    newest_first: ClassVar[tuple[str, ...]] = ("-id",)
    """The order within one organization."""
    words: ClassVar[tuple[str, ...]] = ()
    """Fields that are looked up as a whole. Their indices begin with the organization, unless the table's own says otherwise."""

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Of all organizations' rows the order of writing is the only one that an index has."""
        is_one = administration.member(request) is not None or "organization__id__exact" in request.GET
        return self.newest_first if is_one else ("-id",)

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], search_term: str) -> tuple[QuerySet[Any], bool]:
        """An organization's slug, a member's address, or one of `words`; the first that fits."""
        term = search_term.strip()
        if not term:
            return queryset, False
        organizations = Organization.objects.all()
        named = organizations.filter(slug=term).values_list("pk", flat=True).first()
        if named is not None:
            return queryset.filter(organization_id=named).order_by(*self.newest_first), False
        if "@" in term:
            whose = Member.objects.filter(user__email__iexact=term).values_list("pk", flat=True)
            return queryset.filter(member_id__in=list(whose)), False
        found = Q()
        for word in self.words:
            found |= Q(**{word: term})
        return queryset.filter(found, organization_id__in=list(organizations.values_list("pk", flat=True))), False


actor = administration.actor_of
"""Who is named in the audit trail."""


def operator(request: HttpRequest) -> User:
    """Raises PermissionDenied for who is none."""
    if not administration.is_operator(request):
        raise PermissionDenied
    return actor(request)


def _path(one: Any) -> str:
    """The field that a filter is about."""
    return str(one[0] if isinstance(one, tuple | list) else one)
