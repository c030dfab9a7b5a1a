"""Ours and the service controller of k8s.io/cloud-provider do the same; a case names each difference."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.native_ccm import SERVICE_LB, NativeCcm
from tests.bus_actors import wait_until
from tests.clouds.balancer_actors import BalancerCluster
from tests.integration.clouds.balancer_cases import CASES, PHASES
from tests.integration.clouds.balancer_run import (
    ConformanceRun,
    Controller,
    HetznerCloud,
    NativeCloud,
    conformance_run,
)


@asynccontextmanager
async def run_controller(
    controller: Controller, control_plane: ControlPlane, kubelets: KubeletFleet, folder: Path
) -> AsyncIterator[ConformanceRun]:
    """The table, with this controller for Services without a class."""
    if controller == "native":
        async with (
            NativeCcm.start(folder, control_plane, scheme="hcloud", controllers=[SERVICE_LB]) as native,
            conformance_run(kubelets, controller, NativeCloud(native)) as run,
        ):
            yield run
        return
    async with (
        BalancerCluster.open(control_plane, folder) as cluster,
        cluster.run_watcher(),
        cluster.run_account(balancer_classes=(), default_balancer_account="prod"),
        conformance_run(kubelets, controller, HetznerCloud(cluster)) as run,
    ):
        yield run


@pytest.mark.parametrize("controller", ["native", "ours"])
async def test_each_case_ends_as_the_table_says(
    controller: Controller, control_plane: ControlPlane, kubelets: KubeletFleet, tmp_path: Path
):
    async with run_controller(controller, control_plane, kubelets, tmp_path) as run:
        for phase in PHASES:
            expected = {case.name: run.expect(case) for case in CASES if case.phase == phase}
            assert await run.take_phase(phase) == expected
        await run.end()


async def test_beside_kubernetes_own_controller_a_service_of_a_class_leaves_no_load_balancer(
    control_plane: ControlPlane, tmp_path: Path
):
    """That controller takes its finalizer from every Service that ends, of whatever class."""
    async with (
        NativeCcm.start(tmp_path / "native", control_plane, scheme="hcloud", controllers=[SERVICE_LB]),
        BalancerCluster.open(control_plane, tmp_path) as cluster,
        cluster.run_watcher(),
        cluster.run_account(),
    ):
        await cluster.create_service("paid")
        await cluster.wait_for_address("paid")
        cluster.cloud.add_fault("quota", r"/load_balancers/\d+", method="DELETE", effect="never")
        await cluster.delete_service("paid")
        await cluster.create_service("theirs", loadBalancerClass=None)
        await wait_until(lambda: has_event(cluster, "theirs", "EnsuredLoadBalancer"), "theirs is served")
        await cluster.delete_service("theirs")
        await wait_until(lambda: has_event(cluster, "theirs", "DeletedLoadBalancer"), "theirs is deleted")
        assert await cluster.find_service("paid") is not None
        cluster.cloud.faults.clear()
        await cluster.wait_for_end("paid")


async def has_event(cluster: BalancerCluster, name: str, reason: str) -> bool:
    return reason in await cluster.list_events(name)


def test_a_difference_is_one():
    for case in CASES:
        if case.ours is not None:
            assert case.outcome != case.ours.apply(case.outcome), case.name
