"""The demo's tenants: people, keys, accounts, limits and 30 days of use. A second run keeps all of it and adds the missing days."""

import contextlib
import json
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
from django.contrib.auth import hashers
from django.db import transaction

from accounts import keys, members, organizations, snapshots, teams
from accounts.models import ApiKey, Member, Organization, User
from billing import subscriptions, usage
from billing.models import Plan, UsageRecord
from config import scope, snapshot
from config.clock import utc_now
from config.launch.secrets import write_private
from config.redis import sync_client, translated
from demo import cast, history, money, notices
from demo.cast import OPERATOR, Person, Tenant
from quotas import engine, limits, rebuild, records
from routing import accounts as pool_accounts
from routing.errors import AccountWithdrawn
from routing.models import PoolAccount

LOGINS = "demo-logins.json"
BEFORE = timedelta(days=45)
"""How long ago the organizations began: before the oldest day that is told of."""


@dataclass
class Logins:
    """What only this file knows: passwords by e-mail, key texts by organization and e-mail, the upstream keys. 0600."""

    path: Path
    passwords: dict[str, str] = field(default_factory=dict, repr=False)
    keys: dict[str, str] = field(default_factory=dict, repr=False)
    upstream_keys: dict[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, path: Path) -> "Logins":
        try:
            held = json.loads(path.read_text())
        except FileNotFoundError:
            held = {}
        return cls(path, **held)

    def save(self) -> None:
        kept = {"passwords": self.passwords, "keys": self.keys, "upstream_keys": self.upstream_keys}
        write_private(self.path, json.dumps(kept, indent=1))

    def password(self, email: str) -> str:
        return self.passwords.setdefault(email, secrets.token_urlsafe(12))


def run(upstream_url: str, var_dir: Path, now: datetime | None = None) -> list[dict[str, Any]]:
    """Makes what is missing; returns `organizations` of demo.json. `var_dir` keeps the passwords and keys.

    The accounts are minted at the scripted upstream, whose terms the demo accepts. Raises what the domain functions raise.
    """
    with scope.everything():
        return _run(upstream_url, var_dir, now or utc_now())


def _run(upstream_url: str, var_dir: Path, now: datetime) -> list[dict[str, Any]]:
    logins = Logins.load(var_dir / LOGINS)
    _operator(logins)
    money.price_plans()
    described = []
    for tenant in cast.TENANTS:
        organization = _organization(tenant, now)
        people = {person.email: _member(organization, person, logins) for person in tenant.people}
        texts = {person.email: _key(organization, people[person.email], logins, now) for person in tenant.people if person.pace}
        # Before anything is priced or routed: a crash later must not lose what nobody else knows.
        logins.save()
        _accounts(tenant, organization, people, upstream_url, logins, now)
        logins.save()
        _limits(tenant, organization, texts)
        if _history(tenant, organization, people, texts, now):
            _recount(organization)
        money.sell(tenant, organization, now)
        money.ask(tenant, organization, people, now)
        money.limit_models(organization)
        notices.tell(tenant, organization, people, now)
        notices.make(organization, people, now)
        described.append(
            {
                "slug": organization.slug,
                "name": organization.name,
                "members": [
                    {
                        "email": person.email,
                        "role": person.role,
                        "password": logins.passwords[person.email],
                        "key": texts.get(person.email),
                    }
                    for person in tenant.people
                ],
            }
        )
    _begun(cast.TERN, logins, now)
    money.close_periods(now)
    return described


def operator_login(var_dir: Path) -> tuple[str, str]:
    """E-mail and password of the superuser who sees the admin. Raises KeyError before `run`."""
    return OPERATOR, Logins.load(var_dir / LOGINS).passwords[OPERATOR]


# ------------------------------------------------------------------------------------------------------------ people


def _operator(logins: Logins) -> None:
    user = User.objects.filter(email=OPERATOR).first() or User.objects.create_superuser(OPERATOR, None)
    _give_password(user, logins)


def _give_password(user: User, logins: Logins) -> None:
    """The one of the file; when the file was lost, a new one."""
    is_known = user.email in logins.passwords
    password = logins.password(user.email)
    if not is_known or not user.has_usable_password():
        user.password = _hashed(password)
        user.save(update_fields=["password"])


def _hashed(password: str) -> str:
    """96 random bits need no slow hash, and sixteen slow ones would take seconds; the first sign-in makes a slow one of it."""
    quick = hashers.PBKDF2PasswordHasher()
    if quick.algorithm not in hashers.get_hashers_by_algorithm():
        return hashers.make_password(password)
    return quick.encode(password, quick.salt(), 1000)


def _organization(tenant: Tenant, now: datetime) -> Organization:
    organization = Organization.objects.filter(slug=tenant.slug).first()
    if organization is not None:
        return organization
    with transaction.atomic():
        organization = organizations.create(tenant.name, timezone=tenant.timezone, by=None)
        subscriptions.start(organization, Plan.objects.get(slug=tenant.plan), now=now - BEFORE)
        organizations.show_pool_to_developers(organization, True, by=None)
        Organization.objects.filter(pk=organization.pk).update(created_at=now - BEFORE)
    return organization


def _begun(tenant: Tenant, logins: Logins, now: datetime) -> None:
    """An organization with its owner and nothing else: the first steps, and every page while it is empty."""
    if Organization.objects.filter(slug=tenant.slug).exists():
        return
    with transaction.atomic():
        organization = organizations.create(tenant.name, timezone=tenant.timezone, by=None)
        subscriptions.start(organization, Plan.objects.get(slug=tenant.plan), now=now)
    for person in tenant.people:
        _member(organization, person, logins)


def _member(organization: Organization, person: Person, logins: Logins) -> Member:
    """Somebody whom a user of the demo has removed stays removed: then a new member takes the name."""
    member = Member.objects.for_organization(organization).current().filter(user__email=person.email).first()
    if member is None:
        team = teams.named(organization, person.team, by=None) if person.team else None
        member = members.add(organization, person.email, role=person.role, team=team, name=person.name, by=None)
    assert member.user is not None
    _give_password(member.user, logins)
    return member


def _key(organization: Organization, member: Member, logins: Logins, now: datetime) -> str:
    """The text of the key in the file, as long as it is good; else of a new one."""
    assert member.user is not None
    name = f"{organization.slug}/{member.user.email}"
    held = logins.keys.get(name, "")
    parsed = keys.parse(held)
    known = snapshots.load(organization.pk).keys.get(parsed.public_id) if parsed else None
    if known is not None and known.member_id == member.pk and keys.verify(held, known, now=now):
        return held
    issued = keys.issue(member, name="Codex on my laptop", by=member.user, now=now)
    logins.keys[name] = issued.secret
    return issued.secret


# -------------------------------------------------------------------------------------------------- accounts, limits


def _accounts(
    tenant: Tenant, organization: Organization, people: dict[str, Member], upstream_url: str, logins: Logins, now: datetime
) -> None:
    """The upstream forgets its tokens when it stops, so each run signs every account in again."""
    owner = next(people[person.email].user for person in tenant.people if person.role == Member.Role.OWNER)
    with httpx.Client(base_url=upstream_url, timeout=10) as upstream:
        for one in tenant.sign_ins:
            answer = upstream.post(
                "/control/mint",
                json={
                    "account_id": one.account_id,
                    "user_id": f"user_{one.account_id.removeprefix('acct_')}",
                    "email": one.email,
                    "plan": one.plan,
                    "short_percent": one.short_percent,
                    "week_percent": one.week_percent,
                },
            )
            answer.raise_for_status()
            # Who tried the link of an account's person finds it withdrawn still.
            with contextlib.suppress(AccountWithdrawn):
                pool_accounts.add_chatgpt(organization, answer.json(), label=one.label, accept_terms=True, by=owner, now=now)
    key = logins.upstream_keys.setdefault(tenant.slug, "sk-demo-" + secrets.token_urlsafe(24))
    pool_accounts.add_key(organization, key, label=tenant.api_key_label, by=owner, now=now)


def _limits(tenant: Tenant, organization: Organization, texts: dict[str, str]) -> None:
    """Once: what a user of the demo has changed stays."""
    if organization.limits.exists():
        return
    for cap in tenant.caps:
        of = cap.of
        if cap.scope == "key":
            parsed = keys.parse(texts[of])
            assert parsed is not None
            of = parsed.public_id
        limits.set_limit(organization, scope=cap.scope, of=of, metric=cap.metric, window=cap.window, amount=cap.amount)


# ----------------------------------------------------------------------------------------------------------- history


def _history(tenant: Tenant, organization: Organization, people: dict[str, Member], texts: dict[str, str], now: datetime) -> int:
    """Writes the days that are not told yet; how many records."""
    loaded = snapshot.load(organization.pk)
    subscription = next(one for one in loaded.billing.subscriptions if one.member_id is None)
    zone = ZoneInfo(organization.timezone)
    told = UsageRecord.objects.for_organization(organization).filter(stream_id=history.MARK).order_by("-admitted_at").first()
    carriers = _carriers(organization)
    workers = [_worker(person, people[person.email], texts[person.email]) for person in tenant.people if person.pace]
    events = [
        event
        for day in history.days_until(now, zone, told.admitted_at.astimezone(zone).date() if told else None)
        for worker in workers
        for event in history.events(
            worker, day, zone=zone, until=now, carriers=carriers, rates=loaded.billing.rates, subscription=subscription
        )
    ]
    events.sort(key=lambda event: (event.admitted_at, event.request_id))
    with transaction.atomic():
        return usage.record(organization.pk, events)


def _worker(person: Person, member: Member, text: str) -> history.Worker:
    parsed = keys.parse(text)
    assert parsed is not None
    key = ApiKey.objects.get(public_id=parsed.public_id)
    return history.Worker(email=person.email, member_id=member.pk, key_id=key.pk, team_id=member.team_id, pace=person.pace)


def _carriers(organization: Organization) -> list[history.Carrier]:
    """Sign-in accounts by their weight; the API key takes what is left over."""
    rows = PoolAccount.objects.without_secrets().filter(pool__organization=organization).order_by("pk")
    today = utc_now().date()
    return [
        history.Carrier(row.pk, row.kind, row.weight_on(today) if row.kind == PoolAccount.Kind.CHATGPT else 400) for row in rows
    ]


def _recount(organization: Organization) -> None:
    """Counters that live already are built again from the log; where there are none, the first request builds them."""
    with translated():
        packed: Any = sync_client().hget(engine.counters_key(organization.pk), "$")
    if packed is not None:
        epoch = records.unpack(packed)[0]
        rebuild.rebuild(organization.pk, expected_epoch=str(epoch), keep_holds=True)
