"""What tests of joining share: the scripted upstream as the install's upstreams and issuer."""

from typing import Any

import pytest

from tests.upstream import ScriptedUpstream


@pytest.fixture
def remote(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    settings.UPSTREAM_AUTH_URL = upstream.url
    settings.UPSTREAM_CHATGPT_URL = f"{upstream.url}/backend-api"
    settings.UPSTREAM_OPENAI_URL = f"{upstream.url}/v1"
    settings.UPSTREAM_ANTHROPIC_URL = f"{upstream.url}/v1"
    return upstream
