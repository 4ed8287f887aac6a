"""Everything below `/api/v1/`. Each module of resources tells its own paths in `urls`."""

from django.urls import path

from api import docs, invited, keys, limits, people, refusals, requests_for_more, status, teams, usage
from api.base import Nowhere

urlpatterns = [
    path("schema", docs.Schema.as_view(), name="api_schema"),
    path("docs", docs.docs, name="api_docs"),
    *status.urls,
    *usage.urls,
    *people.urls,
    *teams.urls,
    *invited.urls,
    *keys.urls,
    *limits.urls,
    *requests_for_more.urls,
    *refusals.urls,
    path("<path:rest>", Nowhere.as_view(), name="api_nowhere"),
]
