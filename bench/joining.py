"""Nodes join, without any controller and with ours: what `burst` and `single` have in common."""

from collections.abc import Mapping, Sequence

from bench import costs
from bench.cpu import cpu_figures
from bench.figures import Figures, issued_figures, joins_figures, untainted_figures
from bench.fleet import fleet
from bench.measuring import Measuring, present
from bench.pod_cidr_figures import carried_figures, served_figures
from bench.speed import speed_measured
from bench.stage import Controlled, Stage, quiet
from libs.common.service_spec import DEFAULT_SERVICES, IPAM
from libs.testbed.kubelets_in_go import Joined, Joins

# Inside what no machine of the fleet has. The last two are those of the testbed's API server.
POD_CIDR_FLAGS = (
    "--allocate-node-cidrs",
    "--cluster-cidr=10.128.0.0/9,fd00:10:128::/48",
    "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
)
# The watcher is not what is measured: on a machine this busy it must not lose its Lease.
PATIENT = dict.fromkeys(
    ("watcher", "all-in-one"), ("--leader-elect-lease-duration=90s", "--leader-elect-renew-deadline=80s")
)


async def joined_alone(m: Measuring, nodes: int, *, one_at_a_time: bool = False) -> Figures:
    """Joins without any controller, the unit of the others. Who asks for a certificate waits in vain."""
    asking = m.wanted.certificates
    async with present(m.stage, fleet(f"{m.name}-alone", nodes), certificates=int(asking)) as names:
        joins = await m.joined(names, alone=True, one_at_a_time=one_at_a_time, certificates=asking)
    return joins_figures(joins.nodes, "joins only: ")


async def joined_with_ours(
    m: Measuring,
    nodes: int,
    *,
    one_at_a_time: bool = False,
    pod_cidrs: bool = False,
    own_flags: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Figures, list[str]]:
    """Joins with our services, ipam among them or not, and what did not go as promised."""
    stage, asking = m.stage, m.wanted.certificates
    first, *machines = fleet(m.name, nodes + 1)
    ours = (
        m.controlled(*POD_CIDR_FLAGS, wirings=(*DEFAULT_SERVICES, IPAM), own_flags=own_flags)
        if pod_cidrs
        else m.controlled(wirings=DEFAULT_SERVICES, own_flags=own_flags)
    )
    everybody = present(stage, [first, *machines], certificates=int(asking))
    async with ours as controlled, everybody as names:
        await m.joined(
            names[:1], alone=False, certificates=asking, pod_cidrs=pod_cidrs
        )  # pays for connections
        await quiet(stage)
        await stage.machines.reset_calls()
        before = await costs.read(stage, controlled)
        async with speed_measured() as speed:
            joins = await m.joined(
                names[1:], alone=False, one_at_a_time=one_at_a_time, certificates=asking, pod_cidrs=pod_cidrs
            )
        spent = costs.usage(stage, controlled)
        settled = await quiet(stage)
        figures = await _figures(stage, controlled, before, joins)
        figures |= cpu_figures(before.usage, spent, speed.loop_ms)
        if pod_cidrs:
            figures |= served_figures(joins.nodes) | carried_figures(await carried(stage, names))
    return figures, _problems(figures, settled=settled)


async def _figures(stage: Stage, controlled: Controlled, before: costs.Reading, joins: Joins) -> Figures:
    after, nodes = await costs.read(stage, controlled), len(joins.nodes)
    figures = (
        untainted_figures(joins.nodes)
        | _certificates(joins.nodes)
        | joins_figures(joins.nodes)
        | costs.per_node("Kubernetes", costs.requests(stage, before.audit), nodes)
        | costs.per_node("Talos", await costs.calls(stage), nodes)
        | costs.process_figures(before, after)
    )
    figures["ours: CPU per node ms"] = 1000 * figures["ours: all CPU s"] / nodes
    figures["context: watch restarts of the observer"] = float(joins.restarts)
    figures["start to ready s"] = controlled.start_seconds
    return figures


async def carried(stage: Stage, names: list[str]) -> list[tuple[str, ...]]:
    """The podCIDRs of each of these nodes, as Kubernetes lists them now."""
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    found = {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in listed}
    return [found.get(name, ()) for name in names]


def _problems(figures: Figures, *, settled: bool) -> list[str]:
    found = [] if settled else ["20 s after the last join our services still made requests"]
    if stuck := figures["never untainted"]:
        found.append(f"{stuck:.0f} nodes did not lose their taint in time")
    if missing := figures.get("never issued"):
        found.append(f"{missing:.0f} requests for certificates were not issued in time")
    return found


def _certificates(nodes: tuple[Joined, ...]) -> Figures:
    """What became of the requests of nodes that joined; nothing if they asked for none."""
    filed = [node.request for node in nodes if node.request]
    return issued_figures(filed, min(node.begun for node in nodes)) if filed else {}
