"""The scenario `certificates`: many nodes request their serving certificate."""

from collections.abc import Sequence
from typing import Final

from libs.testbed.kubelets_in_go import ApproveEverything, GoCertificateRequest
from libs.testbed.service_processes import measure_process_usage
from tests.bench import costs
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_ratio,
    find_begin,
)
from tests.bench.measurement import Measurement, make_fleet, run_machines

_BASELINE: Final = "approve everything: "
_ALL: Final = frozenset({"list", "watch"})


async def measure_certificates(m: Measurement) -> BenchRun:
    """Ready nodes file requests all at once: first the loop that approves everything, then our services."""
    kubelets, count, patience = m.stage.kubelets, m.options.certificate_nodes, m.options.patience
    baseline = await measure_unconditional_approval(m)
    machines_running = run_machines(m.stage, make_fleet(m.name, count + 1), certificates=1)
    async with m.start_services() as controlled, machines_running as names:
        await m.join_nodes(names, alone=False)
        # the first request pays for connections
        await kubelets.file_requests(names[:1], seconds=patience)
        # So many joins leave many Events to write: wait longer than elsewhere.
        async with costs.measure_costs(m.stage, controlled, seconds=patience) as cost:
            filed = await kubelets.file_requests(names[1:], seconds=patience)
    figures = compute_filed_figures(filed.requests)
    # Each of these may concern one certificate; lists and watches concern all.
    each = [
        n
        for what, n in cost.requests.items()
        if not costs.is_lease_request(what) and what.split()[0] not in _ALL
    ]
    figures = {
        "issued / approve everything": compute_ratio(
            figures["all issued s"], baseline[f"{_BASELINE}all issued s"]
        ),
        **figures,
        **baseline,
        **cost.compute_figures(count, "request"),
        "Kubernetes: all but lists and watches per request": sum(each) / count,
        "context: watch restarts of the observer": float(filed.restarts),
    }
    return m.make_run("certificates", figures, cost.problems, count=count)


async def measure_unconditional_approval(m: Measurement) -> Figures:
    """The same requests at once, approved by the loop that approves everything."""
    stage, count = m.stage, m.options.certificate_nodes
    directory = stage.run_dir / f"{m.name}-approve-everything"
    approving = ApproveEverything.start(
        directory, stage.control_plane, concurrency=m.options.concurrency or 64
    )
    machines = make_fleet(f"{m.name}-alone", count + 1)
    async with approving as approver, run_machines(stage, machines, certificates=1) as names:
        await m.join_nodes(names, alone=True)
        await stage.kubelets.file_requests(names[:1])
        mark, before = stage.control_plane.audit_mark(), measure_process_usage(approver.child.pid)
        filed = await stage.kubelets.file_requests(names[1:], seconds=m.options.patience)
        figures = compute_filed_figures(filed.requests, _BASELINE)
        counts = stage.control_plane.audit_counts(mark)
        asked = sum(n for request, n in counts.items() if request.user == approver.USER)
        spent = measure_process_usage(approver.child.pid).cpu_seconds - before.cpu_seconds
    return figures | {
        f"{_BASELINE}API requests per request": asked / count,
        f"{_BASELINE}CPU per request ms": 1000 * spent / count,
        f"{_BASELINE}watch restarts of the observer": float(filed.restarts),
    }


def compute_filed_figures(requests: Sequence[GoCertificateRequest], prefix: str = "") -> Figures:
    """Figures of requests that were sent together; times start with the first request."""
    begun = find_begin(requests)
    figures = compute_issued_figures(requests, begun, prefix)
    figures[f"{prefix}all filed s"] = max(request.filed for request in requests) - begun
    return figures
