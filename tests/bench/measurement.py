"""The tools of a scenario: the cluster, our services, and nodes that join and leave."""

import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.kubelets_in_go import GoJoinBatch
from libs.testbed.machine_facts import MIXED_FLEET, make_numbered_machine, replace_external_address
from libs.testbed.machine_fleet import Address, SimMachineFacts
from libs.testbed.service_processes import SERVICE_NETWORKS
from services.ipam.core.pages import NAME_PREFIX
from tests.bench.bench_cluster import POD_NETWORKS, BenchCluster, BenchServices, StepCallback, start_services
from tests.bench.figures import BenchRun, Figures, list_broken
from tests.bench.options import AGAINST_MODES, BenchOptions, Mode, Scenario
from tests.bench.other_controller import OtherController, start_other_controller

_CONFIG_MAPS: Final = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"
_SINGLES_PER_SECOND: Final = 5  # the pace of the reference measurement


def make_fleet(prefix: str, count: int, platforms: tuple[str, ...] = MIXED_FLEET) -> list[SimMachineFacts]:
    """Make `count` dual-stack machines with an external address, on alternating platforms."""
    return [
        make_numbered_machine(f"{prefix}-{number:05}", number, platforms[number % len(platforms)], "bench")
        for number in range(count)
    ]


def make_control_plane(machine: SimMachineFacts) -> SimMachineFacts:
    """The machine as a control plane, whose networks another controller reads before it allocates."""
    return msgspec.structs.replace(
        machine,
        control_plane=True,
        pod_cidrs=POD_NETWORKS,
        service_cidrs=tuple(SERVICE_NETWORKS.split(",")),
    )


def move_external_address(machine: SimMachineFacts, number: int) -> tuple[tuple[Address, ...], str]:
    """The machine's addresses with another external one, and that one."""
    address = f"203.0.{113 + number // 250}.{number % 250 + 1}"
    return replace_external_address(machine, address), address


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a scenario: its cluster, mode, options, and the name of its nodes and files."""

    stage: BenchCluster
    options: BenchOptions
    mode: Mode
    number: int
    name: str
    report: StepCallback = lambda _: None  # prints the progress within a long run

    def start_services(
        self, *flags: str, **options: Any
    ) -> contextlib.AbstractAsyncContextManager[BenchServices]:
        """Start our services for this run, with the options of `start_services`."""
        return start_services(self.stage, self.mode, self.name, flags=flags, **options)

    def start_controller(
        self, *, pod_cidrs: bool = False
    ) -> contextlib.AbstractAsyncContextManager[BenchServices | OtherController]:
        """Start what the mode measures: our services, or the program of --against."""
        if self.mode not in AGAINST_MODES:
            return self.start_services(pod_cidrs=pod_cidrs)
        assert self.options.against is not None, "the command requires it for these modes"
        return start_other_controller(
            self.stage, self.mode, self.name, self.options.against, pod_cidrs=pod_cidrs
        )

    async def join_nodes(
        self,
        names: list[str],
        *,
        alone: bool,
        one_at_a_time: bool = False,
        certificates: bool = False,
        pod_cidrs: bool = False,
        at_most: float = math.inf,
    ) -> GoJoinBatch:
        """Let kubelets join at the configured pace; `alone`: no service removes the taint or approves.

        It ends after the configured patience, or after `at_most` seconds.
        """
        wanted = self.options
        return await self.stage.kubelets.join(
            names,
            concurrency=wanted.concurrency,
            per_second=_SINGLES_PER_SECOND if one_at_a_time else 0,
            one_at_a_time=one_at_a_time,
            until_untainted=not alone,
            until_served=pod_cidrs,
            certificates=certificates,
            seconds=min(at_most, wanted.patience),
        )

    def make_run(
        self, scenario: Scenario, figures: Figures, problems: Sequence[str] = (), *, count: int = 1
    ) -> BenchRun:
        """The result of this run with `count` nodes or requests, without figures that it has no value of.

        Its problems are these, and the broken promises.
        """
        return BenchRun(
            scenario=scenario,
            mode=self.mode,
            number=self.number,
            figures={name: value for name, value in figures.items() if not math.isnan(value)},
            problems=(*problems, *list_broken(figures, count)),
        )


Measure = Callable[[Measurement], Awaitable[BenchRun]]


@contextlib.asynccontextmanager
async def run_machines(
    stage: BenchCluster, machines: list[SimMachineFacts], *, certificates: int = 0
) -> AsyncIterator[list[str]]:
    """Run machines with kubelets that can join and file that many certificate requests each.

    At the end it deletes the machines, their Nodes and their requests.
    """
    await stage.machines.put_machines(*machines)
    await stage.kubelets.load_kubelets(map(SimKubelet.of_machine, machines), certificates=certificates)
    names = [machine.name for machine in machines]
    joined = False
    try:
        yield names
        joined = True
    finally:
        if joined:  # after a failure or Ctrl-C the whole control plane is deleted
            await stage.kubelets.delete_nodes(names)
            await stage.machines.delete_machines(*(machine.id for machine in machines))


async def delete_claims(stage: BenchCluster) -> None:
    """Delete all claims, so that every run starts without any. All Nodes of the run are deleted already."""
    listed = (await stage.admin.request("GET", _CONFIG_MAPS)).body["items"]
    for name in (each["metadata"]["name"] for each in listed):
        if name.startswith(NAME_PREFIX):
            await stage.admin.send("DELETE", f"{_CONFIG_MAPS}/{name}")


async def list_pod_cidrs(stage: BenchCluster, names: list[str]) -> list[tuple[str, ...]]:
    """The podCIDRs of each of these Nodes, as kube-apiserver lists them."""
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    found = {node["metadata"]["name"]: tuple(node["spec"].get("podCIDRs", ())) for node in listed}
    return [found.get(name, ()) for name in names]
