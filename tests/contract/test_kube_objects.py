"""ConfigMaps, fenced deletions and the texts of patches, on every API server."""

from collections.abc import AsyncIterator

import pytest

from libs.common.contract.node import Node, ObjectMeta
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import AlreadyExists, Conflict, Invalid, NotFound
from libs.common.kube.objects import ConfigMap
from libs.testbed.kubelets import KubeletFleet

NAMESPACE = "kube-system"
LABELS = {"app.kubernetes.io/managed-by": "talos-ccm", "app.kubernetes.io/component": "test"}
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


def a_config_map(
    name: str, *, version: str = "", labels: dict[str, str] | None = None, **data: str
) -> ConfigMap:
    metadata = ObjectMeta(name=name, resource_version=version, labels=LABELS if labels is None else labels)
    return ConfigMap(metadata=metadata, data=data)


@pytest.fixture
async def name(admin: KubeletFleet, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The name of a ConfigMap that is deleted afterwards."""
    made = f"c{abs(hash(request.node.name)) % 10**12}"
    yield made
    await admin.request("DELETE", f"{PATH}/{made}")


async def listed(api: KubeApi, labels: dict[str, str]) -> list[ConfigMap]:
    return [found async for page in api.list_config_maps(NAMESPACE, labels) for found in page.items]


async def test_what_is_created_is_read_and_listed_as_it_was_written(api: KubeApi, name: str):
    labels = LABELS | {"more": "x"}
    created = await api.create_config_map(NAMESPACE, a_config_map(name, labels=labels, key="value"))
    assert created.metadata.resource_version
    read = await api.get_config_map(NAMESPACE, name)
    assert (read.data, read.metadata.labels) == ({"key": "value"}, labels)
    assert read.metadata.resource_version == created.metadata.resource_version
    assert [found.metadata.name for found in await listed(api, LABELS)] == [name]
    assert await listed(api, LABELS | {"another": "label"}) == []


async def test_a_second_create_is_refused_whatever_it_says(api: KubeApi, name: str):
    await api.create_config_map(NAMESPACE, a_config_map(name, key="value"))
    with pytest.raises(AlreadyExists):
        await api.create_config_map(NAMESPACE, a_config_map(name, key="other"))
    assert (await api.get_config_map(NAMESPACE, name)).data == {"key": "value"}


async def test_an_update_replaces_only_the_version_that_it_names(api: KubeApi, name: str):
    first = await api.create_config_map(NAMESPACE, a_config_map(name, key="1"))
    version = first.metadata.resource_version
    second = await api.update_config_map(NAMESPACE, a_config_map(name, version=version, key="2"))
    assert second.metadata.resource_version != version
    with pytest.raises(Conflict) as refused:
        await api.update_config_map(NAMESPACE, a_config_map(name, version=version, key="3"))
    assert not isinstance(refused.value, AlreadyExists)
    assert (await api.get_config_map(NAMESPACE, name)).data == {"key": "2"}


async def test_an_update_of_what_was_deleted_does_not_bring_it_back(
    admin: KubeletFleet, api: KubeApi, name: str
):
    created = await api.create_config_map(NAMESPACE, a_config_map(name, key="1"))
    await admin.request("DELETE", f"{PATH}/{name}")
    with pytest.raises((NotFound, Conflict)):
        await api.update_config_map(
            NAMESPACE, a_config_map(name, version=created.metadata.resource_version, key="2")
        )
    with pytest.raises(NotFound):
        await api.get_config_map(NAMESPACE, name)


@pytest.mark.real_only
async def test_more_than_a_mebibyte_is_refused_for_good(api: KubeApi, name: str):
    with pytest.raises(Invalid):
        await api.create_config_map(NAMESPACE, a_config_map(name, key="x" * (1024 * 1024 + 1)))


@pytest.mark.real_only
async def test_a_list_has_all_pages_of_one_moment(admin: KubeletFleet, api: KubeApi):
    labels = LABELS | {"many": "yes"}
    names = [f"many-{number:02}" for number in range(45)]
    for each in names:
        await api.create_config_map(NAMESPACE, a_config_map(each, labels=labels))
    try:
        pages = [page async for page in api.list_config_maps(NAMESPACE, labels)]
        assert [len(page.items) for page in pages] == [20, 20, 5]
        assert len({page.resource_version for page in pages}) == 1
        assert sorted(found.metadata.name for page in pages for found in page.items) == names
    finally:
        for each in names:
            await admin.request("DELETE", f"{PATH}/{each}")


LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


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


TEXTS = {
    "what Go escapes for HTML": "made by <metal> & co",
    "line separators of JavaScript": "a\u2028b\u2029c",
    "control characters": "".join(chr(code) for code in range(1, 32)) + "\x7f\x80",
    "quotes and slashes": "\"'\\/\\u003c",
    "JSON": '{"labels":{"a":"<b>"}}',
    "beyond the basic plane": "ä€😀\ufffd\uffff",
    "nothing": "",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
async def test_a_text_that_was_written_is_found_again_by_its_test(
    admin: KubeletFleet, api: KubeApi, text: str
):
    name = "texts"
    path = "/metadata/annotations/text"
    metadata = {"name": name, "annotations": {"other": "x"}}
    await admin.send("POST", "/api/v1/nodes", body={"metadata": metadata})
    try:
        node = await api.patch_node(
            name,
            [
                {"op": "test", "path": path, "value": None},
                {"op": "add", "path": path, "value": text},
            ],
        )
        assert node.annotations["text"] == text
        removal = [{"op": "test", "path": path, "value": text}, {"op": "remove", "path": path}]
        assert "text" not in (await api.patch_node(name, removal)).annotations
    finally:
        await admin.delete_node(name)
