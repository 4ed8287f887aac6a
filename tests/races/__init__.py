"""The race harness: worker processes that admit, settle, release, cancel and are killed, ledger processes that are killed too, and
changes of limits, keys, plans, grants and boosts meanwhile. Afterwards counters = ledger = log = rollups, to the micro-credit.

    python -m tests.races --seconds 60 --processes 4 --seed 7

Choices come from the seed, in each process by its own generator; what the machine makes of them differs from run to run, which
is the point.
"""
