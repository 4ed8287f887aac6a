"""The schema as JSON, and a page that shows it: Swagger UI from our own static files, with a content policy of its own."""

from csp.constants import SELF, UNSAFE_INLINE
from csp.decorators import csp_update
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.renderers import OpenApiJsonRenderer
from drf_spectacular.views import SpectacularAPIView

from api.base import JSONAlways


class Schema(SpectacularAPIView):
    """Open to everybody: it tells of no organization."""

    renderer_classes = [OpenApiJsonRenderer]
    content_negotiation_class = JSONAlways


@require_safe
@csp_update({"style-src": [SELF, UNSAFE_INLINE], "img-src": [SELF, "data:"]})
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "api/docs.html")
