"""What the API takes and gives, by field. Strict: a value of another type is told, never converted, and nothing unknown is ignored.

`Shape` is an object of a body or an answer, `Query` are the parameters of a call. In a body text is text and a number a number; in
the address all is text.
"""

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError

from billing import credits

MOST_WHOLE = 2**53 - 1
"""Whole numbers beyond it do not survive every JSON reader."""
AMOUNT = r"^(?:[0-9]{1,15}(?:\.[0-9]{1,6})?)$"


class Shape(serializers.Serializer[Any]):
    """An object with exactly these fields."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Raises ValidationError; a field that is not known here has the code `unknown_field`."""
        if not isinstance(data, Mapping):
            raise ValidationError("This is an object: { … }.", code="wrong_type")
        unknown = [name for name in data if name not in self.fields]
        if unknown:
            taken = f"It takes {', '.join(self.fields)}." if self.fields else "It takes none."
            said = {name[:80]: [ErrorDetail(f"There is no such field. {taken}", code="unknown_field")] for name in unknown[:10]}
            raise ValidationError(said)
        found: dict[str, Any] = super().to_internal_value(data)
        return found


class Query(serializers.Serializer[Any]):
    """The parameters of a call. Unknown ones, and one that is given twice, are refused before it is asked."""


class Text(serializers.CharField):
    """Text, as it is: spaces around it are kept for the domain to judge."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("trim_whitespace", False)
        options.setdefault("max_length", 1000)
        if not options.get("allow_blank"):
            options.setdefault("min_length", 1)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            raise ValidationError("This is text.", code="wrong_type")
        return super().to_internal_value(data)


class Choice(serializers.ChoiceField):
    """One of a list of words."""

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in self.choices:
            words = ", ".join(repr(word) for word in self.choices)
            raise ValidationError(f"This is one of {words}.", code="wrong_choice" if isinstance(data, str) else "wrong_type")
        return data


class Whole(serializers.IntegerField):
    """A whole number, 0 or more unless `min_value` says otherwise."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("min_value", 0)
        options.setdefault("max_value", MOST_WHOLE)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> int:
        if isinstance(self.parent, Query) and isinstance(data, str) and re.fullmatch(r"-?[0-9]{1,18}", data, re.ASCII):
            return int(data)
        if isinstance(data, float) and data.is_integer():
            data = int(data)
        if not isinstance(data, int) or isinstance(data, bool):
            raise ValidationError("This is a whole number.", code="wrong_type")
        return data


class Flag(serializers.BooleanField):
    """true or false."""

    def to_internal_value(self, data: Any) -> bool:
        if isinstance(self.parent, Query) and data in ("true", "false"):
            return bool(data == "true")
        if not isinstance(data, bool):
            raise ValidationError("This is true or false.", code="wrong_type")
        return data


class Uuid(serializers.UUIDField):
    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):
            raise ValidationError("This is an id, as text.", code="wrong_type")
        return super().to_internal_value(data)


class Moment(serializers.DateTimeField):
    """An instant with its offset, as in RFC 3339: `2026-12-04T00:00:00Z`."""

    def to_internal_value(self, value: Any) -> datetime:
        if not isinstance(value, str):
            raise ValidationError("This is an instant, as text: 2026-12-04T00:00:00Z.", code="wrong_type")
        try:
            found = datetime.fromisoformat(value) if len(value) >= 19 else None
            if found is not None and found.tzinfo is not None:
                # Its neighbours must exist in every zone.
                return found if 1971 <= found.year <= 9990 else self._refuse()
        except ValueError:
            pass
        return self._refuse()

    def _refuse(self) -> datetime:
        raise ValidationError("This is an instant with its offset: 2026-12-04T00:00:00Z.", code="invalid")


class Day(serializers.DateField):
    """A calendar day: `2026-12-04`."""

    def to_internal_value(self, value: Any) -> date:
        if not isinstance(value, str):
            raise ValidationError("This is a day, as text: 2026-12-04.", code="wrong_type")
        return super().to_internal_value(value)


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string", "pattern": AMOUNT, "maxLength": 22},
            {"type": "integer", "minimum": 0, "maximum": MOST_WHOLE},
        ]
    }
)
class Amount(serializers.Field[str, Any, str, str]):
    """Decimal credits as text with up to 6 places, or a count; a whole number is taken too. Comes out as text."""

    def to_internal_value(self, data: Any) -> str:
        if isinstance(data, int) and not isinstance(data, bool) and 0 <= data <= MOST_WHOLE:
            return str(data)
        if isinstance(data, str) and re.fullmatch(AMOUNT, data, re.ASCII):
            return data
        raise ValidationError('This is an amount, such as "12.5" or 12: 0 or more, with up to 6 places as text.', code="invalid")

    def to_representation(self, value: str) -> str:
        return value


class Told(serializers.CharField):
    """Text of an answer."""


class ListOf(serializers.ListField):
    """A list with at most `max_length` entries."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_length", 100)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise ValidationError("This is a list: [ … ].", code="wrong_type")
        found: list[Any] = super().to_internal_value(data)
        return found


def amount_text(metric: str, value: int) -> str:
    """As amounts stand in answers: credits as decimal text, counts as whole numbers, both text."""
    return credits.text(value) if metric == "credits" else str(value)


def iso(moment: datetime | None) -> str | None:
    """In UTC with a Z, to the microsecond where there is one."""
    from datetime import UTC

    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
