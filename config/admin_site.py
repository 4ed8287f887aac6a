"""The admin's site, for operators, and owners and leads of a whole organization. What a page shows is its own to ask."""

from typing import Any
from uuid import UUID

from django.contrib.auth import REDIRECT_FIELD_NAME
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.templatetags.static import static
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST
from unfold.dataclasses import SearchResult
from unfold.sites import UnfoldAdminSite

from accounts import administration

MOST_FOUND = 100


class Site(UnfoldAdminSite):  # type: ignore[misc]  # unfold has no types
    """Signing in, passwords and second factors are allauth's: the admin has no door of its own."""

    index_title = gettext_lazy("Overview")

    def has_permission(self, request: HttpRequest) -> bool:
        return administration.is_operator(request) or administration.member(request) is not None

    def get_urls(self) -> list[URLPattern]:
        """Without `r/<type>/<id>/`, which looks up any row of any table."""
        urls = [url for url in super().get_urls() if getattr(url, "name", None) != "view_on_site"]
        return [path("organization/<uuid:uuid>/", self.admin_view(require_POST(self.choose)), name="choose"), *urls]

    def each_context(self, request: HttpRequest) -> dict[str, Any]:
        """`zone`: in which the page's times are, by `config.middleware.ScopeMiddleware`; UTC for operators."""
        member = administration.member(request)
        seen = administration.administered(request) if member is not None else []
        return {
            **super().each_context(request),
            "zone": timezone.get_current_timezone(),
            "zone_name": timezone.localtime().tzname(),
            "administrator": member,
            "administered": [row for row in seen if member is not None and row.pk != member.pk],
        }

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """Who is signed in and may come in goes on; who may not is refused; who is not signed in signs in where everybody does."""
        wanted = request.GET.get(REDIRECT_FIELD_NAME, "")
        if not url_has_allowed_host_and_scheme(wanted, {request.get_host()}, require_https=request.is_secure()):
            wanted = reverse("admin:index", current_app=self.name)
        if self.has_permission(request):
            return redirect(wanted)
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect(f"{reverse('account_login')}?{urlencode({REDIRECT_FIELD_NAME: wanted})}")

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        return redirect("account_change_password")

    def password_change_done(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        return redirect("account_change_password")

    def choose(self, request: HttpRequest, uuid: UUID) -> HttpResponse:
        """Another of one's organizations."""
        administration.choose(request, uuid)
        return redirect("admin:index")

    def search(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Pages by their name, of those that the reader may open. Nothing is kept from one search for the next."""
        term = request.GET.get("s", "").strip().lower()
        if not term:
            return HttpResponse()
        found = [
            SearchResult(title=str(model["name"]), description=app["name"], link=model["admin_url"], icon="tag")
            for app in self.get_app_list(request)
            for model in app["models"]
            if term in str(model["name"]).lower() or term in str(app["name"]).lower()
        ][:MOST_FOUND]
        template = "unfold/helpers/command_results.html" if "extended" in request.GET else "unfold/helpers/search_results.html"
        page = Paginator(found, MOST_FOUND)
        context = {"page_obj": page, "results": page.page(1), "page_counter": 0, "execution_time": 0}
        return TemplateResponse(request, template, context, headers={"HX-Trigger": "search"})


def site_header(request: HttpRequest) -> str:
    """Above the navigation: whose admin it is."""
    member = administration.member(request)
    return member.organization.name if member is not None else _("Weir operators")


def show_history(request: HttpRequest) -> bool:
    return administration.is_operator(request)


def stylesheet(request: HttpRequest) -> str:
    return static("css/admin.css")


def script(request: HttpRequest) -> str:
    return static("js/admin.js")
