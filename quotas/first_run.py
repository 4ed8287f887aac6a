"""Getting started: what a new organization has still to do, told from what there is. All that is kept is that it was put away.

It stands on the overview of who looks after the pool, until everything is done, until it is put away, or until the first request is
a week old: then the organization runs, whatever it has chosen not to set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from accounts import audit, display, permissions
from accounts.models import AuditEvent, Member, Organization, User
from accounts.permissions import Action
from billing.models import Subscription, UsageHour
from quotas import pool_door
from quotas.models import Limit

GOES_ON = timedelta(days=7)
PUT_AWAY = "organization.first_run_put_away"


@dataclass(frozen=True, slots=True)
class Step:
    """`ways`: what can be done for it, the first one first: (text, address). `waits`: why it cannot be done yet, "" if it can."""

    name: str
    title: str
    text: str
    is_done: bool
    ways: Sequence[tuple[str, str]]
    waits: str = ""


@dataclass(frozen=True, slots=True)
class FirstRun:
    steps: Sequence[Step]

    @property
    def current(self) -> str:
        """The name of the first step that can be done."""
        return next((step.name for step in self.steps if not step.is_done and not step.waits), "")

    @property
    def left(self) -> int:
        return sum(not step.is_done for step in self.steps)


def of(member: Member, *, now: datetime) -> FirstRun | None:
    """None for who does not look after the pool, and where it is over. One query where it is over, six at most."""
    if not permissions.can(member, Action.MANAGE_POOL):
        return None
    organization = member.organization
    first = UsageHour.objects.filter(organization=organization).order_by("hour").values_list("hour", flat=True).first()
    if first is not None and first < now - GOES_ON:
        return None
    plan = Subscription.objects.active().filter(organization=organization, member=None).select_related("plan").first()
    has_account = _has_account(organization, plan)
    people = Member.objects.for_organization(organization).current().count()
    has_limit = Limit.objects.for_organization(organization).exists()
    quota = plan.plan.quota if plan is not None else None
    steps = _steps(organization, has_account, people, has_limit, first is not None, quota)
    if all(step.is_done for step in steps) or AuditEvent.objects.filter(organization=organization, action=PUT_AWAY).exists():
        return None
    return FirstRun(steps)


def lacks_accounts(organization: Organization) -> bool:
    """Is every request refused, because no account has ever joined? Two queries."""
    return not _has_account(
        organization, Subscription.objects.active().filter(organization=organization, member=None).select_related("plan").first()
    )


def _has_account(organization: Organization, plan: Subscription | None) -> bool:
    """In a pool of its own, or in one of the operator's that the plan offers."""
    return pool_door.routing().has_account(organization, plan.plan.slug if plan is not None else "")


def put_away(organization: Organization, *, by: User | None) -> None:
    """For everybody who would see it. A second time changes nothing."""
    with transaction.atomic():
        organization = Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if not AuditEvent.objects.filter(organization=organization, action=PUT_AWAY).exists():
            audit.record(organization, actor=by, action=PUT_AWAY, object_type="organization", object_id=str(organization.uuid))


def _steps(
    organization: Organization, has_account: bool, people: int, has_limit: bool, is_used: bool, quota: int | None
) -> list[Step]:
    def at(route: str, more: str = "") -> str:
        return reverse(route, kwargs={"slug": organization.slug}) + more

    members = ngettext("%(n)d person is here, you.", "%(n)d people are here.", people) % {"n": people}
    holds = _("The plan’s quota of %(quota)s credits holds for all.") % {"quota": display.credits(quota)} if quota else ""
    return [
        Step(
            "account",
            _("Add the first account to the pool"),
            _("A ChatGPT sign-in, an API key, or any OpenAI-compatible endpoint. One is enough to begin; everyone’s traffic goes "
              "through it until you add more."),
            has_account,
            ((_("Add an API key"), at("pool", "?add=key")), (_("Sign in in a browser"), at("pool", "?add=browser")),
             (_("Import auth.json"), at("pool", "?add=files"))),
        ),
        Step(
            "invite",
            _("Invite your developers"),
            _("Each gets one key and one page.") + f" {members}",
            people > 1,
            ((_("Invite member"), at("members", "?invite=#invite")),),
        ),
        Step(
            "limits",
            _("Set limits"),
            (_("Nobody has a limit until you set one.") + f" {holds}").strip(),
            has_limit,
            ((_("Set the first limit"), at("members", "?new=#new-limit")),),
        ),
        Step(
            "request",
            _("Send one request"),
            _("Copy your key into Codex CLI and ask it anything. The first request shows here a few seconds after it ends."),
            is_used,
            ((_("Copy my key"), at("key")),),
            "" if has_account else _("Waits for the first account: without one every request would be refused."),
        ),
    ]  # fmt: skip
