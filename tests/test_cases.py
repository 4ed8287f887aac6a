"""tests/CASES.md maps the rows of the case catalogue to tests; here the map is held against what pytest collects."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+) \|$")

METERING = (
    "A1 A3 A4 A6 A7 A8 A10 A11 A15 A17 A19 A20 A23 A24 B1 B3 B4 B8 B9 B10 C1 C3 C5 C6 C7 C8 C9 C10 C12 C13 C17 C20 C21 C24 D1 D3 "
    "D4 D5 D7 D8 D9 E1 E2 E4 E6 E7 E11 E12 E13 E15 E16 E18 E20 E21 F1 F3 F5 G1 G2 G4 H1 H3 H4 H5 H6 H7 I1 I3 I5 I6 I7 J1 J3 J5 "
    "J6 J7 K1 K3 K5 K6 K9 K11 L2 L4 L5 L7 L8 M1 M2 M4 M7"
)
GATEWAY = (
    "N1 N2 N3 N4 N5 N6 N7 N8 N10 N11 N12 N13 N14 N15 N20 N21 N22 N23 N24 N25 N26 N30 N31 N32 N33 N34 N35 N36 N37 N40 N41 "
    "N42 N43 N44 N45 N50 N51 N52 N53 N54 N55 N56 N60 N61 N62 N63 N64 N70 N71 N72"
)
REQUIRED = f"{METERING} {GATEWAY}".split()


def read_map() -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    for line in (ROOT / "tests" / "CASES.md").read_text().splitlines():
        if found := ROW.match(line):
            assert found[1] not in rows, f"{found[1]} stands twice"
            rows[found[1]] = re.findall(r"`([^`]+)`", found[2])
    return rows


def test_every_row_of_the_map_names_tests_that_pytest_collects() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert listing.returncode == 0, listing.stdout[-2000:] + listing.stderr[-2000:]
    collected = {line.split("[")[0] for line in listing.stdout.splitlines() if "::" in line}
    rows = read_map()
    assert rows, "the map is empty"
    for row, tests in rows.items():
        assert tests, f"{row} names no test"
        for test in tests:
            assert test in collected, f"{row} names {test}, which pytest does not collect"


def test_every_row_that_is_due_is_in_the_map() -> None:
    missing = [row for row in REQUIRED if row not in read_map()]
    assert not missing


def test_a_mapped_test_says_which_row_it_shows() -> None:
    for row, tests in read_map().items():
        for test in tests:
            path, *names = test.split("::")
            source = (ROOT / path).read_text()
            body = source.split(f"def {names[-1]}(", 1)[1].split("\ndef ", 1)[0].split("\nasync def ", 1)[0]
            assert re.search(rf"\b{row}\b", body), f"{test} does not mention {row}"
