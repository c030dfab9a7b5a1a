"""Nodes of the testbed become not ready as Nodes do: by silence, or because their kubelets say so."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.kubelets import Kubelet, Kubelets
from tests.bus_actors import eventually


@pytest.fixture
async def kubelets(tmp_path: Path) -> AsyncIterator[Kubelets]:
    """On a control plane that waits 4 s for a heartbeat."""
    async with ControlPlane.start(tmp_path / "own", grace_seconds=4) as own, Kubelets.start(own) as running:
        yield running


async def readiness(kubelets: Kubelets, name: str) -> str:
    node = (await kubelets.request("GET", f"/api/v1/nodes/{name}")).body
    return str(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))


async def test_a_kubelet_that_falls_silent_is_unknown_and_one_that_beats_stays_ready(kubelets: Kubelets):
    for name in ("beats", "silent", "says-no"):
        await kubelets.join(Kubelet(name=name))

    async def is_unknown() -> bool:
        return await readiness(kubelets, "silent") == "Unknown"

    async with kubelets.beating("beats", "says-no"):
        await kubelets.turn_not_ready("says-no")
        await eventually(is_unknown, "the silent one is marked")
        assert await readiness(kubelets, "beats") == "True"
        assert await readiness(kubelets, "says-no") == "False"
        async with kubelets.beating("silent"):
            await kubelets.turn_ready("silent")
            assert await readiness(kubelets, "silent") == "True"
