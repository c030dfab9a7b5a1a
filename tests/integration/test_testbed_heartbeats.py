"""Nodes of the testbed become not ready as Nodes do: by silence, or because their kubelets say so."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until


@pytest.fixture
async def kubelets(tmp_path: Path) -> AsyncIterator[KubeletFleet]:
    """On a control plane that waits 4 s for a heartbeat."""
    async with (
        ControlPlane.start(tmp_path / "own", grace_seconds=4) as own,
        KubeletFleet.start(own) as running,
    ):
        yield running


async def readiness(kubelets: KubeletFleet, name: str) -> str:
    node = (await kubelets.request("GET", f"/api/v1/nodes/{name}")).body
    return str(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))


async def test_a_kubelet_that_falls_silent_is_unknown_and_one_that_beats_stays_ready(kubelets: KubeletFleet):
    for name in ("beats", "silent", "says-no"):
        await kubelets.join(SimKubelet(name=name))

    async def is_unknown() -> bool:
        return await readiness(kubelets, "silent") == "Unknown"

    async with kubelets.keep_heartbeats("beats", "says-no"):
        await kubelets.set_not_ready("says-no")
        await wait_until(is_unknown, "the silent one is marked")
        assert await readiness(kubelets, "beats") == "True"
        assert await readiness(kubelets, "says-no") == "False"
        async with kubelets.keep_heartbeats("silent"):
            await kubelets.set_ready("silent")
            assert await readiness(kubelets, "silent") == "True"
