"""An organization with requests and refusals of three developers, and the request log as somebody reads it."""

import re
from datetime import datetime, timedelta
from typing import Any

from accounts.models import ApiKey, Member
from billing.models import Rate
from config.clock import utc_now
from quotas.models import Refusal
from tests import factories
from tests.pages import made

CREDIT = made.CREDIT
SECRET_LABEL = "Mira's secret Plus"


def refused(key: ApiKey, *, at: datetime | None = None, **fields: Any) -> Refusal:
    at = at or utc_now() - timedelta(minutes=1)
    return Refusal.objects.create(
        **{
            "organization": key.organization,
            "team_id": key.member.team_id,
            "member_id": key.member_id,
            "key_id": key.pk,
            "minute": at.replace(second=0, microsecond=0),
            "last_at": at,
            "code": "limit_reached",
            "scope": "member",
            "scope_name": str(key.member),
            "metric": "credits",
            "window": "day",
            "limit": 300 * CREDIT,
            "used": 28 * CREDIT,
            "held": 0,
            "need": 318 * CREDIT,
            "model": "gpt-6-astra",
            "message": "no",
            **fields,
        }
    )


class World:
    """Quality and Platform with a developer each, and one without a team; a request and a refusal of each."""

    def __init__(self) -> None:
        self.organization = factories.organization(timezone="Europe/Berlin")
        self.quality = factories.team(self.organization, "Quality")
        self.platform = factories.team(self.organization, "Platform")
        self.account, _ = factories.openai_account(self.organization, label=SECRET_LABEL)
        self.developers = {
            "tomasz": factories.member(self.organization, team=self.quality),
            "anselm": factories.member(self.organization, team=self.platform),
            "lena": factories.member(self.organization),
        }
        self.keys = {name: factories.api_key(member, name=f"key of {name}").row for name, member in self.developers.items()}
        now = utc_now()
        self.rows = {
            name: made.used(key, number * CREDIT, at=now - timedelta(seconds=number), model=f"model-{number}", **self.carried())
            for number, (name, key) in enumerate(self.keys.items(), start=1)
        }
        self.refusals = {
            name: refused(key, at=now - timedelta(seconds=10 + number)) for number, (name, key) in enumerate(self.keys.items())
        }

    def carried(self) -> dict[str, Any]:
        pk = self.account.pk
        return {
            "account_id": pk,
            "trace": [{"account_id": pk, "reason": "pace", "candidates": 3, "best": [[pk, 0.4137, 240_173.5]]}],
        }

    def member(self, role: str, team: Any = None) -> Member:
        return factories.member(self.organization, role=role, team=team)

    def names(self, *people: str) -> set[str]:
        return {self.rows[name].request_id for name in people} | {str(self.refusals[name].uuid) for name in people}


def ask(member: Member, query: str = "?range=7d", **options: Any) -> Any:
    return made.signed_in(member).get(made.path(member, f"requests{query}"), **options)


def page(member: Member, query: str = "?range=7d") -> str:
    answered = ask(member, query)
    assert answered.status_code == 200
    return str(answered.content.decode())


def listed(text: str) -> list[str]:
    return re.findall(r'<tbody id="row-([^"]+)"', text)


def link(text: str, name: str) -> str:
    """The query string that Older or Newer leads to; "" where it is not there."""
    found = re.search(rf'<a class="btn small" href="[^"?]*([^"]*)" rel="{ {"Older": "next", "Newer": "prev"}[name] }"', text)
    return found[1].replace("&amp;", "&") if found else ""


def rated() -> Rate:
    return Rate.objects.select_related("card").get(model="gpt-6.1-sol", valid_to=None)


def line(account_id: int | None, credits: int, **fields: Any) -> dict[str, Any]:
    tokens = {"input": 61204, "cached_input": 412672, "cache_write": 0, "output": 8930, "reasoning": 1204}
    return {"model": "gpt-6.1-sol", "rate_id": rated().pk, "account_id": account_id, "credits": credits, **tokens, **fields}
