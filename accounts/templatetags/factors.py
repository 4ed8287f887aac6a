"""Template filters of the pages of second factors."""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from django import template
from django.core.serializers.json import DjangoJSONEncoder

register = template.Library()


@register.filter
def as_json(value: Any) -> str:
    """For a data attribute; the template escapes it."""
    return json.dumps(value, cls=DjangoJSONEncoder)


@register.filter
def in_fours(text: str) -> str:
    """`ABCD EFGH`: as people read a key out."""
    return " ".join(text[at : at + 4] for at in range(0, len(text), 4))


@register.filter
def as_text_file(lines: Iterable[str]) -> str:
    """An address that a link can save as a file: nothing is asked of the server again."""
    return "data:text/plain;charset=utf-8," + quote("".join(f"{line}\n" for line in lines))
