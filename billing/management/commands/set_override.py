"""`manage.py set_override ORG MODEL --input N --cached-input N --output N [...]`, `manage.py set_override ORG MODEL --end`"""

from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from typing import Any

from django.core.management.base import CommandError

from accounts import organizations
from billing import cardfile, credits, overrides
from billing.management.moments import moment
from billing.models import RateOverride
from billing.overrides import Terms
from config.clock import utc_now
from config.management.operator import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Gives an organization a price of its own for a model, from its next request on, in place of the card's. Prices are "
        "credits per million tokens; what is left out of the multipliers is copied from the card. The model `fallback` prices what "
        "has no rate, if the organization chose that. Earlier requests keep their price."
    )

    def arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("organization", metavar="ORG", help="the organization's slug")
        parser.add_argument("model", metavar="MODEL", help="the model's name on the rate card, one of their own, or fallback")
        parser.add_argument("--input", metavar="N", help="credits per million fresh input tokens")
        parser.add_argument("--cached-input", metavar="N", help="credits per million cached input tokens")
        parser.add_argument("--cache-write", metavar="N", help="credits per million tokens written to the cache (as input)")
        parser.add_argument("--output", metavar="N", help="credits per million output tokens")
        parser.add_argument("--fast", metavar="TIMES", help="the multiplier of fast mode (the card's)")
        parser.add_argument(
            "--long-context-above", type=int, metavar="TOKENS", help="above so much input more is paid (the card's)"
        )
        parser.add_argument("--long-context-input", metavar="TIMES", help="what input is multiplied by above that (the card's)")
        parser.add_argument("--long-context-output", metavar="TIMES", help="what output is multiplied by above that (the card's)")
        parser.add_argument("--from", dest="start", metavar="MOMENT", help="when it begins: a day (UTC) or an instant (now)")
        parser.add_argument("--to", dest="end", metavar="MOMENT", help="when it ends (never)")
        parser.add_argument("--end", dest="is_ended", action="store_true", help="let the card's price hold again from now on")
        parser.add_argument("--reason", default="", metavar="TEXT", help="why; kept with it")

    def operate(self, *, organization: str, model: str, is_ended: bool, **options: Any) -> Mapping[str, Any]:
        now = utc_now()
        whose = organizations.find(organization)
        if is_ended:
            row = RateOverride.objects.filter(organization=whose, model=model).order_by("valid_from").last()
            if row is None:
                raise CommandError(f"{whose.slug} has no price of its own for {model!r}.")
            overrides.end(row, now=now)
            return {"id": str(row.uuid), "model": model, "ended": True}
        made = overrides.set_override(
            whose,
            model,
            _terms(options),
            now=now,
            valid_from=moment(options["start"]),
            valid_to=moment(options["end"]),
            reason=options["reason"],
        )
        return {
            "id": str(made.uuid),
            "model": made.model,
            "reference": overrides.reference(overrides.rate_id_of(made)),
            "valid_from": made.valid_from,
            "valid_to": made.valid_to,
            "input": credits.text(made.input or 0),
            "cached_input": credits.text(made.cached_input or 0),
            "cache_write": None if made.cache_write is None else credits.text(made.cache_write),
            "output": credits.text(made.output or 0),
            "fast": credits.text(made.fast_thousandths * 1000),
        }


def _terms(options: Mapping[str, Any]) -> Terms:
    missing = [name for name in ("input", "cached_input", "output") if options[name] is None]
    if missing:
        raise CommandError(f"Give all of --input, --cached-input and --output; no price is derived ({', '.join(missing)} missing).")
    return Terms(
        input=_read(cardfile.price, options["input"]) or 0,
        cached_input=_read(cardfile.price, options["cached_input"]) or 0,
        output=_read(cardfile.price, options["output"]) or 0,
        cache_write=_read(cardfile.price, options["cache_write"]),
        fast_thousandths=_read(cardfile.thousandths, options["fast"]),
        long_context_threshold=options["long_context_above"],
        long_context_input_thousandths=_read(cardfile.thousandths, options["long_context_input"]),
        long_context_output_thousandths=_read(cardfile.thousandths, options["long_context_output"]),
    )


def _read(read: Callable[[str], int], text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise CommandError(str(error)) from error
