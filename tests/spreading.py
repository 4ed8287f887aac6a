"""Which worker of a test run takes which tests, so that all cores are busy until the end.

Each worker takes a file at a time, in the order in which they were collected (tests/conftest.py). The last worker takes the flows
from the start, for they hold a running stack, and a long one leaves the others time to test; who has nothing else left helps it.
The first worker begins with all tests that must be alone, one after the other, while the others wait (tests/plugin.py): later
each of them would wait for a long test to end.
"""

import json
import os
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ALONE = "alone"
WORKER_OF_ALONE = "gw0"
WITHOUT_A_STACK = ("tests/flows/test_bad_input.py", "tests/flows/test_doors.py", "tests/flows/test_routes.py")


def is_flow(nodeid: str) -> bool:
    """Does the test, or the file, ask a running stack?"""
    return nodeid.startswith("tests/flows/") and not nodeid.startswith(WITHOUT_A_STACK)


def note_alone(folder: Path, worker: str, nodeids: list[str]) -> None:
    """A worker tells which tests are to be alone: those who spread them know names only. Every worker finds the same."""
    written = folder / f"{worker}.alone"
    written.write_text(json.dumps(nodeids))
    os.replace(written, folder / ALONE)


class Spreading(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """`--dist loadfile` with a group for the tests that must be alone, and a worker for the flows."""

    def __init__(self, config: Any, log: Any, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder
        self._alone: frozenset[str] = frozenset()
        self._worker_of_flows = ""

    def schedule(self) -> None:
        if self.collection is None:
            self._alone = frozenset(json.loads((self._folder / ALONE).read_text()))
            collected = next(iter(self.registered_collections.values()))
            if self.numnodes > 1 and any(is_flow(nodeid) for nodeid in collected):
                self._worker_of_flows = f"gw{self.numnodes - 1}"
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return ALONE if nodeid in self._alone else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: WorkerController) -> None:
        chosen = self._chosen(node)
        if chosen is not None:
            self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_for_flows(node) and self.workqueue and self._next_flow() is None:
            # Its ledger process drains what tests of the drain want for themselves: it takes nothing else.
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _chosen(self, node: WorkerController) -> str | None:
        if node.gateway.id == WORKER_OF_ALONE and ALONE in self.workqueue:
            return ALONE
        if self._is_for_flows(node) and (flow := self._next_flow()) is not None:
            return flow
        return next((scope for scope in self.workqueue if scope != ALONE), None)

    def _is_for_flows(self, node: WorkerController) -> bool:
        return bool(node.gateway.id == self._worker_of_flows)

    def _next_flow(self) -> str | None:
        return next((scope for scope in self.workqueue if is_flow(scope)), None)
