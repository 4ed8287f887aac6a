"""A row, or thirty, of every model that the admin shows, of organizations whose every word carries a mark."""

import itertools
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any
from uuid import uuid4

from allauth.mfa.models import Authenticator
from allauth.socialaccount.models import SocialAccount
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.db.models import Model

from accounts.models import (
    ApiKey,
    ApiToken,
    AuditEvent,
    AuditHead,
    IdempotentCall,
    IdentityProvider,
    Invitation,
    Job,
    Member,
    Organization,
    Team,
    User,
)
from billing.models import (
    CreditLot,
    Invoice,
    InvoiceLine,
    InvoiceSeries,
    LedgerEntry,
    MonthlyExport,
    MonthlySend,
    Plan,
    Purchase,
    Rate,
    RateAlias,
    RateCard,
    RateImport,
    RateOverride,
    Subscription,
    SubscriptionPeriod,
    UsageHour,
    UsageRecord,
)
from config.clock import utc_now
from quotas.models import (
    Alert,
    AlertDelivery,
    AlertRule,
    DeadLetter,
    Drift,
    Limit,
    LimitBoost,
    LimitRequest,
    ModelFilter,
    Refusal,
    UsageDrain,
    WebhookEndpoint,
)
from routing.models import ModelFallback, Pool, PoolAccount, SignInFlow

OURS: list[type[Model]] = [
    *(model for label in ("accounts", "billing", "routing", "quotas") for model in apps.get_app_config(label).get_models()),
    Authenticator,
    UserSession,
    SocialAccount,
]
_numbers = itertools.count(1)


def word(length: int = 10) -> str:
    return secrets.token_hex(length)[:length]


@dataclass
class Cast:
    """Organizations with a person, a team, a key, a plan and so on in each; `made` are rows by model."""

    mark: str
    secret: str = field(default_factory=lambda: f"SECRET{word(16)}", repr=False)
    made: dict[type[Model], list[Any]] = field(default_factory=dict)

    def of(self, model: type[Model], number: int) -> Any:
        rows = self.made[model]
        return rows[number % len(rows)]

    def name(self, what: str) -> str:
        return f"{self.mark} {what} {next(_numbers)}"

    @property
    def organization(self) -> Organization:
        found: Organization = self.made[Organization][0]
        return found

    def marks(self) -> set[str]:
        """What names a row of this cast, and nobody else's."""
        return {self.mark, self.secret} | {str(row.uuid) for rows in self.made.values() for row in rows if hasattr(row, "uuid")}


def cast(organizations: list[Organization], mark: str) -> Cast:
    return Cast(mark, made={Organization: organizations})


def organizations(count: int, mark: str) -> list[Organization]:
    rows = [Organization(name=f"{mark} {number}", slug=f"{mark.lower()}-{number}") for number in range(count)]
    return Organization.objects.bulk_create(rows)


def add(of: Cast, count: int) -> None:
    """`count` more rows of every model, of the cast's organizations in turn; of those that an organization has one of, one each."""
    for model, build in BUILT.items():
        known = of.made.setdefault(model, [])
        start = len(known)
        if model in ONE_EACH:
            count_now = min(count, len(of.made[Organization]) - start)
        else:
            count_now = count
        rows = [build(of, number) for number in range(start, start + count_now)]
        known.extend(model._default_manager.bulk_create(rows))


def _funds(amount: int) -> dict[str, Any]:
    return {"credits": amount, "from_quota": amount}


def _now() -> Any:
    return utc_now() - timedelta(minutes=next(_numbers))


ONE_EACH = {IdentityProvider, UsageDrain, AuditHead, AlertRule, MonthlyExport}
Build = Callable[[Cast, int], Model]


def _of(c: Cast, n: int) -> dict[str, Any]:
    return {"organization": c.of(Organization, n)}


def _person(c: Cast, n: int) -> dict[str, Any]:
    return {"organization": c.of(Organization, n), "member": c.of(Member, n)}


BUILT: dict[type[Model], Build] = {
    User: lambda c, n: User(email=f"{c.mark.lower()}-{next(_numbers)}@people.example", password=c.secret, first_name=c.mark),
    Team: lambda c, n: Team(name=c.name("team"), **_of(c, n)),
    Member: lambda c, n: Member(user=c.of(User, n), team=c.of(Team, n), **_of(c, n)),
    Invitation: lambda c, n: Invitation(
        email=f"{c.mark}@invited.example", digest=c.secret + word(8), expires_at=_now(), **_of(c, n)
    ),
    ApiKey: lambda c, n: ApiKey(
        name=c.name("key"), public_id=word(), digest=c.secret.encode(), pepper_id=c.secret, **_person(c, n)
    ),
    ApiToken: lambda c, n: ApiToken(
        name=c.name("token"), public_id=word(), digest=c.secret.encode(), pepper_id=c.secret, scopes=["usage:read"], **_person(c, n)
    ),
    IdentityProvider: lambda c, n: IdentityProvider(
        name=c.name("provider"), issuer="https://id.example", client_id="weir", client_secret=c.secret, **_of(c, n)
    ),
    IdempotentCall: lambda c, n: IdempotentCall(
        key=c.secret + word(), route=f"POST /{c.mark}", body_digest=os.urandom(32), answer=c.secret, started_at=_now(),
        **_person(c, n),
    ),
    Job: lambda c, n: Job(kind="export", title=c.name("job"), **_person(c, n)),
    AuditEvent: lambda c, n: AuditEvent(
        actor=c.of(User, n), actor_label=c.mark, action="x.y", object_type="x", object_id=c.mark, **_of(c, n)
    ),
    AuditHead: lambda c, n: AuditHead(number=0, digest=f"{c.mark}{word()}", **_of(c, n)),
    Authenticator: lambda c, n: Authenticator(user=c.of(User, n), type="totp", data={"secret": c.secret}),
    UserSession: lambda c, n: UserSession(
        user=c.of(User, n), ip="192.0.2.7", session_key=f"{c.secret}{word(8)}", user_agent=c.mark
    ),
    SocialAccount: lambda c, n: SocialAccount(
        user=c.of(User, n), provider=str(uuid4()), uid=c.name("uid"), extra_data={"token": c.secret}
    ),
    Plan: lambda c, n: Plan(slug=f"{c.mark.lower()}-{next(_numbers)}", name=c.name("plan"), is_offered=False, base_quota=1),
    RateCard: lambda c, n: RateCard(name=c.name("card"), sha256=secrets.token_hex(32)),
    Rate: lambda c, n: Rate(card=c.of(RateCard, n), model=c.name("model"), valid_from=_now()),
    RateAlias: lambda c, n: RateAlias(card=c.of(RateCard, n), alias=c.name("alias"), model="m", valid_from=_now()),
    RateImport: lambda c, n: RateImport(
        name=c.name("import"), sha256=secrets.token_hex(32), text="{}", uploaded_by=c.of(User, n)
    ),
    RateOverride: lambda c, n: RateOverride(model=c.name("model"), valid_from=_now(), created_by=c.of(User, n), **_of(c, n)),
    Subscription: lambda c, n: Subscription(
        plan=c.of(Plan, n), next_plan=c.of(Plan, n + 1), next_plan_at=_now(), anchor=_now().date(), started_at=_now(),
        ended_at=_now(), **_person(c, n),
    ),
    SubscriptionPeriod: lambda c, n: SubscriptionPeriod(
        subscription=c.of(Subscription, n), plan=c.of(Plan, n), starts_at=(at := _now()), ends_at=at + timedelta(days=7), quota=10,
        terms={"plan": c.mark}, closed_at=at, **_of(c, n),
    ),
    UsageRecord: lambda c, n: UsageRecord(
        request_id=f"req_{word(20)}", part=0, admitted_at=(at := _now()), ended_at=at, team=c.of(Team, n), key=c.of(ApiKey, n),
        model_asked=c.name("model"), model_served=c.name("model"), source="o", period_starts_at=at, status="failed",
        is_implausible=True, stream_id="1-0", **_funds(7), **_person(c, n),
    ),
    UsageHour: lambda c, n: UsageHour(
        hour=utc_now().replace(minute=0, second=0, microsecond=0), member_id=c.of(Member, n).pk, key_id=next(_numbers),
        model=c.name("model"), **_funds(7), **_of(c, n),
    ),
    CreditLot: lambda c, n: CreditLot(
        kind="grant", amount=5, reference=c.name("lot"), note=c.mark, created_at=_now(), **_of(c, n)
    ),
    LedgerEntry: lambda c, n: LedgerEntry(
        kind="grant", debit="credits", credit="issued", amount=5, reference=c.name("entry"), occurred_at=_now(),
        lot=c.of(CreditLot, n), actor=c.of(User, n), reason=c.mark, **_of(c, n),
    ),
    Purchase: lambda c, n: Purchase(
        provider="pay", payment_id=c.name("payment"), credits=5, amount=1, currency="USD", payload={"from": c.mark}, **_of(c, n)
    ),
    InvoiceSeries: lambda c, n: InvoiceSeries(name=f"{c.mark[:8]}{next(_numbers)}"),
    Invoice: lambda c, n: Invoice(
        series=c.of(InvoiceSeries, n), number=next(_numbers), currency="USD", total=1, credits=5, issued_at=_now(),
        customer_name=c.name("customer"), frozen={"number": c.name("invoice")}, subscription=c.of(Subscription, n),
        period=c.of(SubscriptionPeriod, n), **_of(c, n),
    ),
    InvoiceLine: lambda c, n: InvoiceLine(
        invoice=c.of(Invoice, n), position=next(_numbers), kind="plan", description=c.name("line"), **_of(c, n)
    ),
    MonthlyExport: lambda c, n: MonthlyExport(files=["usage"], **_of(c, n)),
    MonthlySend: lambda c, n: MonthlySend(
        month=date(2000, 1, 1) + timedelta(days=next(_numbers)), job=c.of(Job, n), error=c.mark, state="failed", **_of(c, n)
    ),
    ModelFilter: lambda c, n: ModelFilter(name=c.name("filter"), model_names=["m"], **_of(c, n)),
    Limit: lambda c, n: Limit(
        scope="member", metric="credits", window="day", amount=5_000_000, model_filter=c.of(ModelFilter, n), **_person(c, n)
    ),
    LimitRequest: lambda c, n: LimitRequest(
        limit=c.of(Limit, n), metric="credits", window="day", asked_amount=5, until=_now(), note=c.name("note"),
        decided_by=c.of(User, n), **_person(c, n),
    ),
    LimitBoost: lambda c, n: LimitBoost(
        limit=c.of(Limit, n), extra=5, starts_at=(at := _now()), ends_at=at + timedelta(days=1), reason=c.name("boost"),
        granted_by=c.of(User, n), **_of(c, n),
    ),
    Refusal: lambda c, n: Refusal(
        member_id=c.of(Member, n).pk, key_id=next(_numbers), minute=(at := _now()), last_at=at, code="x", scope_name=c.mark,
        message=c.name("refusal"), **_of(c, n),
    ),
    Drift: lambda c, n: Drift(
        found_at=_now(), kind="counter", record=c.name("record"), field="used", expected=1, counted=2, **_of(c, n)
    ),
    UsageDrain: lambda c, n: UsageDrain(drained_id=f"{c.mark}", **_of(c, n)),
    DeadLetter: lambda c, n: DeadLetter(
        organization_id=c.of(Organization, n).pk, stream_id=f"{next(_numbers)}-1", raw=c.secret.encode(), error=c.mark
    ),
    Alert: lambda c, n: Alert(
        kind="anomaly", scope=c.name("scope"), period="p", told_at=_now(), facts={"name": c.mark}, **_person(c, n)
    ),
    AlertRule: lambda c, n: AlertRule(kind="drift", **_of(c, n)),
    WebhookEndpoint: lambda c, n: WebhookEndpoint(
        name=c.name("endpoint"), format="standard", origin=f"https://{c.mark.lower()}.example", url=c.secret, secret=c.secret,
        previous_secret=c.secret, **_of(c, n),
    ),
    AlertDelivery: lambda c, n: AlertDelivery(
        alert=c.of(Alert, n), channel="webhook", endpoint=c.of(WebhookEndpoint, n), status="failed", created_at=_now(),
        error=c.mark, **_of(c, n),
    ),
    Pool: lambda c, n: Pool(name=c.name("pool"), **_of(c, n)),
    PoolAccount: lambda c, n: PoolAccount(
        pool=c.of(Pool, n), kind="openai", label=c.name("account"), identity=word(20), email=f"{c.mark}@account.example",
        access_token=c.secret, refresh_token=c.secret, withdrawal_digest=c.secret + word(), accepted_by=c.of(User, n),
    ),
    SignInFlow: lambda c, n: SignInFlow(
        kind="device", label=c.name("flow"), sealed=c.secret, started_by=c.of(User, n), started_at=_now(), expires_at=_now(),
        **_of(c, n),
    ),
    ModelFallback: lambda c, n: ModelFallback(
        model=c.name("model"), fallback=c.name("other"), position=next(_numbers), **_of(c, n)
    ),
}  # fmt: skip
