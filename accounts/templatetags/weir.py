"""Template filters over `accounts.display`."""

from datetime import datetime
from zoneinfo import ZoneInfo

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from accounts import display

register = template.Library()

register.filter("credits", display.credits)
register.filter("tokens", display.tokens)


@register.filter
def exact(micro: int) -> SafeString:
    whole, part = display.exact(micro)
    return format_html('{}<span class="micro">{}</span>', whole, part)


@register.simple_tag
def moment(at: datetime, zone: ZoneInfo, now: datetime) -> SafeString:
    """`<time>` with the UTC moment for machines and the local one for people."""
    return format_html('<time datetime="{}">{}</time>', at.isoformat(), display.moment(at, zone, now))


@register.simple_tag
def countdown(at: datetime, now: datetime) -> str:
    return display.duration(at - now)
