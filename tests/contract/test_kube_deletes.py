"""A Node is deleted as the very object and version that was judged, on a real and a simulated API server."""

from collections.abc import AsyncIterator

import pytest

from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Conflict, Forbidden, Invalid, NotFound
from libs.common.kube.lease import get_annotation, set_annotation, vacant_lease_document
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.kubelets import KubeletFleet
from tests.contract.conftest import ApiServer

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


@pytest.fixture
async def node(admin: KubeletFleet, api: KubeApi, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    name = f"d{abs(hash(request.node.name)) % 10**12}"
    created = await admin.request("POST", "/api/v1/nodes", body={"metadata": {"name": name}})
    assert created.status == 201, created
    yield await api.get_node(name)
    await admin.delete_node(name)


async def test_a_node_is_deleted_as_the_version_that_was_seen(api: KubeApi, node: Node):
    await api.delete_node(node.name, uid=node.uid, resource_version=node.metadata.resource_version)
    with pytest.raises(NotFound):
        await api.get_node(node.name)


async def test_a_node_that_somebody_wrote_since_stays(api: KubeApi, node: Node):
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"changed-by": "another-client"}}]
    now = await api.patch_node(node.name, patch)
    with pytest.raises(Conflict):
        await api.delete_node(node.name, uid=node.uid, resource_version=node.metadata.resource_version)
    assert await api.get_node(node.name) == now


async def test_another_node_of_that_name_stays(api: KubeApi, node: Node):
    version = node.metadata.resource_version
    with pytest.raises(Conflict):
        await api.delete_node(node.name, uid="01234567-89ab-4cde-8f01-23456789abcd", resource_version=version)
    assert await api.get_node(node.name) == node


@pytest.mark.parametrize(("uid", "version"), [("", "7"), ("uid-1", ""), ("", "")])
async def test_without_both_preconditions_nothing_leaves(api: KubeApi, node: Node, uid: str, version: str):
    with pytest.raises(Invalid):
        await api.delete_node(node.name, uid=uid, resource_version=version)
    assert await api.get_node(node.name) == node


async def test_a_node_that_is_gone_is_told_as_such(api: KubeApi):
    with pytest.raises(NotFound):
        await api.delete_node("never-there", uid="01234567-89ab-4cde-8f01-23456789abcd", resource_version="7")


async def test_who_may_not_delete_is_told_so(api_server: ApiServer, api: KubeApi, node: Node):
    stranger = KubeApi(load_kube_config(api_server.kubeconfig("stranger"), {}), user_agent="talos-ccm/test")
    try:
        with pytest.raises(Forbidden):
            await stranger.delete_node(
                node.name, uid=node.uid, resource_version=node.metadata.resource_version
            )
    finally:
        await stranger.close()
    assert await api.get_node(node.name) == node


async def test_an_annotation_of_a_lease_is_written_as_the_version_that_was_read(
    api: KubeApi, admin: KubeletFleet
):
    name = "lease-with-a-record"
    try:
        made = await api.create_lease("kube-system", vacant_lease_document("kube-system", name))
        assert (made.holder, get_annotation(made, "a.b/c")) == ("", "")
        await api.update_lease("kube-system", name, set_annotation(made.document, "a.b/c", "one"))
        with pytest.raises(Conflict):
            await api.update_lease("kube-system", name, set_annotation(made.document, "a.b/c", "two"))
        now = await api.get_lease("kube-system", name)
        assert get_annotation(now, "a.b/c") == "one"
        assert (
            get_annotation(
                await api.update_lease("kube-system", name, set_annotation(now.document, "d", "2")), "a.b/c"
            )
            == "one"
        )
    finally:
        await admin.request("DELETE", f"{LEASES}/{name}")
