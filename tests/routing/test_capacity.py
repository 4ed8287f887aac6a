"""What an account can carry: dated weights, and the estimate of what is used of it by now."""

from datetime import date

import pytest

from routing import capacity


@pytest.mark.parametrize(
    ("reported", "own", "since", "expected"),
    [
        (0.42, 0.0, 0.0, 0.42),  # others use it: what is reported wins
        (0.42, 85.0, 0.0, 0.425),  # upstreams tell whole percents: ours say where in the percent
        (0.42, 100.0, 0.0, 0.43),  # never more than a percent above
        (0.42, 0.0, 20.0, 0.52),  # what was metered since comes on top
        (0.42, 85.0, 20.0, 0.525),
        (0.0, 0.0, 0.0, 0.0),
        (1.0, 200.0, 0.0, 1.0),
    ],
)
def test_use_is_what_was_reported_and_what_we_metered_since(reported: float, own: float, since: float, expected: float) -> None:
    """u = clamp(own/c, p, p + 0.01) + since/c, for c = 200 credits."""
    assert capacity.estimated_use(reported, own, since, 200.0) == pytest.approx(expected)


def test_later_weights_of_a_plan_are_known_with_their_day() -> None:
    """pro_100 counted 5 Plus in April 2026, and 10 from 29 October on."""
    assert capacity.weight_thousandths("pro", date(2026, 10, 28)) == 5_000
    assert capacity.changes("pro", date(2026, 10, 28)) == ((1_793_232_000_000, 10_000),)
    assert capacity.changes("pro", date(2026, 10, 29)) == ()
    assert capacity.changes("free", date(2026, 1, 1)) == ()
