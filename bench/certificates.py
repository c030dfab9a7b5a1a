"""The scenarios `certificates` and `early`: many nodes ask for their serving certificate."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from bench import costs
from bench.figures import Figures, Run, issued_figures, percentile, ratio
from bench.fleet import fleet
from bench.measuring import Measuring, present
from bench.stage import quiet
from libs.testbed.approve_everything import ApproveEverything
from libs.testbed.kubelets_in_go import Joined, Request
from libs.testbed.running_services import usage_of

_BASELINE: Final = "approve everything: "
_RATIO: Final = "issued / approve everything"
_MOST_TIMES: Final = 2  # as long as approving without a look; what is promised
_ENOUGH: Final = 1000  # fewer requests tell how late one is, not how many get done


async def certificates(m: Measuring) -> Run:
    """Nodes that are there and ready ask all at once: approved without a look, then by us."""
    stage, count = m.stage, m.wanted.certificate_nodes
    baseline = await approved_without_a_look(m)
    first, *machines = fleet(m.name, count + 1)
    everybody = present(stage, [first, *machines], certificates=1)
    async with m.controlled() as controlled, everybody as names:
        await m.joined(names, alone=False)
        await stage.kubelets.file(names[:1], seconds=m.wanted.patience_seconds)  # it pays for connections
        # After so many joins there is more to say, in Events above all, than anybody waits for elsewhere.
        settled = await quiet(stage, seconds=m.wanted.patience_seconds)
        await stage.machines.reset_calls()
        before = await costs.read(stage, controlled)
        filed = await stage.kubelets.file(names[1:], seconds=m.wanted.patience_seconds)
        settled = await quiet(stage) and settled
        after = await costs.read(stage, controlled)
        asked = costs.requests(stage, before.audit)
        figures = (
            filed_figures(filed.requests)
            | baseline
            | costs.per_node("Kubernetes", asked, count)
            | costs.per_node("Talos", await costs.calls(stage), count)
            | costs.process_figures(before, after)
        )
    figures["context: watch restarts of the observer"] = float(filed.restarts)
    figures["ours: CPU per request ms"] = 1000 * figures["ours: all CPU s"] / count
    compared = {_RATIO: ratio(figures["all issued s"], baseline[f"{_BASELINE}all issued s"])}
    figures = compared | {name.replace("per node", "per request"): n for name, n in figures.items()}
    problems = certificate_problems(figures, asked, count=count, settled=settled)
    return m.run("certificates", figures, problems)


async def early(m: Measuring) -> Run:
    """Every kubelet asks twice before its Node exists; then it joins; only its last request is decided."""
    stage, count = m.stage, m.wanted.certificate_nodes
    machines = fleet(m.name, count)
    async with m.controlled() as controlled, present(stage, machines, certificates=2) as names:
        await stage.kubelets.file(names, certificates=2, until_issued=False)
        settled = await quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read(stage, controlled)
        joins = await m.joined(names, alone=False)
        asked = await stage.kubelets.issued(names, seconds=m.wanted.patience_seconds)
        settled = await quiet(stage) and settled
        after = await costs.read(stage, controlled)
        figures = (
            early_figures(joins.nodes, asked.requests)
            | costs.per_node("Kubernetes", costs.requests(stage, before.audit), count)
            | costs.per_node("Talos", await costs.calls(stage), count)
            | costs.process_figures(before, after)
        )
    figures["context: watch restarts of the observer"] = float(joins.restarts + asked.restarts)
    return m.run("early", figures, early_problems(figures, settled=settled))


async def approved_without_a_look(m: Measuring) -> Figures:
    """The same requests at once, with nobody there but the loop that approves everything."""
    stage, count = m.stage, m.wanted.certificate_nodes
    directory = stage.run_dir / f"{m.name}-approve-everything"
    approving = ApproveEverything.start(
        directory, stage.control_plane, concurrency=m.wanted.concurrency or 64
    )
    machines = fleet(f"{m.name}-alone", count + 1)
    async with approving as approver, present(stage, machines, certificates=1) as names:
        await m.joined(names, alone=True)
        await stage.kubelets.file(names[:1])
        mark, before = stage.control_plane.audit_mark(), usage_of(approver.child.pid)
        filed = await stage.kubelets.file(names[1:], seconds=m.wanted.patience_seconds)
        figures = filed_figures(filed.requests, _BASELINE)
        counts = stage.control_plane.audit_counts(mark)
        asked = sum(n for request, n in counts.items() if request.user == approver.USER)
        spent = usage_of(approver.child.pid).cpu_seconds - before.cpu_seconds
    return figures | {
        f"{_BASELINE}API requests per request": asked / count,
        f"{_BASELINE}CPU per request ms": 1000 * spent / count,
        f"{_BASELINE}watch restarts of the observer": float(filed.restarts),
    }


def filed_figures(requests: Sequence[Request], prefix: str = "") -> Figures:
    """Of requests that were sent together, from the first one's sending on."""
    begun = min(request.begun for request in requests)
    figures = issued_figures(requests, begun, prefix)
    figures[f"{prefix}all filed s"] = max(request.filed for request in requests) - begun
    return figures


def early_figures(nodes: tuple[Joined, ...], requests: Sequence[Request]) -> Figures:
    """Of nodes that had asked before they joined: how soon each has its certificate, and who was written."""
    newest = {request.node: request for request in requests}
    older = [request for request in requests if request is not newest[request.node]]
    issued = [(newest[node.name].issued, node.begun) for node in nodes if newest[node.name].issued]
    took = [at - begun for at, begun in issued]
    return {
        "all issued s": max((at for at, _ in issued), default=math.nan) - min(node.begun for node in nodes),
        "join to issued p50 ms": 1000 * percentile(took, 50),
        "join to issued p99 ms": 1000 * percentile(took, 99),
        "newest never issued": float(len(nodes) - len(took)),
        "older": float(len(older)),
        "older written": float(sum(request.writes > 0 for request in older)),
        "issued before the node joined": float(sum(seconds < 0 for seconds in took)),
    }


def certificate_problems(figures: Figures, asked: Counter[str], *, count: int, settled: bool) -> list[str]:
    """Promises that did not hold."""
    found = [] if settled else ["the services were not quiet before the requests, or after the last"]
    if missing := figures["never issued"]:
        found.append(f"{missing:.0f} requests for certificates were not issued in time")
    if count >= _ENOUGH and figures[_RATIO] > _MOST_TIMES:
        found.append(f"it took more than {_MOST_TIMES} times as long as approving everything")
    one_each = sum(n for what, n in asked.items() if _costs_each(what))
    if one_each > count:
        found.append(f"{one_each} API requests for {count} certificates")
    return found


def _costs_each(request: str) -> bool:
    """Whether the request can have been made for one certificate; lists and watches are about all of them."""
    return not costs.is_lease(request) and request.split(maxsplit=1)[0] not in {"list", "watch"}


def early_problems(figures: Figures, *, settled: bool) -> list[str]:
    """Promises that did not hold."""
    found = [] if settled else ["the services were not quiet before the joins, or after the last"]
    promised = {
        "newest never issued": "nodes did not get the certificate that they asked for last",
        "older written": "older requests were written, though a newer one was there",
        "issued before the node joined": "certificates were issued to nodes that did not exist",
    }
    return found + [f"{figures[name]:.0f} {words}" for name, words in promised.items() if figures[name]]
