"""The installed csr-only profile: certificates for kubelets without queries of machines."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.helm.chart import render_manifests
from libs.testbed.kubelets import SimKubelet
from libs.testbed.machine_fleet import MachineFleet
from tests.deploy.installation import Installation
from tests.deploy.profiles import PROFILES


async def test_kubelets_get_certificates_for_the_addresses_that_are_allowed_without_a_talos_credential(
    tmp_path: Path,
):
    async with AsyncExitStack() as stack:
        control_plane = await stack.enter_async_context(ControlPlane.start(tmp_path / "control-plane"))
        machines = await stack.enter_async_context(MachineFleet.start(tmp_path / "machines"))
        found = await asyncio.to_thread(render_manifests, PROFILES["csr-only"])
        installed = await stack.enter_async_context(Installation.applied(control_plane, machines, found))
        await installed.run_nats(tmp_path)
        await installed.run_services(tmp_path)
        assert installed.pods.keys() == {"nats", "watcher", "metadata", "csr"}
        within = SimKubelet(name="within", ips=("10.1.0.1",))
        outside = SimKubelet(name="outside", ips=("198.51.100.1",))
        await installed.kubelets.join_all([within, outside])
        granted = await installed.kubelets.request_certificate(within)
        denied = await installed.kubelets.request_certificate(outside)
        assert (await installed.kubelets.wait_for_outcome(granted, seconds=60)).certificate
        why = (await installed.kubelets.wait_for_outcome(denied, seconds=60)).conditions["Denied"]["message"]
        assert "198.51.100.1 is not within --csr-allowed-networks" in why
        assert "TALOSCONFIG" not in installed.pods["metadata"].environment("metadata")
        assert await machines.count_calls() == {}
        assert installed.forbidden_requests() == {}
