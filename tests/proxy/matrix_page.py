"""The matrix for people: `docs/failures.md`. Pure."""

import math

from tests.proxy.matrix import (
    EXCLUSIONS,
    KINDS,
    MOST_ATTEMPTS,
    SHORT_REST_SECONDS,
    Cell,
    Expected,
    How,
    Moment,
    Surface,
    Told,
    cells,
    expect,
)
from tests.proxy.matrix_failures import MEANINGS


def seconds(rests: float) -> str:
    return f"{rests:g} s" if rests < SHORT_REST_SECONDS * 2 else f"{rests / 60:g} min"


def _health(expected: Expected) -> str:
    told = []
    if expected.signs_out:
        told.append("needs sign-in")
    if expected.resets:
        told.append("exhausted until its reset")
    if expected.rests is not None:
        told.append(f"rests {seconds(expected.rests)}")
    return ", ".join(told) or "as before"


def _words(told: Told) -> str:
    if told.how is How.OWN_EVENT:
        return How.OWN_EVENT.value
    if told.how is How.EVENT:
        return f"{How.EVENT.value}: `{told.word}`"
    if told.how is How.REFUSAL:
        extra = f", Retry-After {math.ceil(told.wait)}" if told.wait is not None else ", resets_at" if told.resets else ""
        return f"{told.status} `{told.word}`{extra}"
    return str(told.how.value)


def _columns(cell: Cell) -> tuple[str, ...]:
    alone, beside = expect(cell, has_second=False), expect(cell, has_second=True)
    attempts = str(alone.attempts) if cell.moment is not Moment.CONNECT else f"{MOST_ATTEMPTS} connects"
    pays = alone.pays.value if alone.status is not None else "nothing, no row"
    status = f" (`{alone.status}`)" if alone.status is not None else ""
    return _words(alone.told), _words(beside.told), _health(alone), attempts, pays + status


def _surfaces(found: list[Surface], possible: list[Surface]) -> str:
    if len(found) == len(possible):
        return "all"
    kinds_found = {surface.kind for surface in found}
    if all(surface in found for surface in possible if surface.kind in kinds_found):
        return f"all, {' and '.join(kind for kind in KINDS if kind in kinds_found)}"
    grouped: dict[str, list[str]] = {}
    for surface in found:
        grouped.setdefault(f"{surface.dialect} {surface.transport}", []).append(surface.kind)
    every: dict[str, int] = {}
    for surface in possible:
        every[f"{surface.dialect} {surface.transport}"] = every.get(f"{surface.dialect} {surface.transport}", 0) + 1
    parts = (name if len(kinds) == every[name] else f"{name} ({', '.join(kinds)})" for name, kinds in grouped.items())
    return ", ".join(parts)


def _table(moment: Moment, found: list[Cell]) -> list[str]:
    names = list(dict.fromkeys(cell.failure.name if cell.failure else "" for cell in found))
    lines = [
        "| the upstream | client, account | told, nobody else free | another free | the account | sent | paid, if not moved |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        of_row = [cell for cell in found if (cell.failure.name if cell.failure else "") == name]
        alike: dict[tuple[str, ...], list[Surface]] = {}
        for cell in of_row:
            alike.setdefault(_columns(cell), []).append(cell.surface)
        possible = [cell.surface for cell in of_row]
        for columns, surfaces in alike.items():
            lines.append(f"| {name or moment.value} | {_surfaces(surfaces, possible)} | {' | '.join(columns)} |")
    return lines


def markdown() -> str:
    """`docs/failures.md`."""
    every = list(cells())
    lines = [
        "# What each failure of an upstream does",
        "",
        "Printed by `python -m tests.proxy.matrix`, from the table and the rules in `tests/proxy/matrix.py`; every cell is run by",
        f"`tests/proxy/test_matrix.py`: {len(every)} cells, each with one account and with another one that is well.",
        "",
        "## What failures mean",
        "",
        "The body decides, the status only where the body says nothing. Another account is asked only until something of an answer",
        f"has reached the client, and at most {MOST_ATTEMPTS} requests leave. What was sent and not answered is never sent again.",
        "Refusals of our accounts do not reach clients, who read that the pool is busy, or exhausted until when; but what a stream",
        "brings after output passes as it came.",
        "",
        "| kind | says | another account is asked | the client, if nobody else answers |",
        "|---|---|---|---|",
    ]
    for name, meaning in MEANINGS.items():
        moves = ("yes" if meaning.moves else "no") + (", after a renewal of a sign-in did not help" if meaning.renews else "")
        client = "reads the upstream's own words" if meaning.is_clients else "is refused in our words"
        lines.append(f"| {name} | {meaning.text} | {moves} | {client} |")
    for moment in Moment:
        found = [cell for cell in every if cell.moment is moment]
        lines += ["", f"## {moment.value[0].upper()}{moment.value[1:]}", "", *_table(moment, found)]
    lines += ["", "## What cannot be", ""]
    lines += [f"* {why[0].upper()}{why[1:]}." for why, _ in EXCLUSIONS]
    return "\n".join(lines) + "\n"
