"""The scenarios `certificates` and `early`: many nodes request their serving certificate."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from libs.testbed.approve_everything import ApproveEverything
from libs.testbed.kubelets_in_go import GoCertificateRequest, GoNodeJoin
from libs.testbed.service_processes import measure_process_usage
from tests.bench import costs
from tests.bench.bench_cluster import wait_until_quiet
from tests.bench.figures import BenchRun, Figures, compute_issued_figures, compute_percentile, compute_ratio
from tests.bench.fleet import make_fleet
from tests.bench.measurement import Measurement, run_machines

_BASELINE: Final = "approve everything: "
_RATIO: Final = "issued / approve everything"
_MAX_RATIO: Final = 2  # promised: relative to the loop that approves everything
_MIN_COUNT: Final = 1000  # fewer requests measure latency, not throughput


async def measure_certificates(m: Measurement) -> BenchRun:
    """Ready nodes file requests all at once: first the loop that approves everything, then our services."""
    stage, count = m.stage, m.options.certificate_nodes
    baseline = await measure_unconditional_approval(m)
    first, *machines = make_fleet(m.name, count + 1)
    machines_running = run_machines(stage, [first, *machines], certificates=1)
    async with m.start_services() as controlled, machines_running as names:
        await m.join_nodes(names, alone=False)
        # the first request pays for connections
        await stage.kubelets.file_requests(names[:1], seconds=m.options.patience_seconds)
        # So many joins leave many Events to write: wait longer than elsewhere.
        settled = await wait_until_quiet(stage, seconds=m.options.patience_seconds)
        await stage.machines.reset_calls()
        before = await costs.read_costs(stage, controlled)
        filed = await stage.kubelets.file_requests(names[1:], seconds=m.options.patience_seconds)
        settled = await wait_until_quiet(stage) and settled
        after = await costs.read_costs(stage, controlled)
        asked = costs.count_requests(stage, before.audit)
        figures = (
            compute_filed_figures(filed.requests)
            | baseline
            | costs.compute_per_node("Kubernetes", asked, count)
            | costs.compute_per_node("Talos", await costs.count_calls(stage), count)
            | costs.compute_process_figures(before, after)
        )
    figures["context: watch restarts of the observer"] = float(filed.restarts)
    figures["ours: CPU per request ms"] = 1000 * figures["ours: all CPU s"] / count
    compared = {_RATIO: compute_ratio(figures["all issued s"], baseline[f"{_BASELINE}all issued s"])}
    figures = compared | {name.replace("per node", "per request"): n for name, n in figures.items()}
    problems = find_certificate_problems(figures, asked, count=count, settled=settled)
    return m.make_run("certificates", figures, problems)


async def measure_early_requests(m: Measurement) -> BenchRun:
    """Every kubelet files two requests before its Node exists, then joins; only the last one is decided."""
    stage, count = m.stage, m.options.certificate_nodes
    machines = make_fleet(m.name, count)
    async with m.start_services() as controlled, run_machines(stage, machines, certificates=2) as names:
        await stage.kubelets.file_requests(names, certificates=2, until_issued=False)
        settled = await wait_until_quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read_costs(stage, controlled)
        joins = await m.join_nodes(names, alone=False)
        asked = await stage.kubelets.wait_until_issued(names, seconds=m.options.patience_seconds)
        settled = await wait_until_quiet(stage) and settled
        after = await costs.read_costs(stage, controlled)
        figures = (
            compute_early_figures(joins.nodes, asked.requests)
            | costs.compute_per_node("Kubernetes", costs.count_requests(stage, before.audit), count)
            | costs.compute_per_node("Talos", await costs.count_calls(stage), count)
            | costs.compute_process_figures(before, after)
        )
    figures["context: watch restarts of the observer"] = float(joins.restarts + asked.restarts)
    return m.make_run("early", figures, find_early_problems(figures, settled=settled))


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
        filed = await stage.kubelets.file_requests(names[1:], seconds=m.options.patience_seconds)
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
    begun = min(request.begun for request in requests)
    figures = compute_issued_figures(requests, begun, prefix)
    figures[f"{prefix}all filed s"] = max(request.filed for request in requests) - begun
    return figures


def compute_early_figures(nodes: tuple[GoNodeJoin, ...], requests: Sequence[GoCertificateRequest]) -> Figures:
    """Figures of nodes that filed requests before they joined: time to the certificate, requests written."""
    newest = {request.node: request for request in requests}
    older = [request for request in requests if request is not newest[request.node]]
    issued = [(newest[node.name].issued, node.begun) for node in nodes if newest[node.name].issued]
    took = [at - begun for at, begun in issued]
    return {
        "all issued s": max((at for at, _ in issued), default=math.nan) - min(node.begun for node in nodes),
        "join to issued p50 ms": 1000 * compute_percentile(took, 50),
        "join to issued p99 ms": 1000 * compute_percentile(took, 99),
        "newest never issued": float(len(nodes) - len(took)),
        "older": float(len(older)),
        "older written": float(sum(request.writes > 0 for request in older)),
        "issued before the node joined": float(sum(seconds < 0 for seconds in took)),
    }


def find_certificate_problems(
    figures: Figures, asked: Counter[str], *, count: int, settled: bool
) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["the services were not idle before the requests, or after the last"]
    if missing := figures["never issued"]:
        found.append(f"{missing:.0f} certificates were not issued in time")
    if count >= _MIN_COUNT and figures[_RATIO] > _MAX_RATIO:
        found.append(f"it took more than {_MAX_RATIO} times as long as the loop that approves everything")
    one_each = sum(n for what, n in asked.items() if _is_per_certificate(what))
    if one_each > count:
        found.append(f"{one_each} API requests for {count} certificates")
    return found


def _is_per_certificate(request: str) -> bool:
    """Whether the request may concern one certificate; lists and watches concern all."""
    return not costs.is_lease_request(request) and request.split(maxsplit=1)[0] not in {"list", "watch"}


def find_early_problems(figures: Figures, *, settled: bool) -> list[str]:
    """The promises that did not hold."""
    found = [] if settled else ["the services were not idle before the joins, or after the last"]
    promised = {
        "newest never issued": "nodes did not get the certificate of their newest request",
        "older written": "older requests were written although a newer one existed",
        "issued before the node joined": "certificates were issued to nodes that did not exist",
    }
    return found + [f"{figures[name]:.0f} {words}" for name, words in promised.items() if figures[name]]
