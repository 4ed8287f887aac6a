"""/health/status tells what is degraded, for nobody in particular."""

import pytest
from django.test import Client

from config.clock import utc_now
from quotas.models import Drift
from tests import factories

pytestmark = pytest.mark.django_db


def test_drift_is_counted_and_degrades(client: Client) -> None:
    Drift.objects.update(repaired_at=utc_now())
    assert client.get("/health/status").json() == {
        "status": "ok",
        "degraded": [],
        "drift": {"differences": 0, "organizations": 0, "since": None},
    }
    organization = factories.organization()
    found_at = utc_now()
    for field in ("period credits", "period tokens"):
        Drift.objects.create(
            organization=organization, found_at=found_at, kind="total", record="o", field=field, expected=1, counted=2
        )
    answer = client.get("/health/status").json()
    assert (answer["status"], answer["degraded"]) == ("degraded", ["drift"])
    assert (answer["drift"]["differences"], answer["drift"]["organizations"]) == (2, 1)
    assert organization.slug not in str(answer)
