"""The collector leaves alone what was there before, and only as long as it should."""

import gc

from config import collector


def test_it_is_spared_for_a_while() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    with collector.spared():
        assert gc.get_freeze_count() > 0
        kept = gc.get_freeze_count()
        # A second time changes nothing.
        collector.spare()
        assert gc.get_freeze_count() == kept
        assert frozen or gc.get_threshold() == collector.THRESHOLDS
    assert gc.get_threshold() == before
    assert (gc.get_freeze_count() > 0) == (frozen > 0)
