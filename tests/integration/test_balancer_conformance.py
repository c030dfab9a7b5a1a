"""Ours and the service controller of k8s.io/cloud-provider do the same; a case names each difference."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.native_ccm import SERVICE_LB, NativeCcm
from tests.balancer_actors import BalancerCluster
from tests.integration.balancer_cases import CASES, PHASES
from tests.integration.balancer_run import (
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


def test_a_difference_is_one():
    for case in CASES:
        if case.ours is not None:
            assert case.outcome != case.ours.apply(case.outcome), case.name
