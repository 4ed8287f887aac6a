"""The benchmark itself: it runs from a shell, measures every scenario, and every request that it sent is in the log."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import wire
from bench.load import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


def test_answers_have_the_events_and_sizes_they_are_named_for() -> None:
    for name, count in wire.EVENTS.items():
        made = wire.events(name)
        assert len(made) == count
        assert made[0].startswith(b"event: response.created\n")
        assert made[-1].startswith(b"event: response.completed\n")
        assert {len(event) for event in made[1:-1]} == {wire.EVENT_BYTES}


@pytest.mark.stack
@pytest.mark.timeout(240)
def test_a_smoke_run_measures_every_scenario_and_loses_no_usage() -> None:
    command = [sys.executable, "manage.py", "bench", "--smoke", "--rounds", "1", "--seconds", "0.4", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["scenario"] for row in result["rows"]] == list(SCENARIOS)
    for row in result["rows"]:
        assert row["requests"] > 0
        assert row["relay_ms"] >= 0
        assert row["gateway_ms"] > 0
    assert result["sent"] == result["logged"] > sum(row["requests"] for row in result["rows"])
    assert result["odd"] == 0
    # The warm path: no SQL; to admit, to take a slot, to tell the first renewal and the observations, to settle.
    assert result["sql_statements"] == 0
    assert 2 <= result["redis_reads"] <= 6


def test_wrong_arguments_are_told() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", "--rounds", "-1"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "--rounds must be at least 1" in done.stderr
