"""What the design relies on when it writes: each row of the table, on a real and a simulated API server."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from libs.common.contract.node import Node, NodeAddress, NodeCondition, Taint
from libs.common.contract.node_patch import NodeChanges, build_node_patch, build_status_patch
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import FenceFailed, Forbidden, Invalid, KubeError, NotFound
from libs.common.kube.events import ObjectEvent, node_reference
from libs.testbed.kubelets import KubeletFleet
from tests.contract.conftest import ApiServer
from tests.kube_loopback import open_api_by

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
IPV4, IPV6 = (
    NodeAddress(type="InternalIP", address="10.0.0.5"),
    NodeAddress(type="InternalIP", address="fd00::5"),
)
HOSTNAME = NodeAddress(type="Hostname", address="web-1")
UNINITIALIZED = Taint(key="node.cloudprovider.kubernetes.io/uninitialized", value="true", effect="NoSchedule")


@pytest.fixture
async def bare(api: KubeApi, node: Node) -> Node:
    """The Node with neither labels, annotations nor taints: the API server leaves empty ones out."""
    return await api.patch_node(
        node.name,
        [
            {"op": "remove", "path": path}
            for path in ("/metadata/labels", "/metadata/annotations", "/spec/taints")
        ],
    )


def op(what: str, path: str, value: Any = None) -> dict[str, Any]:
    return {"op": what, "path": path} | ({} if what == "remove" else {"value": value})


# ---- JSON Patch


@pytest.mark.parametrize(
    "patch",
    [
        [op("test", "/metadata/uid", "another"), op("add", "/metadata/labels/x", "y")],
        [op("test", "/metadata/labels/here", "after"), op("add", "/metadata/labels/here", "x")],
        [op("test", "/metadata/labels/absent", "x"), op("add", "/metadata/labels/absent", "y")],
        [op("test", "/metadata/labels/here", None), op("add", "/metadata/labels/here", "x")],
        [op("remove", "/metadata/labels/absent")],
        [op("remove", "/spec/taints/7")],
        [
            op("test", "/spec/taints/0", {"key": "another", "effect": "NoSchedule"}),
            op("remove", "/spec/taints/0"),
        ],
        [op("add", "/status/nowhere/deep", "x")],
    ],
)
async def test_a_patch_whose_view_is_old_fails_as_a_fence_and_changes_nothing(
    api: KubeApi, node: Node, patch: list[dict[str, Any]]
):
    with pytest.raises(FenceFailed) as raised:
        await api.patch_node(node.name, patch)
    assert (raised.value.status, raised.value.causes) == (422, ())
    assert await api.get_node(node.name) == node


async def test_a_replace_of_an_absent_key_adds_it_and_so_is_no_fence(api: KubeApi, node: Node):
    after = await api.patch_node(node.name, [op("replace", "/metadata/labels/absent", "x")])
    assert after.labels["absent"] == "x"


@pytest.mark.real_only
@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ([op("add", "/metadata/labels/here", "not a label")], "metadata.labels"),
        ([op("add", "/metadata/labels/bad key", "x")], "metadata.labels"),
        (
            [op("add", "/spec/podCIDRs", ["10.0.0.0/99"]), op("add", "/spec/podCIDR", "10.0.0.0/99")],
            "spec.podCIDR",
        ),
        ([op("add", "/spec/taints/-", {"key": "a", "effect": "Sometimes"})], "taints"),
    ],
)
async def test_a_value_that_kubernetes_does_not_take_is_invalid_for_ever_and_names_the_field(
    api: KubeApi, node: Node, patch: list[dict[str, Any]], field: str
):
    with pytest.raises(Invalid) as raised:
        await api.patch_node(node.name, patch)
    assert any(field in cause.field for cause in raised.value.causes)


async def test_a_patch_of_a_node_that_is_gone_says_so(api: KubeApi):
    with pytest.raises(NotFound):
        await api.patch_node("gone", [op("test", "/metadata/uid", "x")])
    with pytest.raises(NotFound):
        await api.patch_node_status("gone", {"metadata": {"uid": "x"}})
    with pytest.raises(NotFound):
        await api.get_node("gone")


@pytest.mark.real_only
async def test_a_taint_that_somebody_else_appended_meanwhile_fails_as_a_fence(api: KubeApi, node: Node):
    again = {"key": UNINITIALIZED.key, "effect": UNINITIALIZED.effect}
    with pytest.raises(FenceFailed) as raised:
        await api.patch_node(node.name, [op("add", "/spec/taints/-", again)])
    assert raised.value.causes[0].reason == "FieldValueDuplicate"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([op("add", "/spec/providerID", "talos://a")], [op("add", "/spec/providerID", "talos://b")]),
        (
            [op("add", "/spec/podCIDRs", ["10.1.0.0/24"]), op("add", "/spec/podCIDR", "10.1.0.0/24")],
            [op("add", "/spec/podCIDRs", ["10.2.0.0/24"]), op("add", "/spec/podCIDR", "10.2.0.0/24")],
        ),
    ],
)
async def test_an_immutable_field_that_somebody_else_set_meanwhile_fails_as_a_fence(
    api: KubeApi, node: Node, first: list[dict[str, Any]], second: list[dict[str, Any]]
):
    await api.patch_node(node.name, first)
    with pytest.raises(FenceFailed) as raised:
        await api.patch_node(node.name, second)
    assert raised.value.causes


async def test_what_is_absent_with_its_parent_must_be_added_whole(api: KubeApi, bare: Node):
    for patch in (
        [op("add", "/spec/taints/-", {"key": "a", "effect": "NoSchedule"})],
        [op("test", "/metadata/labels/k", None), op("add", "/metadata/labels/k", "v")],
        [op("add", "/metadata/annotations/k", "v")],
    ):
        with pytest.raises(FenceFailed):
            await api.patch_node(bare.name, patch)
    changes = NodeChanges(labels={"k": "v"}, annotations={"k": "v"}, set_taints=(UNINITIALIZED,))
    after = await api.patch_node(bare.name, build_node_patch(bare, changes))
    assert (after.labels, after.annotations, after.spec.taints) == ({"k": "v"}, {"k": "v"}, (UNINITIALIZED,))


async def test_a_test_against_null_passes_for_what_is_absent_beside_others(api: KubeApi, node: Node):
    after = await api.patch_node(
        node.name,
        [
            op("test", "/spec/providerID", None),
            op("test", "/spec/podCIDRs", None),
            op("test", "/metadata/labels/absent", None),
            op("add", "/metadata/labels/absent", "nomore"),
        ],
    )
    assert after.labels["absent"] == "nomore"


async def test_taints_are_tested_whole_in_any_key_order_and_removed_from_the_highest_index_down(
    api: KubeApi, node: Node
):
    stamp = "2026-03-01T12:00:00Z"
    tainted = await api.patch_node(
        node.name,
        [
            op("add", "/spec/taints/-", {"key": "two", "effect": "NoExecute", "timeAdded": stamp}),
            op("add", "/spec/taints/-", {"key": "three", "value": "v", "effect": "NoSchedule"}),
        ],
    )
    last = len(tainted.spec.taints) - 1
    timeless = {"key": "two", "effect": "NoExecute"}
    with pytest.raises(FenceFailed):
        await api.patch_node(node.name, [op("test", f"/spec/taints/{last - 1}", timeless)])
    after = await api.patch_node(
        node.name,
        [
            op("test", f"/spec/taints/{last}", {"effect": "NoSchedule", "value": "v", "key": "three"}),
            op("remove", f"/spec/taints/{last}"),
            op("test", f"/spec/taints/{last - 1}", {"timeAdded": stamp, "effect": "NoExecute", "key": "two"}),
            op("remove", f"/spec/taints/{last - 1}"),
        ],
    )
    assert after.spec.taints == node.spec.taints


async def test_the_planned_patch_of_a_joining_node_is_taken_in_one_piece(api: KubeApi, node: Node):
    wanted = NodeChanges(
        labels={"topology.kubernetes.io/zone": "z1", "here": None},
        annotations={"talos.dev/owned": "x~y/z"},
        provider_id="metal://web-1",
        pod_cidrs=("10.9.0.0/24", "fd00:9::/64"),
        remove_taints=(UNINITIALIZED,),
    )
    after = await api.patch_node(node.name, build_node_patch(node, wanted))
    assert after.is_initialized
    assert after.labels == {"topology.kubernetes.io/zone": "z1"}
    assert after.spec.provider_id == "metal://web-1"
    assert after.spec.pod_cidrs == ("10.9.0.0/24", "fd00:9::/64")
    assert build_node_patch(after, wanted) == []


@pytest.mark.parametrize(
    ("planned", "restored"), [((IPV4,), ()), ((IPV4, IPV6), (IPV6, IPV4)), ((), (IPV4,))]
)
async def test_the_taint_stays_while_the_node_has_other_addresses_than_planned(
    api: KubeApi, node: Node, planned: tuple[NodeAddress, ...], restored: tuple[NodeAddress, ...]
):
    async def write(view: Node, wanted: tuple[NodeAddress, ...]) -> Node:
        status = build_status_patch(view, addresses=wanted, now=NOW)
        return await api.patch_node_status(node.name, status) if status else view

    planned_on = await write(node, planned)
    wanted = NodeChanges(remove_taints=(UNINITIALIZED,))
    after = await write(planned_on, restored)
    with pytest.raises(FenceFailed):
        await api.patch_node(node.name, build_node_patch(planned_on, wanted))
    assert (await api.patch_node(node.name, build_node_patch(after, wanted))).is_initialized


async def test_a_patch_that_changes_nothing_writes_nothing(api: KubeApi, node: Node):
    same = await api.patch_node(
        node.name, [op("test", "/metadata/uid", node.uid), op("add", "/metadata/labels/here", "before")]
    )
    assert same.metadata.resource_version == node.metadata.resource_version
    again = await api.patch_node_status(
        node.name, {"metadata": {"uid": node.uid, "labels": {"here": "before"}}}
    )
    assert again.metadata.resource_version == node.metadata.resource_version


# ---- strategic merge patch of the status


async def test_a_status_patch_for_another_node_of_that_name_fails_as_a_fence(api: KubeApi, node: Node):
    patch = {"metadata": {"uid": "another"}, "status": {"addresses": addresses(IPV4)}}
    with pytest.raises(FenceFailed) as raised:
        await api.patch_node_status(node.name, patch)
    assert {cause.field for cause in raised.value.causes} == {"metadata.uid"}
    assert (await api.get_node(node.name)).status.addresses == ()


def addresses(*wanted: NodeAddress, replace: bool = True) -> Sequence[dict[str, str]]:
    listed = [{"type": address.type, "address": address.address} for address in wanted]
    return [*listed, {"$patch": "replace"}] if replace else listed


async def test_addresses_are_replaced_as_a_whole_and_in_order_with_two_of_a_type(api: KubeApi, node: Node):
    before = await api.patch_node_status(
        node.name, build_status_patch(node, addresses=(IPV4, IPV6, HOSTNAME), now=NOW)
    )
    assert before.status.addresses == (IPV4, IPV6, HOSTNAME)
    after = await api.patch_node_status(
        node.name, build_status_patch(before, addresses=(IPV6, IPV4), now=NOW)
    )
    assert after.status.addresses == (IPV6, IPV4)
    assert build_status_patch(after, addresses=(IPV6, IPV4), now=NOW) == {}


async def test_without_the_replace_directive_addresses_would_be_merged_by_type(api: KubeApi, node: Node):
    await api.patch_node_status(node.name, build_status_patch(node, addresses=(IPV4, HOSTNAME), now=NOW))
    merged = await api.patch_node_status(node.name, {"status": {"addresses": addresses(IPV6, replace=False)}})
    assert set(merged.status.addresses) == {IPV6, HOSTNAME}


async def test_all_nodes_can_be_listed_whatever_times_a_kubelet_writes(api: KubeApi, node: Node):
    odd = {"type": "Ready", "status": "True", "lastTransitionTime": "0000-01-01T00:00:00Z"}
    await api.patch_node_status(node.name, {"status": {"conditions": [odd]}})
    [found] = [found async for page in api.list_nodes() for found in page.items if found.uid == node.uid]
    ready = found.find_condition("Ready")
    assert ready is not None
    assert ready.last_transition_time == "0000-01-01T00:00:00Z"


async def test_a_condition_of_ours_comes_and_goes_without_touching_the_kubelets(api: KubeApi, node: Node):
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    node = await api.patch_node_status(node.name, {"status": {"conditions": [ready]}})
    blocked = NodeCondition(type="TalosInitializationBlocked", status="True", reason="TalosUnreachable")
    told = await api.patch_node_status(node.name, build_status_patch(node, set_condition=blocked, now=NOW))
    found = told.find_condition("TalosInitializationBlocked")
    assert found is not None
    assert found.last_transition_time is not None
    assert (found.reason, datetime.fromisoformat(found.last_transition_time)) == ("TalosUnreachable", NOW)
    cleared = await api.patch_node_status(
        node.name,
        build_status_patch(told, addresses=(IPV4,), remove_condition="TalosInitializationBlocked", now=NOW),
    )
    assert [condition.type for condition in cleared.status.conditions] == ["Ready"]
    assert cleared.status.addresses == (IPV4,)


# ---- Events, rights, lists


async def test_an_event_told_twice_in_a_minute_is_one_event_on_the_node(
    api: KubeApi, node: Node, admin: KubeletFleet
):
    event = ObjectEvent(
        regarding=node_reference(node.name, node.uid),
        reason="Synced",
        message="Node synced",
        component="talos-ccm",
    )
    await api.create_event(event, now=NOW)
    again = msgspec.structs.replace(event, message="Node synced again")
    await api.create_event(again, now=NOW.replace(second=59))
    selector = f"involvedObject.uid={node.uid}"
    found = await admin.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")
    assert [(e["reason"], e["message"], e["involvedObject"]["kind"]) for e in found.body["items"]] == [
        ("Synced", "Node synced", "Node")
    ]
    stored = found.body["items"][0]
    assert (stored["reportingInstance"], stored["count"]) == ("test", 1)
    assert stored["firstTimestamp"] == "2026-03-01T12:00:00Z"


async def test_a_right_that_is_missing_is_told_with_who_lacks_what(api_server: ApiServer, node: Node):
    async with open_api_by(api_server.kubeconfig("stranger")) as stranger:
        with pytest.raises(Forbidden, match=r'User "stranger" cannot get resource "nodes"'):
            await stranger.get_node(node.name)


async def test_a_name_that_would_address_the_collection_never_leaves(api: KubeApi):
    for name in ("", ".", ".."):
        with pytest.raises(Invalid):
            await api.get_node(name)


async def test_a_name_with_slashes_stays_one_name(api: KubeApi):
    with pytest.raises(KubeError) as raised:
        await api.get_node("web-1/status?watch=1")
    assert raised.value.status in {400, 404}
