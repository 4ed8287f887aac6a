"""Which worker of a test run takes which tests, so that all cores are busy until the end.

Each worker takes a file at a time, in the order in which they were collected (tests/conftest.py). One worker takes the flows from
the start, for they hold a running stack, and a long one leaves the others time to test; who has nothing else left helps it. Tests
that must be alone run one after the other, before everything else: later each of them would wait for a long test to end.
"""

from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

ALONE = "alone"
WITHOUT_A_STACK = ("tests/flows/test_bad_input.py", "tests/flows/test_doors.py", "tests/flows/test_routes.py")


def is_flow(nodeid: str) -> bool:
    """Does the test, or the file, ask a running stack?"""
    return nodeid.startswith("tests/flows/") and not nodeid.startswith(WITHOUT_A_STACK)


class Spreading(LoadGroupScheduling):  # type: ignore[misc]  # xdist's types are not exported
    """`--dist loadgroup` with the file as the group of a test that has none."""

    WORKER_OF_FLOWS = "gw0"

    def schedule(self) -> None:
        self._has_flows = any(is_flow(nodeid) for nodeid in next(iter(self.registered_collections.values())))
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.split("::", 1)[0] if group == nodeid else group

    def _assign_work_unit(self, node: WorkerController) -> None:
        flow = self._next_flow()
        if self._is_for_flows(node) and flow is not None:
            self.workqueue.move_to_end(flow, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_for_flows(node) and self.workqueue and self._next_flow() is None:
            # Its ledger process drains what tests of the drain want for themselves: it takes nothing else.
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _is_for_flows(self, node: WorkerController) -> bool:
        return self._has_flows and node.gateway.id == self.WORKER_OF_FLOWS

    def _next_flow(self) -> str | None:
        return next((scope for scope in self.workqueue if is_flow(scope)), None)
