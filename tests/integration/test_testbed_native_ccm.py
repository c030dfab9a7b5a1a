"""A cloud's own cloud controller manager does in the testbed what k8s.io/cloud-provider does."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.native_ccm import CloudInstance, NativeCcm
from tests.bus_actors import wait_until

HERE = CloudInstance(
    name="native-1", provider_id="hcloud://1", instance_type="cx22", zone="fsn1-dc14", region="fsn1",
    internal_ips=("10.0.0.5",), external_ips=("203.0.113.5",),
)  # fmt: skip
USER = NativeCcm.USER


@pytest.fixture
async def joined(control_plane: ControlPlane) -> AsyncIterator[KubeletFleet]:
    """One Node of that cloud, one of no cloud, and one that another cloud has initialized."""
    async with KubeletFleet.start(control_plane) as kubelets:
        names = ("native-1", "native-metal", "native-other")
        for name in names:
            await kubelets.join(SimKubelet(name=name))
        await kubelets.request(
            "PATCH",
            "/api/v1/nodes/native-other",
            body={"spec": {"providerID": "talos://metal/1", "taints": []}},
            content_type="application/merge-patch+json",
        )
        yield kubelets
        for name in names:
            await kubelets.delete_node(name)


async def node(kubelets: KubeletFleet, name: str) -> dict[str, Any]:
    return dict((await kubelets.request("GET", f"/api/v1/nodes/{name}")).body)


def taints(node: dict[str, Any]) -> set[str]:
    return {taint["key"] for taint in node["spec"].get("taints", [])}


async def until_initialized(kubelets: KubeletFleet, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_synced() -> bool:
        nonlocal found
        found = await node(kubelets, name)
        types = {address["type"] for address in found["status"]["addresses"]}
        return UNINITIALIZED_TAINT not in taints(found) and "ExternalIP" in types

    await wait_until(is_synced, f"{name} initialized", 60)
    return found


async def test_it_initializes_its_own_node_and_writes_to_no_other(
    control_plane: ControlPlane, joined: KubeletFleet, tmp_path: Path
):
    since = control_plane.audit_mark()
    async with NativeCcm.start(tmp_path / "native", control_plane, scheme="hcloud", instances=[HERE]):
        found = await until_initialized(joined, "native-1")
    assert found["spec"]["providerID"] == "hcloud://1"
    labels = found["metadata"]["labels"]
    assert labels["topology.kubernetes.io/zone"] == "fsn1-dc14"
    assert labels["topology.kubernetes.io/region"] == "fsn1"
    assert labels["node.kubernetes.io/instance-type"] == "cx22"
    assert {"type": "ExternalIP", "address": "203.0.113.5"} in found["status"]["addresses"]
    fields = {
        change.field
        for change in control_plane.list_node_changes()
        if (change.user, change.node) == (USER, "native-1")
    }
    assert {"spec.providerID", "status.addresses", "metadata.labels[topology.kubernetes.io/zone]"} <= fields
    assert f"spec.taints[{UNINITIALIZED_TAINT}:NoSchedule].key" in fields
    assert {write.about for write in control_plane.list_node_writes(since) if write.user == USER} == {
        "native-1"
    }
    assert UNINITIALIZED_TAINT in taints(await node(joined, "native-metal"))
