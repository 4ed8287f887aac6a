"""The provider of identities that tests of this folder sign in at."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import secrets
from tests.flows.oidc_provider import OidcProvider


@pytest.fixture(scope="module")
def running() -> Iterator[OidcProvider]:
    with OidcProvider() as provider:
        secrets.register(provider.client_secret, "client secret of a provider")
        yield provider


@pytest.fixture
def okta(running: OidcProvider, settings: Any) -> OidcProvider:
    running.reset()
    settings.UPSTREAM_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    settings.PUBLIC_URL = "http://testserver"
    return running
