"""How the pool stands, for who may glance at it: windows, resets and states. No account's name, person or id leaves this module."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from accounts import context, display
from accounts.models import Member
from config.clock import utc_now
from config.redis import RedisUnavailable
from routing import snapshots, standing
from routing.models import PoolAccount
from routing.snapshots import PoolSnapshot
from routing.standing import Gauge, Standing


@dataclass(frozen=True, slots=True)
class Glance:
    """One account without what names it: the how manieth it is, and how it stands."""

    number: int
    is_sign_in: bool
    state: str
    tone: str
    until: datetime | None
    short: Gauge | None
    week: Gauge | None
    is_live: bool


def show(request: HttpRequest, member: Member) -> HttpResponse:
    """The pools that serve the member's team, as one list. One query for the snapshot's version, one for the accounts."""
    now = utc_now()
    found, trouble = standings(member)
    glances = [glance(number, one) for number, one in enumerate(found, 1)]
    carrying = [one for one in glances if one.state in standing.CARRY]
    left, size = standing.total(found)
    resets = [one for one in glances if one.week is not None and one.week.resets_at is not None and one.week.resets_at > now]
    page: dict[str, Any] = {
        **context.frame(member, "pool", now),
        "glances": glances,
        "carrying": carrying,
        "trouble": trouble,
        "has_week": size > 0,
        "left_percent": display.percent_left(int(left * standing.WHOLE), int(size * standing.WHOLE)) if size else 0,
        "next": min(resets, key=lambda one: one.week.resets_at if one.week and one.week.resets_at else now, default=None),
        "back": min((one.until for one in glances if one.state == standing.COOLING and one.until is not None), default=None),
    }
    return render(request, "routing/pool_glance.html", page)


def standings(member: Member) -> tuple[list[Standing], str]:
    """Of the accounts that may serve the member, the oldest first, and what is wrong with the live state."""
    pools = [one for one in snapshots.load(member.organization_id).pools if _serves(one, member)]
    rows = {row.pk: row for row in PoolAccount.objects.without_secrets().filter(pool_id__in=[one.pool_id for one in pools])}
    found: list[Standing] = []
    trouble = ""
    for pool in pools:
        try:
            reading = standing.read(pool)
        except RedisUnavailable:
            reading = None
            trouble = _("The live state does not answer. New requests are refused until it does.")
        found += standing.of_pool(pool, rows, reading)
    return sorted(found, key=lambda one: one.row.pk), trouble


def _serves(pool: PoolSnapshot, member: Member) -> bool:
    """Of the organization's own; the operator's shared ones are nobody's to look into."""
    return pool.organization_id is not None and (not pool.team_ids or member.team_id in pool.team_ids)


def glance(number: int, one: Standing) -> Glance:
    return Glance(number, one.is_sign_in, one.state, one.tone, one.until, one.short, one.week, one.is_live)
