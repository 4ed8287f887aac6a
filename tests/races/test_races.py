"""A short race in every run of the tests; `python -m tests.races` runs longer ones."""

from pathlib import Path

import pytest

from tests.races import stage

pytestmark = [pytest.mark.stack, pytest.mark.timeout(240)]

SECONDS = 10.0


def test_ten_seconds_of_everything_at_once_end_with_every_sum_equal(transactional_db: None, tmp_path: Path) -> None:
    """Counters = ledger = log = rollups, no hold left, no limit passed but by what a settled request cost more than it held."""
    played, counted = stage.run(tmp_path, seconds=SECONDS, processes=3, seed=7)
    assert counted["requests"] > 100
    for kind in ("exact", "rough", "postpaid"):
        assert counted[kind]["rows"] > 10
        assert counted[kind]["credits"] > 0
    for what in ("limits changed", "grants", "boosts"):
        assert played.done[what] > 0
    assert played.done["workers killed"] + played.done["ledgers killed"] > 0
