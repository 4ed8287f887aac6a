"""Rows for tests, made by the domain functions that make them in the product; every secret is registered."""

import secrets as random_secrets
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from accounts import keys, members, organizations, teams
from accounts.models import ApiKey, Member, Organization, Team
from billing import subscriptions
from billing.models import Plan, Subscription
from config.clock import utc_now
from routing import accounts as pool_accounts
from routing.models import PoolAccount
from tests import secrets


def unique(stem: str) -> str:
    return f"{stem}-{random_secrets.token_hex(5)}"


def organization(
    *, plan: str | None = "plus", timezone: str = "UTC", name: str | None = None, anchor: date | None = None
) -> Organization:
    """An organization of a name of its own, on `plan` (None: without a subscription), whose period begins at `anchor`: today."""
    made = organizations.create(name or unique("Org"), by=None, timezone=timezone)
    if plan is not None:
        subscription(made, plan=plan, anchor=anchor)
    return Organization.objects.get(pk=made.pk)


def subscription(
    organization: Organization, *, plan: str = "plus", member: Member | None = None, anchor: date | None = None
) -> Subscription:
    return subscriptions.start(organization, Plan.objects.get(slug=plan), now=utc_now(), member=member, anchor=anchor)


def team(organization: Organization, name: str | None = None) -> Team:
    return teams.named(organization, name or unique("Team"), by=None)


def member(organization: Organization, *, role: str = "developer", team: Team | None = None, password: str | None = None) -> Member:
    email = f"{unique(role)}@{organization.slug}.example"
    if password is not None:
        secrets.register(password, "password")
    return members.add(organization, email, role=role, by=None, team=team, password=password)


def password() -> str:
    return secrets.register(random_secrets.token_urlsafe(18), "password")


@dataclass(frozen=True, slots=True)
class Key:
    row: ApiKey
    secret: str = field(repr=False)


def api_key(member: Member, **fields: Any) -> Key:
    issued = keys.issue(member, name=fields.pop("name", "laptop"), by=None, now=utc_now(), **fields)
    secrets.register(issued.secret, "gateway key")
    secrets.register(issued.secret.split("_")[2], "gateway key's secret")
    return Key(issued.key, issued.secret)


def openai_account(organization: Organization, *, label: str | None = None, base_url: str | None = None) -> tuple[PoolAccount, str]:
    """An account by API key, and the key that the upstream will see."""
    return key_account(organization, label=label, base_url=base_url)


def key_account(
    organization: Organization,
    *,
    kind: str = "openai",
    label: str | None = None,
    base_url: str | None = None,
    models: list[str] | None = None,
) -> tuple[PoolAccount, str]:
    """An account by API key of any kind, and the key that the upstream will see."""
    prefix = "sk-ant-" if kind == "anthropic" else "sk-"
    token = secrets.register(prefix + random_secrets.token_urlsafe(32), "upstream API key")
    row = pool_accounts.add_key(
        organization, token, kind=kind, label=label or unique("key"), base_url=base_url, models=models, by=None, now=utc_now()
    )
    return row, token


def chatgpt_account(organization: Organization, auth_json: dict[str, Any], *, label: str | None = None) -> PoolAccount:
    return pool_accounts.add_chatgpt(
        organization, auth_json, label=label or unique("sign-in"), accept_terms=True, by=None, now=utc_now()
    )
