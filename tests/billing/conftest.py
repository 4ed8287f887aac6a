"""What the tests of walks share: the database also holds what other tests have committed."""

import pytest
from django.db.models import F

from billing.models import Subscription, SubscriptionPeriod


@pytest.fixture
def nobody_else(db: None) -> None:
    """No other subscription is due, until this test is rolled back: a walk into the future would open years of theirs."""
    Subscription.objects.active().update(ended_at=F("started_at"))
    SubscriptionPeriod.objects.filter(closed_at=None).update(closed_at=F("ends_at"))
