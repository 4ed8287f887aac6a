"""How large a turn will be: what the session's and the member's turns cost before. Pure; micro-credits.

A turn is one question of a person with all the requests that answer it. `lua/holds.lua` does the same sums as `folded`.
"""

from routing.sticky import Sticky

START = 12_000_000
"""A member's mean turn before any is known."""
SESSION_WEIGHT = 0.4
MEMBER_WEIGHT = 0.03
LEAST_OF_MEMBER = 0.5
"""A session's turns are not taken for smaller than this share of the member's mean."""
LEAST_LEFT = 0.3
"""Inside a turn: what is left is not taken for less than this share of it."""


def folded(mean: int, spent: int, weight: float) -> int:
    """The mean after a turn that cost `spent`."""
    return int((1 - weight) * mean + weight * spent + 0.5)


def predicted(entry: Sticky | None, member_mean: int | None, *, is_inside: bool) -> int:
    """What this turn will cost, or (`is_inside`) what is left of it.

    A new session's: the member's mean. Then max(the session's mean, half the member's); inside, max(0.3 turn, turn - spent).
    """
    mean = START if member_mean is None else member_mean
    if entry is None:
        return mean
    if is_inside and entry.turn:
        return max(round(LEAST_LEFT * entry.turn), entry.turn - entry.spent)
    of_session = entry.mean
    if entry.spent:
        # Its last turn was given up, and nobody has told it yet that it is over.
        of_session = folded(of_session, entry.spent, SESSION_WEIGHT) if of_session else entry.spent
        mean = folded(mean, entry.spent, MEMBER_WEIGHT)
    return max(of_session, round(LEAST_OF_MEMBER * mean)) if of_session else mean
