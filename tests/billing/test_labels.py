"""Names of what usage was counted under."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.labels import Labels
from tests import factories

pytestmark = pytest.mark.django_db


def test_an_account_that_is_gone_is_asked_for_once() -> None:
    organization = factories.organization()
    account, _ = factories.openai_account(organization, label="Main key")
    labels = Labels(organization)
    with CaptureQueriesContext(connection) as queries:
        for _ in range(50):
            found = labels.accounts([account.pk, account.pk + 1000, None])
            assert (found[account.pk].name, found.get(account.pk + 1000)) == ("Main key", None)
    assert len(queries) == 1
