"""Template filters and tags over `accounts.display`. A page's context holds `zone` and `now`."""

from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from accounts import display, keys

register = template.Library()

register.filter("credits", display.credits)
register.filter("tokens", display.tokens)
register.filter("count", display.count)
register.filter("money", display.money)
register.filter("price", display.price)
register.filter("long_day", display.long_day)
register.filter("elapsed", display.elapsed)
register.filter("seconds", display.seconds)
register.filter("initials", lambda name: display.initials(str(name)))
register.filter("rotation", keys.rotation_of)


@register.filter
def unit(name: str) -> str:
    """What a meter counts in, in the reader's language."""
    return {"credits": gettext("credits"), "tokens": gettext("tokens"), "requests": gettext("requests")}.get(name, name)


@register.filter
def exact(micro: int) -> SafeString:
    whole, part = display.exact(micro)
    return format_html('{}<span class="micro">{}</span>', whole, part)


def _time(at: datetime, context: Any, written: Callable[[datetime, ZoneInfo, datetime], str]) -> SafeString:
    """`<time>`: UTC for machines, the organization's zone for people."""
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), written(at, context["zone"], context["now"]))


@register.simple_tag(takes_context=True)
def moment(context: Any, at: datetime) -> SafeString:
    return _time(at, context, display.moment)


@register.simple_tag(takes_context=True)
def full_moment(context: Any, at: datetime) -> SafeString:
    return _time(at, context, display.full_moment)


@register.simple_tag(takes_context=True)
def clock(context: Any, at: datetime) -> SafeString:
    return _time(at, context, display.clock)


@register.simple_tag(takes_context=True)
def day(context: Any, on: date | datetime) -> str:
    """A day of the organization's calendar; a moment counts as the day it falls on there."""
    zone: ZoneInfo = context["zone"]
    now: datetime = context["now"]
    return display.day(on.astimezone(zone).date() if isinstance(on, datetime) else on, now.astimezone(zone).date())


@register.simple_tag(takes_context=True)
def countdown(context: Any, at: datetime) -> str:
    return display.duration(at - context["now"])


@register.simple_tag(takes_context=True)
def countdown_since(context: Any, at: datetime) -> str:
    return display.duration(context["now"] - at)
