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

SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
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


async def test_it_taints_what_is_switched_off_and_deletes_what_is_gone_but_nothing_while_its_cloud_is_silent(
    control_plane: ControlPlane, joined: KubeletFleet, tmp_path: Path
):
    async with NativeCcm.start(
        tmp_path / "native", control_plane, scheme="hcloud", instances=[HERE], monitor_seconds=0.2
    ) as native:
        await until_initialized(joined, "native-1")
        for name in ("native-1", "native-other"):
            await joined.set_not_ready(name)
        native.shut_down("native-1")

        async def is_tainted() -> bool:
            return SHUTDOWN in taints(await node(joined, "native-1"))

        await wait_until(is_tainted, "the taint of a machine that is switched off", 60)
        await joined.set_ready("native-1")
        native.switch_on("native-1")

        async def is_clean() -> bool:
            return not await is_tainted()

        await wait_until(is_clean, "no taint of a machine that runs", 60)

        native.fail_api()
        native.terminate("native-1")
        since = control_plane.audit_mark()
        await joined.set_not_ready("native-1")
        asked = native.child.log.stat().st_size
        await wait_until(
            lambda: native.child.log.read_bytes()[asked:].count(b"does not answer") >= 3, "asked in vain"
        )
        assert not [write for write in control_plane.list_node_writes(since) if write.user == USER]

        native.restore_api()

        async def is_gone() -> bool:
            return (await joined.request("GET", "/api/v1/nodes/native-1")).status == 404

        await wait_until(is_gone, "deleted", 60)
    deleted = [
        write.about
        for write in control_plane.list_node_writes(since)
        if write.user == USER and write.verb == "delete"
    ]
    assert deleted == ["native-1"]
    assert (await joined.request("GET", "/api/v1/nodes/native-other")).status == 200
