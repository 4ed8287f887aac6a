"""Operators bring in a rate card: upload, see what it would change, confirm. Everybody else finds nothing here."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models import User
from billing import rates_import
from billing.models import RateImport
from billing.ratecard_forms import CardForm
from config import scope
from config.clock import utc_now
from config.errors import DomainError

P = ParamSpec("P")
SHOWN = 50


def _operators(view: Callable[Concatenate[HttpRequest, User, P], HttpResponse]) -> Callable[..., HttpResponseBase]:
    """404 for everybody else, as for a page that does not exist; an operator's page sees all organizations."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not isinstance(request.user, User) or not request.user.is_superuser:
            raise Http404
        with scope.everything():
            return view(request, request.user, *args, **kwargs)

    return login_required(never_cache(guarded))


@_operators
@require_http_methods(["GET", "HEAD", "POST"])
def ratecards(request: HttpRequest, operator: User) -> HttpResponse:
    """The cards that were uploaded; a POST uploads one and leads to what it would change."""
    form = CardForm(request.POST or None, request.FILES or None)
    status = 200
    if request.method == "POST":
        row, status = uploaded(form, operator)
        if row is not None:
            return redirect("ratecard_import", uuid=row.uuid)
    imports = RateImport.objects.select_related("uploaded_by").order_by("-id")[:SHOWN]
    return render(request, "billing/ratecard_list.html", {"form": form, "imports": imports}, status=status)


@_operators
@require_http_methods(["GET", "HEAD"])
def ratecard_import(request: HttpRequest, operator: User, uuid: UUID) -> HttpResponse:
    """What the card would change, or did."""
    return _difference(request, get_object_or_404(RateImport, uuid=uuid))


@_operators
@require_POST
def apply_ratecard(request: HttpRequest, operator: User, uuid: UUID) -> HttpResponse:
    """Applies what was shown; 409 with the new difference if that has changed."""
    row = get_object_or_404(RateImport, uuid=uuid)
    try:
        rates_import.apply(row, seen=request.POST.get("seen", ""), now=utc_now(), by=operator)
    except DomainError as error:
        return _difference(request, row, trouble=error.message, status=error.status)
    return redirect("ratecard_import", uuid=row.uuid)


def uploaded(form: CardForm, operator: User) -> tuple[RateImport | None, int]:
    """The import of a form's file; None where it is refused, and then the form says why. With the answer's status."""
    if not form.is_valid():
        return None, 400
    file = form.cleaned_data["file"]
    try:
        return rates_import.propose(file.read(), name=file.name, now=utc_now(), by=operator), 200
    except DomainError as error:
        form.add_error("file", error.message)
        return None, error.status


def shown(row: RateImport, *, trouble: str = "") -> dict[str, Any]:
    """What a page says about an import, and what confirming it would name. A card that no longer fits says why."""
    try:
        row = rates_import.look(row, now=utc_now())
    except DomainError as error:
        trouble = trouble or error.message
    difference = row.difference
    return {
        "import": row,
        "difference": difference,
        "is_empty": rates_import.is_empty(difference),
        "seen": rates_import.fingerprint(difference),
        "trouble": trouble,
    }


def _difference(request: HttpRequest, row: RateImport, *, trouble: str = "", status: int = 200) -> HttpResponse:
    return render(request, "billing/ratecard_import.html", shown(row, trouble=trouble), status=status)
