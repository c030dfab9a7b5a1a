"""The scenarios `certificates` and `early`: many nodes request their serving certificate."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from libs.testbed.approve_everything import ApproveEverything
from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from libs.testbed.service_processes import measure_process_usage
from tests.bench import costs
from tests.bench.figures import (
    BenchRun,
    Figures,
    compute_issued_figures,
    compute_ratio,
    compute_times,
    find_begin,
    list_broken,
)
from tests.bench.measurement import Measurement, make_fleet, run_machines

_BASELINE: Final = "approve everything: "
_RATIO: Final = "issued / approve everything"
_MAX_RATIO: Final = 2  # promised: relative to the loop that approves everything
_ALL: Final = frozenset({"list", "watch"})
_EARLY_PROMISES: Final = {
    "never issued": "nodes did not get the certificate of their newest request",
    "older written": "older requests were written although a newer one existed",
    "issued before the node joined": "certificates were issued to nodes that did not exist",
}
_MIN_COUNT: Final = 1000  # fewer requests measure latency, not throughput


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
    figures = {
        _RATIO: compute_ratio(figures["all issued s"], baseline[f"{_BASELINE}all issued s"]),
        **figures,
        **baseline,
        **cost.compute_figures(count, "request"),
        "context: watch restarts of the observer": float(filed.restarts),
    }
    problems = find_certificate_problems(figures, cost.requests, count=count, settled=cost.settled)
    return m.make_run("certificates", figures, problems)


async def measure_early_requests(m: Measurement) -> BenchRun:
    """Every kubelet files two requests before its Node exists, then joins; only the last one is decided."""
    kubelets, count = m.stage.kubelets, m.options.certificate_nodes
    machines = make_fleet(m.name, count)
    async with m.start_services() as controlled, run_machines(m.stage, machines, certificates=2) as names:
        await kubelets.file_requests(names, certificates=2, until_issued=False)
        async with costs.measure_costs(m.stage, controlled) as cost:
            joins = await m.join_nodes(names, alone=False)
            asked = await kubelets.wait_until_issued(names, seconds=m.options.patience)
    figures = compute_early_figures(joins.nodes, asked.requests) | cost.compute_figures(count)
    figures["context: watch restarts of the observer"] = float(joins.restarts + asked.restarts)
    return m.make_run("early", figures, find_early_problems(figures, settled=cost.settled))


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


def compute_early_figures(nodes: Sequence[GoNodeJoin], requests: Sequence[GoCertificateRequest]) -> Figures:
    """Figures of nodes that filed requests before they joined: time to the certificate, requests written."""
    newest = {request.node: request for request in requests}
    older = [request for request in requests if request is not newest[request.node]]
    spans = [(node.begun, newest[node.name].issued) for node in nodes]
    return compute_times("issued", spans, find_begin(nodes), each="join to issued") | {
        "older": float(len(older)),
        "older written": float(sum(request.writes > 0 for request in older)),
        "issued before the node joined": float(sum(0 < issued < joined for joined, issued in spans)),
    }


def find_certificate_problems(
    figures: Figures, asked: Counter[str], *, count: int, settled: bool
) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["the services were not idle before the requests, or after the last"]
    found += list_broken(figures, {"never issued": "certificates were not issued in time"})
    if count >= _MIN_COUNT and figures[_RATIO] > _MAX_RATIO:
        found.append(f"it took more than {_MAX_RATIO} times as long as the loop that approves everything")
    # Each of these may concern one certificate; lists and watches concern all.
    each = [
        n for what, n in asked.items() if not costs.is_lease_request(what) and what.split()[0] not in _ALL
    ]
    if sum(each) > count:
        found.append(f"{sum(each)} API requests for {count} certificates")
    return found


def find_early_problems(figures: Figures, *, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["the services were not idle before the joins, or after the last"]
    return found + list_broken(figures, _EARLY_PROMISES)
