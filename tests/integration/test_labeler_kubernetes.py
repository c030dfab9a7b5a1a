"""The in-memory API server of the labeler's flow tests behaves like a real one."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from libs.common.contract.node import BLOCKED_CONDITION, Node, NodeAddress, NodeCondition
from libs.common.contract.node_patch import NodeChanges, build_node_patch, build_status_patch
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import FenceFailed, KubeError, NotFound
from libs.common.kube.events import ObjectEvent, node_reference
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from tests.builders import make_node
from tests.labeler_actors import InMemoryNodes

_numbers = itertools.count(1)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
DUAL = (
    NodeAddress(type="InternalIP", address="10.0.0.5"),
    NodeAddress(type="InternalIP", address="2001:db8::5"),
    NodeAddress(type="ExternalIP", address="203.0.113.7"),
    NodeAddress(type="Hostname", address="web-1"),
)
SAYS_WHY = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="TalosTimeout", message="no answer")

Server = tuple[Any, Callable[[], Awaitable[Node]]]  # the API, and how to get a new Node


@pytest.fixture(params=["in-memory", "real"])
async def server(
    request: pytest.FixtureRequest, control_plane: ControlPlane, kubelets: KubeletFleet
) -> AsyncIterator[Server]:
    if request.param == "in-memory":
        nodes = InMemoryNodes()

        async def put() -> Node:
            return nodes.put(make_node(f"conform-{next(_numbers)}"))

        yield nodes, put
        return
    kube = KubeApi(load_kube_config(control_plane.kubeconfig(), {}), user_agent="talos-ccm/test")
    names: list[str] = []

    async def create() -> Node:
        names.append(f"conform-{next(_numbers)}")
        taints = [
            {"key": taint.key, "value": taint.value, "effect": taint.effect}
            for taint in make_node().spec.taints
        ]
        metadata = {"name": names[-1], "labels": make_node().labels, "annotations": make_node().annotations}
        await kubelets.request(
            "POST", "/api/v1/nodes", body={"metadata": metadata, "spec": {"taints": taints}}
        )
        return await kube.get_node(names[-1])

    yield kube, create
    for name in names:
        await kubelets.delete_node(name)
    await kube.close()


async def test_both_patches_make_what_was_planned_and_answer_with_it(server: Server):
    kube, create = server
    node = await create()
    after = await kube.patch_node_status(node.name, build_status_patch(node, addresses=DUAL, now=NOW))
    assert after.status.addresses == DUAL
    changes = NodeChanges(labels={"a/b": "c", "kubernetes.io/hostname": None}, provider_id="hcloud://7")
    after = await kube.patch_node(node.name, build_node_patch(after, changes))
    assert after == await kube.get_node(node.name)
    assert after.labels == {"a/b": "c"}
    assert after.spec.provider_id == "hcloud://7"
    assert after.status.addresses == DUAL


async def test_addresses_are_replaced_as_a_whole(server: Server):
    kube, create = server
    node = await create()
    after = await kube.patch_node_status(node.name, build_status_patch(node, addresses=DUAL, now=NOW))
    fewer = DUAL[1::2]
    after = await kube.patch_node_status(node.name, build_status_patch(after, addresses=fewer, now=NOW))
    assert after.status.addresses == fewer


async def test_a_condition_comes_changes_and_goes_and_others_stay(server: Server):
    kube, create = server
    node = await create()
    other = NodeCondition(type="Ready", status="True", reason="KubeletReady", message="ready")
    await kube.patch_node_status(node.name, build_status_patch(node, set_condition=other, now=NOW))
    after = await kube.patch_node_status(node.name, build_status_patch(node, set_condition=SAYS_WHY, now=NOW))
    found = after.find_condition(BLOCKED_CONDITION)
    assert (found.status, found.reason, found.message) == ("True", "TalosTimeout", "no answer")
    gone = build_status_patch(after, addresses=DUAL, remove_condition=BLOCKED_CONDITION, now=NOW)
    after = await kube.patch_node_status(node.name, gone)
    assert after.find_condition(BLOCKED_CONDITION) is None
    assert after.find_condition("Ready") is not None
    assert after.status.addresses == DUAL


async def test_a_key_that_has_changed_since_fails_the_fence_and_changes_nothing(server: Server):
    kube, create = server
    node = await create()
    stale = build_node_patch(node, NodeChanges(labels={"a": "b"}, provider_id="hcloud://7"))
    await kube.patch_node(node.name, build_node_patch(node, NodeChanges(labels={"a": "theirs"})))
    with pytest.raises(FenceFailed):
        await kube.patch_node(node.name, stale)
    after = await kube.get_node(node.name)
    assert (after.labels["a"], after.spec.provider_id) == ("theirs", "")


async def assert_patches_raise(error: type[KubeError], kube: Any, node: Node) -> None:
    """Neither the status nor the Node is patched."""
    with pytest.raises(error):
        await kube.patch_node_status(node.name, build_status_patch(node, addresses=DUAL, now=NOW))
    with pytest.raises(error):
        await kube.patch_node(node.name, build_node_patch(node, NodeChanges(labels={"a": "b"})))


async def test_another_uid_fails_both_fences(server: Server):
    kube, create = server
    node = await create()
    another = make_node(node.name, uid="another")
    await assert_patches_raise(FenceFailed, kube, another)


async def test_a_node_that_does_not_exist_is_not_found(server: Server):
    kube, _ = server
    unknown = make_node("conform-unknown")
    with pytest.raises(NotFound):
        await kube.get_node(unknown.name)
    await assert_patches_raise(NotFound, kube, unknown)


async def test_an_event_is_told_once_in_a_minute(server: Server):
    kube, create = server
    node = await create()
    event = ObjectEvent(
        regarding=node_reference(node.name, f"{node.uid}-{node.name}"),
        reason="Synced",
        message="m",
        component="talos-ccm",
    )
    assert await kube.create_event(event, now=NOW)
    assert not await kube.create_event(event, now=NOW)
