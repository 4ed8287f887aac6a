"""An organization without an account, its owner and lead, and what they do to add one."""

import json
import re
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from accounts.models import Member
from routing.models import PoolAccount, SignInFlow
from tests import factories, secrets
from tests.pages import made
from tests.upstream import ScriptedUpstream


def lead_to(upstream: ScriptedUpstream, settings: Any) -> ScriptedUpstream:
    """Sign-ins, models and keys are asked there."""
    settings.UPSTREAM_AUTH_URL = upstream.url
    settings.UPSTREAM_CHATGPT_URL = f"{upstream.url}/backend-api"
    settings.UPSTREAM_OPENAI_URL = f"{upstream.url}/v1"
    settings.UPSTREAM_ANTHROPIC_URL = f"{upstream.url}/v1"
    return upstream


class World:
    def __init__(self) -> None:
        self.organization = factories.organization()
        self.owner = factories.member(self.organization, role="owner")
        self.lead = factories.member(self.organization, role="lead")

    def accounts(self) -> list[PoolAccount]:
        return list(PoolAccount.objects.for_organization(self.organization))

    def flows(self) -> list[SignInFlow]:
        return list(SignInFlow.objects.filter(organization=self.organization))


def post(client: Client, member: Member, path: str, data: dict[str, Any], **options: Any) -> Any:
    answered = client.post(made.path(member, f"pool/{path}"), data, **options)
    secrets.record_answer(f"POST pool/{path}", answered.content)
    return answered


def begin(client: Client, member: Member, way: str = "browser", **data: str) -> str:
    """Begins a sign-in and returns the address of the page on which it goes on."""
    answered = post(client, member, f"add/{way}", {"accept_terms": "on", **data})
    assert answered.status_code == 302, answered.content.decode()
    return str(answered["location"])


def flow_of(address: str) -> str:
    return re.search(r"flow=([0-9a-f-]{36})", address)[1]  # type: ignore[index]


def text(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def link_in(page: str) -> str:
    return re.search(r'href="([^"]+)"[^>]*>Open the sign-in page', page)[1].replace("&amp;", "&")  # type: ignore[index]


def notice(client: Client, answered: Any) -> str:
    """What the page that an answer leads to says."""
    page = client.get(answered["location"]).content.decode()
    [found] = re.findall(r'<div class="alert \w+" role="status">.*?<p>(.*?)</p>', page, re.S)
    return str(found)


def signed_in(client: Client, remote: ScriptedUpstream, address: str) -> str:
    """Opens the link that the page shows and returns the address that the browser ends at."""
    return remote.sign_in(link_in(client.get(address).content.decode()))


def key(prefix: str = "sk-") -> str:
    return secrets.register(f"{prefix}{factories.unique('test')}-{'k' * 30}", "upstream API key")


def file(auth: object, name: str = "auth.json") -> SimpleUploadedFile:
    content = auth if isinstance(auth, bytes) else json.dumps(auth).encode()
    return SimpleUploadedFile(name, content, content_type="application/json")
