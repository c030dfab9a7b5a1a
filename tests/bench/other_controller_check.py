"""Whether the other controller does what the bench measures, before our services run for minutes."""

from typing import Final

from libs.testbed.child_process import ChildExited
from libs.testbed.kubelets_in_go import GoNodeJoin
from tests.bench.fleet import make_fleet
from tests.bench.measurement import Measurement, run_machines
from tests.bench.other_controller import OtherControllerFailed

_JOIN_SECONDS: Final = 60


async def check_other_controller(m: Measurement) -> None:
    """Let one node join. Raises OtherControllerFailed with the reason and the last lines of the program."""
    asking = m.options.certificates
    machines_running = run_machines(m.stage, make_fleet(m.name, 1), certificates=int(asking))
    try:
        async with m.start_other_controller() as running, machines_running as names:
            joins = await m.join_nodes(names, alone=False, certificates=asking, at_most=_JOIN_SECONDS)
            problem, lines = find_first_join_problem(joins.nodes[0]), running.child.tail()
    except ExceptionGroup as group:
        ended, others = group.split(ChildExited)
        if ended is None or others is not None:
            raise
        raise OtherControllerFailed(str(ended.exceptions[0])) from group
    if problem:
        raise OtherControllerFailed(f"--against {m.options.against}: {problem}. Its last lines:\n{lines}")


def find_first_join_problem(node: GoNodeJoin) -> str:
    """Return what a controller did not do for the first node; "" if it did all."""
    if not node.untainted:
        return f"it left the taint on the first node for {_JOIN_SECONDS} s (controller cloud-node)"
    if node.request and not node.request.issued:
        done = "approved" if node.request.approved else "denied" if node.request.denied else "not approved"
        return f"the first certificate was {done} and not issued (controller node-csr-approval)"
    return ""
