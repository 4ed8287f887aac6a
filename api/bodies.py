"""Reading a call's JSON: what two readers could understand differently is refused, and nothing is read without a bound."""

import json
from typing import Any

from django.http import HttpRequest

from api.errors import BodyInvalid, BodyTooLarge, ContentTypeRefused

MOST_BYTES = 1024 * 1024
MOST_DEPTH = 32
MOST_DIGITS = 18
"""A whole number of more digits would not fit where amounts are kept."""


def read(request: HttpRequest) -> dict[str, Any]:
    """The object that the body holds; {} for no body at all. Raises BodyInvalid, BodyTooLarge, ContentTypeRefused."""
    # Read here and not by DRF, which takes a body that comes in chunks, without a length, for none.
    data = request.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise BodyTooLarge(f"The body has more than {MOST_BYTES:,} bytes.")
    if not data:
        return {}
    if request.content_type != "application/json":
        raise ContentTypeRefused("The body is taken as application/json only: say so in Content-Type.")
    try:
        found = json.loads(
            data.decode(),
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_number,
        )
    except UnicodeDecodeError:
        raise BodyInvalid("The body is not UTF-8.") from None
    except json.JSONDecodeError as error:
        raise BodyInvalid(f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    except RecursionError:
        raise BodyInvalid(f"The body is nested more than {MOST_DEPTH} deep.") from None
    if not isinstance(found, dict):
        raise BodyInvalid("The body is JSON, but not an object: { … }.")
    _check(found, MOST_DEPTH)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BodyInvalid(f"The field {_shown(name)} is given twice.", param=_shown(name))
        found[name] = value
    return found


def _constant(text: str) -> None:
    raise BodyInvalid(f"{text} is not JSON.")


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > MOST_DIGITS:
        raise BodyInvalid(f"A number has more than {MOST_DIGITS} digits.")
    return int(text)


def _number(text: str) -> float:
    value = float(text) if len(text) <= 40 else float("inf")
    if abs(value) == float("inf"):
        raise BodyInvalid("A number is too large, or has too many digits.")
    return value


def _check(value: Any, depth: int) -> None:
    """Raises BodyInvalid for text that the database cannot keep, and for what is nested too deep."""
    if depth < 0:
        raise BodyInvalid(f"The body is nested more than {MOST_DEPTH} deep.")
    if isinstance(value, str):
        if "\0" in value:
            raise BodyInvalid("A text holds a NUL character, which cannot be kept.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BodyInvalid("A text holds half a surrogate pair.") from None
    elif isinstance(value, dict):
        for name, inner in value.items():
            _check(name, depth)
            _check(inner, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, depth - 1)


def _shown(name: str) -> str:
    return name[:80].encode("ascii", "backslashreplace").decode()
