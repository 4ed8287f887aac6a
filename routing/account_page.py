"""What is posted about an account that is in the pool, and about how the pool chooses. Doors."""

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from accounts import display, tenancy
from accounts.models import Member
from accounts.permissions import Action
from config.clock import utc_now
from config.errors import DomainError
from config.redis import RedisUnavailable
from routing import polls, pools, upkeep
from routing.models import Pool, PoolAccount
from routing.pool_forms import AccountForm, MoveForm, PoolForm, StrategyForm, told
from routing.pool_page import Shown, path, show


def _account(member: Member, uuid: UUID | str) -> PoolAccount:
    """404 for another organization's, and for the operator's shared ones."""
    rows = PoolAccount.objects.without_secrets().select_related("pool")
    return tenancy.owned(rows, member.organization, uuid, field="pool__organization")


def _back(member: Member, account: PoolAccount) -> HttpResponse:
    return redirect(path(member, account.pool))


def _done(request: HttpRequest, member: Member, uuid: UUID, act: Callable[[PoolAccount], str]) -> HttpResponse:
    """Does it, and says on the page what was done, or why nothing was."""
    account = _account(member, uuid)
    try:
        messages.success(request, act(account))
    except DomainError as error:
        messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
    return _back(member, account)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def change_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Name, floor, cap, tier, weight, and what it serves."""
    account = _account(member, uuid)
    form = AccountForm(request.POST, auto_id="account-%s")
    opened = Shown(account_id=str(account.uuid), account_form=form)
    if not form.is_valid():
        return show(request, member, pool=account.pool, shown=opened, status=422)
    try:
        account = upkeep.change(account, form.fields_set(), by=member.user)
    except DomainError as error:
        told(form, "label", error)
        return show(request, member, pool=account.pool, shown=opened, status=error.status)
    messages.success(request, _("%(account)s is as said from the next request on.") % {"account": account.label})
    return _back(member, account)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def make_pool(request: HttpRequest, member: Member) -> HttpResponse:
    """Another pool of the organization; the one of that name, if there is one."""
    form = PoolForm(request.POST, auto_id="pool-%s")
    if not form.is_valid():
        return show(request, member, shown=Shown(pool_form=form), status=422)
    try:
        made = pools.set_pool(member.organization, form.cleaned_data["name"], by=member.user)
    except DomainError as error:
        form.add_error("name", error.message)
        return show(request, member, shown=Shown(pool_form=form), status=error.status)
    said = _("%(pool)s is there. Move accounts into it, or add one.") if made.is_new else _("There is a pool %(pool)s already.")
    messages.success(request, said % {"pool": made.pool.name})
    return redirect(path(member, made.pool))


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def pause_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    def act(account: PoolAccount) -> str:
        upkeep.pause(account, by=member.user)
        return _("%(account)s is paused: it takes no new request, and what runs on it ends there.") % {"account": account.label}

    return _done(request, member, uuid, act)


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def resume_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    def act(account: PoolAccount) -> str:
        upkeep.resume(account, by=member.user)
        return _("%(account)s serves again from the next request on.") % {"account": account.label}

    return _done(request, member, uuid, act)


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def remove_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Takes the account out if its name was typed in."""
    account = _account(member, uuid)
    if request.POST.get("confirm", "").strip() != account.label:
        messages.warning(request, _("Nothing was taken out: the name typed was not %(account)s.") % {"account": account.label})
        return _back(member, account)
    upkeep.remove(account, by=member.user)
    messages.success(
        request,
        _("%(account)s is out of the pool, and its secrets are erased. What it carried stays in the log.")
        % {"account": account.label},
    )
    return _back(member, account)


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def move_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    account = _account(member, uuid)
    form = MoveForm(request.POST)
    if not form.is_valid():
        messages.warning(request, _("Nothing was changed: choose the pool to move it to."))
        return _back(member, account)
    pool = tenancy.owned(Pool.objects.all(), member.organization, form.cleaned_data["pool"])

    def act(account: PoolAccount) -> str:
        pools.move_account(account, pool, by=member.user)
        return _("%(account)s is in %(pool)s now. What was known of its windows comes with the next poll.") % {
            "account": account.label,
            "pool": pool.name,
        }

    return _done(request, member, uuid, act)


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def new_link(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Another link for the account's person, mailed to them and shown in this answer only."""
    account = _account(member, uuid)
    try:
        link = upkeep.new_withdrawal_link(account, by=member.user)
    except DomainError as error:
        messages.warning(request, _("Nothing was changed: %(reason)s") % {"reason": error.message})
        return _back(member, account)
    return show(request, member, pool=account.pool, shown=Shown(link=link, link_of=account))


@require_POST
@tenancy.page(Action.MANAGE_POOL)
def poll_account(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """Asks the account's upstream for its use, now; one that was asked a moment ago is not asked again."""
    account = _account(member, uuid)
    has_answered, said = poll_now(account)
    (messages.success if has_answered else messages.warning)(request, said)
    return _back(member, account)


def poll_now(account: PoolAccount) -> tuple[bool, str]:
    """Whether it answered, and what to say."""
    began, now = time.monotonic(), utc_now()
    try:
        found = polls.ask(account, now=now)
    except RedisUnavailable:
        return False, _("The live state does not answer, so there is nowhere to keep what the account says.")
    about = {"account": account.label}
    if found.outcome == polls.OK:
        took = display.duration(time.monotonic() - began)
        return True, _("Asked %(account)s, which answered in %(took)s.") % {**about, "took": took}
    if found.outcome == polls.RECENT and account.polled_at is not None:
        ago = display.duration(now - account.polled_at)
        return False, _("%(account)s was asked %(ago)s ago; what it said is below.") % {**about, "ago": ago}
    if found.outcome == polls.WINDOWLESS:
        return False, _("%(account)s has no windows to ask for.") % about
    if found.outcome == polls.BUSY:
        return False, _("%(account)s is being asked at this moment.") % about
    if found.outcome == polls.OUT:
        return False, _("%(account)s needs sign-in: its upstream refuses it.") % about
    said = _("%(account)s gave no answer (%(outcome)s); it is asked again by itself.")
    return False, said % {**about, "outcome": found.outcome}


@never_cache
@require_POST
@tenancy.page(Action.MANAGE_POOL)
def set_strategy(request: HttpRequest, member: Member, uuid: UUID) -> HttpResponse:
    """How a pool chooses, from the next request on; running turns stay where they are."""
    pool = tenancy.owned(Pool.objects.all(), member.organization, uuid)
    form = StrategyForm(request.POST, auto_id="strategy-%s")
    if not form.is_valid():
        return show(request, member, pool=pool, shown=Shown(strategy_form=form), status=422)
    wanted: dict[str, Any] = form.fields_set()
    try:
        pool = pools.set_strategy(pool, wanted, by=member.user)
    except DomainError as error:
        told(form, "strategy", error)
        return show(request, member, pool=pool, shown=Shown(strategy_form=form), status=error.status)
    name = pool.get_strategy_display().partition(":")[0].lower()
    said = _("%(pool)s chooses by %(strategy)s from the next request on. Running turns stay where they are.")
    messages.success(request, said % {"pool": pool.name, "strategy": name})
    return redirect(path(member, pool))
