"""The bench on real parts: kubelets in Go join and see what happens to their nodes; scenarios measure."""

import asyncio
import math
import re
import sys
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.testbed.child_process import HANG_SECONDS, ChildExited
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.kubelets_in_go import KubeletsInGo
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.service_start import ROOT
from tests.bench.bench_cluster import BenchCluster, start_services
from tests.bench.figures import PROMISES, BenchRun
from tests.bench.measurement import Measurement
from tests.bench.options import BenchOptions, Mode, Scenario
from tests.bench.run_bench import MEASURE_BY_SCENARIO, measure_run

SMALL = BenchOptions(
    nodes=20,
    steady_nodes=5,
    steady_seconds=2,
    heartbeat_seconds=1,
    changes=3,
    rule_nodes=8,
    rule_changes=1,
    certificate_nodes=20,
    patience=int(HANG_SECONDS),
)


@pytest.fixture(scope="module")
async def in_go(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane):
    async with KubeletsInGo.start(tmp_path_factory.mktemp("kubelets"), control_plane) as running:
        yield running


@pytest.fixture
def stage(
    tmp_path: Path,
    control_plane: ControlPlane,
    machines: MachineFleet,
    in_go: KubeletsInGo,
    kubelets: KubeletFleet,
) -> BenchCluster:
    return BenchCluster(tmp_path, control_plane, machines, in_go, kubelets)


async def untaint(kubelets: KubeletFleet, name: str) -> None:
    path = f"/api/v1/nodes/{name}"
    taints = (await kubelets.request("GET", path)).body["spec"]["taints"]
    left = [taint for taint in taints if taint["key"] != UNINITIALIZED_TAINT]
    body = {"spec": {"taints": left or None}}
    answer = await kubelets.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    assert answer.status == 200


async def test_a_node_is_untainted_when_kubernetes_shows_it_so_and_not_before(
    in_go: KubeletsInGo, kubelets: KubeletFleet
):
    names = ["bench-taint-1", "bench-taint-2"]
    await in_go.load_kubelets([SimKubelet(name=name) for name in names])
    joins = await in_go.join(names, until_untainted=False)
    assert [node.untainted for node in joins.nodes] == [0, 0]
    assert all(node.begun < node.joined for node in joins.nodes)
    await untaint(kubelets, names[0])
    assert await in_go.wait_until_untainted(names[:1], seconds=HANG_SECONDS)
    assert not await in_go.wait_until_untainted(names, seconds=0.2)
    await in_go.delete_nodes(names)


@dataclass(frozen=True)
class Case:
    """A run of a scenario, and the lowest and the highest value of some of its figures."""

    scenario: Scenario
    mode: Mode
    figures: dict[str, tuple[float, float]]
    options: dict[str, Any] = field(default_factory=dict)

    def measure(self, stage: BenchCluster) -> Awaitable[BenchRun]:
        wanted = msgspec.structs.replace(SMALL, **self.options)
        name = f"bench-{self.scenario}-{self.mode}"
        measuring = Measurement(stage=stage, options=wanted, mode=self.mode, number=1, name=name)
        return MEASURE_BY_SCENARIO[self.scenario](measuring)


NONE, ONE, SOME = (0, 0), (1, 1), (1e-9, 1e9)
CASES = {
    "joins": Case(
        "burst",
        "all-in-one-memory",
        {
            "never untainted": NONE,
            "untainted p50 ms": SOME,
            "untainted p99 ms": SOME,
            "never issued": NONE,
            "filed to issued p50 ms": SOME,
            "issued / joins only": SOME,
            "joins only: joined p50 ms": SOME,
            "Kubernetes: patch nodes per node": (1, 2),
            "Kubernetes: patch certificatesigningrequests/approval per node": ONE,
            # One Event a node; that of the node which joined before the count began may be on its way.
            "Kubernetes: create events per node": (1, 1 + 1 / SMALL.nodes),
            "Talos: Get PlatformMetadatas per node": (1, 100),
            "ours: all CPU s": SOME,
            "ours: all-in-one peak RSS MB": (10, 1000),
        }
        | {f"per node: ... flow.{kind}.node": (1, 100) for kind in ("observed", "enriched")}
        | {
            f"per node: {what}": (1, 30)
            for what in ("plans of the labeler", "Talos calls", "Talos streams", "log lines")
        },
        {"certificates": True},
    ),
    "joins with pod CIDRs": Case(
        "burst",
        "separate",
        {
            "never with pod CIDRs": NONE,
            "pod CIDRs: given twice": NONE,
            "pod CIDRs: nodes without both families": NONE,
            "Kubernetes: patch nodes per node": (2, 3),
            "pod CIDRs: ConfigMap writes per node": SOME,  # fewer, the faster the Nodes join
        },
        {"pod_cidrs": True},
    ),
    "nodes that only beat": Case(
        "steady",
        "all-in-one-memory",
        {
            "Kubernetes: writes": NONE,
            "heartbeats per second": (1, 1000),
            "heartbeats only: context: kube-apiserver CPU s per second": (0, 100),
        },
    ),
    "changed addresses": Case(
        "change", "all-in-one-memory", {"never shown": NONE, "shown p50 ms": SOME, "shown p99 ms": SOME}
    ),
    # Seven of the eight platforms have the label: one write each is all that Kubernetes was asked for.
    "changed rules": Case(
        "rules",
        "all-in-one-memory",
        {
            "never applied": NONE,
            "first applied s": SOME,
            "all applied s": SOME,
            "Kubernetes: patch nodes per changed node": ONE,
            "Kubernetes: writes per changed node": ONE,
            "Kubernetes: all per changed node": ONE,
        },
    ),
    "certificates": Case(
        "certificates",
        "separate",
        {
            "never issued": NONE,
            "approve everything: never issued": NONE,
            "Kubernetes: all per request": ONE,
            "Kubernetes: all but lists and watches per request": ONE,
            "issued / approve everything": SOME,
        },
    ),
}


def test_every_promise_is_about_a_figure_that_a_scenario_has():
    assert PROMISES.keys() <= {figure for case in CASES.values() for figure in case.figures}


@pytest.mark.parametrize("case", CASES)
async def test_a_scenario_is_measured_and_leaves_nothing_behind(case: str, stage: BenchCluster):
    run = await CASES[case].measure(stage)
    assert run.problems == ()
    figures = {figure: run.figures.get(figure, math.nan) for figure in CASES[case].figures}
    wrong = {
        figure: figures[figure]
        for figure, (low, high) in CASES[case].figures.items()
        if not low <= figures[figure] <= high
    }
    assert wrong == {}
    listed = (await stage.admin.request("GET", "/api/v1/nodes")).body["items"]
    assert not [node for node in listed if node["metadata"]["name"].startswith("bench-")]
    path = f"/api/v1/namespaces/{CLAIM_PAGES_NAMESPACE}/configmaps"
    pages = (await stage.admin.request("GET", path)).body["items"]
    assert not [page for page in pages if page["metadata"]["name"].startswith("talos-ccm")]


async def killed_while_measuring(stage: BenchCluster) -> None:
    # the next test waits for the Lease of a killed watcher: not for a long one
    async with start_services(stage, "all-in-one-memory", "bench-death", own_flags={}) as running:
        await running.list_processes()["all-in-one"].kill()
        await asyncio.Event().wait()


async def test_a_service_that_ends_ends_the_measurement_at_once_and_is_named(stage: BenchCluster):
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(killed_while_measuring(stage), HANG_SECONDS)
    assert caught.group_contains(ChildExited, match="all-in-one ended with status -9")


def write_program(path: Path, line: str) -> Path:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


def measuring_against(program: Path, stage: BenchCluster) -> Measurement:
    wanted = msgspec.structs.replace(SMALL, certificates=True, pod_cidrs=True, against=program)
    return Measurement(stage=stage, options=wanted, mode="against-tuned", number=1, name="bench-against")


async def test_another_controller_is_measured_by_the_same_figures(stage: BenchCluster, tmp_path: Path):
    # Our own all-in-one takes the reference's flags.
    ours = f"{sys.executable} -m services --bus=memory --node-cidr-mask-size-ipv6=80"
    line = f'PYTHONPATH={ROOT} exec {ours} --talosconfig=$TALOSCONFIG "$@"'
    program = write_program(tmp_path / "drop-in", line)
    run = await MEASURE_BY_SCENARIO["burst"](measuring_against(program, stage))
    assert (run.mode, run.problems) == ("against-tuned", ())
    figures = run.figures
    assert figures["never untainted"] == figures["never issued"] == figures["never with pod CIDRs"] == 0
    assert figures["other: other-controller CPU s"] == figures["controller: CPU s"] > 0
    assert figures["controller: CPU of everything s"] > figures["controller: CPU s"]
    assert figures["controller: peak RSS MB"] > 20
    assert figures["all usable s"] > 0
    assert "ours: all CPU s" not in figures


async def test_a_program_that_exits_at_once_is_named_with_its_last_lines(stage: BenchCluster, tmp_path: Path):
    program = write_program(tmp_path / "other", "echo unknown flag: $2; exit 3")
    run = await measure_run(measuring_against(program, stage), "burst", MEASURE_BY_SCENARIO["burst"])
    assert run.figures == {}
    assert f"--against {program}" in run.problems[0]
    assert re.search(r"ended with status 3 before it was healthy.*\nunknown flag: --cloud", run.problems[0])
