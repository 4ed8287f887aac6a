"""How large a turn will be."""

import pytest

from routing import turns
from routing.sticky import Sticky

M = 1_000_000


@pytest.mark.parametrize(
    ("entry", "member", "is_inside", "expected"),
    [
        (None, None, False, 12 * M),  # nothing is known
        (None, 30 * M, False, 30 * M),  # a new session: the member's mean
        (Sticky(1, mean=20 * M), 30 * M, False, 20 * M),  # the session's own
        (Sticky(1, mean=2 * M), 30 * M, False, 15 * M),  # but at least half the member's
        (Sticky(1), 30 * M, False, 30 * M),
        # A turn of 10 has ended: 0.6 x 20 + 0.4 x 10.
        (Sticky(1, mean=20 * M, spent=10 * M), 12 * M, False, 16 * M),
        # The first turn of the session has ended.
        (Sticky(1, spent=10 * M), 12 * M, False, 10 * M),
        # Half of 0.97 x 30 + 0.03 x 10.
        (Sticky(1, spent=10 * M), 30 * M, False, 14_700_000),
        # Inside a turn: what is left of it, and at least 0.3 of it.
        (Sticky(1, turn=20 * M, spent=5 * M), 12 * M, True, 15 * M),
        (Sticky(1, turn=20 * M, spent=19 * M), 12 * M, True, 6 * M),
        (Sticky(1, turn=20 * M, spent=90 * M), 12 * M, True, 6 * M),
        # Its turn is not known (its entry is new): as a new one.
        (None, 30 * M, True, 30 * M),
        (Sticky(1), 30 * M, True, 30 * M),
    ],
)
def test_predicted(entry: Sticky | None, member: int | None, is_inside: bool, expected: int) -> None:
    assert turns.predicted(entry, member, is_inside=is_inside) == expected
