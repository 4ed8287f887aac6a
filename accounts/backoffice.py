"""OperatorAdmin: what all admin pages share. Secrets are not shown, nothing is deleted, changes reach the request path."""

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib import messages
from django.db import models, transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from accounts import audit
from accounts.models import Organization, User
from config import snapshot
from config.errors import DomainError


class OperatorAdmin(ModelAdmin):  # type: ignore[misc]  # unfold has no types
    """All fields read-only but those in `editable`; those in `hidden` are not shown at all. Rows are neither added nor deleted.

    A change is written to the audit trail and bumps the organizations that `organizations_of` names.
    """

    editable: ClassVar[tuple[str, ...]] = ()
    hidden: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[tuple[str, ...]] = ()
    """Methods shown among the fields."""
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        return bool(self.editable) and bool(super().has_change_permission(request, obj))

    def get_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        own = [field.name for field in self.model._meta.fields if field.name not in self.hidden]
        return [*own, *(field.name for field in self.model._meta.many_to_many), *self.derived]

    def get_readonly_fields(self, request: HttpRequest, obj: models.Model | None = None) -> list[str]:
        return [name for name in self.get_fields(request, obj) if name not in self.editable]

    def organizations_of(self, obj: Any) -> Iterable[int]:
        """Ids of the organizations whose requests depend on the row; none unless overridden."""
        return ()

    def save_model(self, request: HttpRequest, obj: Any, form: "ModelForm[Any]", change: bool) -> None:
        """Writes the changed fields only: a row read a minute ago must not undo what others wrote since."""
        assert isinstance(request.user, User)
        concerned = sorted(set(self.organizations_of(obj)))
        with transaction.atomic():
            # The organizations first, as everywhere: their row locks put changes in order.
            snapshot.bump_all(concerned)
            obj.save(update_fields=[name for name in form.changed_data if name in self.editable])
            audit.record(
                Organization.objects.get(pk=concerned[0]) if len(concerned) == 1 else None,
                actor=request.user,
                action="admin.changed",
                object_type=self.model._meta.model_name,
                object_id=str(getattr(obj, "uuid", obj.pk)),
                data={"fields": sorted(form.changed_data)},
            )

    def apply(self, request: HttpRequest, rows: QuerySet[Any], done: str, change: Any) -> None:
        """Runs a domain function on each selected row and says how many it took; a refusal is shown and ends it."""
        count = 0
        for row in rows:
            try:
                change(row)
            except DomainError as error:
                messages.error(request, f"{row}: {error.message}")
                break
            count += 1
        if count:
            messages.success(request, f"{count} {done}.")
