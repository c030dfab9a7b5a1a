"""Lists and watches on a real and a simulated API server: what a reflector relies on."""

from libs.common.kube.api import NODES, KubeApi
from libs.common.kube.request import Request
from libs.common.kube.watch_events import Bookmark, Deleted, ListSnapshot
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.contract.conftest import ApiServer
from tests.kube_follower import follow_nodes


async def label(api: KubeApi, name: str, value: str) -> None:
    await api.patch_node(name, [{"op": "add", "path": "/metadata/labels/x", "value": value}])


async def test_a_node_that_joins_changes_and_leaves_is_told_in_that_order(api: KubeApi, admin: KubeletFleet):
    async with follow_nodes(api) as (follower, reflector):
        await wait_until(lambda: not reflector.problems(), "listed")
        await admin.join(SimKubelet(name="comes"))
        await label(api, "comes", "y")
        await wait_until(lambda: "comes" in follower.nodes and follower.nodes["comes"].labels.get("x") == "y")
        await admin.delete_node("comes")
        await wait_until(lambda: "comes" not in follower.nodes)
    kinds = [type(event) for event in follower.events if not isinstance(event, Bookmark)]
    assert (kinds[0], kinds[-1]) == (ListSnapshot, Deleted)


async def test_watches_follow_one_another_without_another_list(
    api: KubeApi, admin: KubeletFleet, api_server: ApiServer
):
    await admin.join(SimKubelet(name="stays"))
    mark = api_server.audit_mark()
    async with follow_nodes(api, watch_seconds=(3, 3)) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 1)
        await label(api, "stays", "first")

        def asked(verb: str) -> int:
            counted = api_server.audit_counts(mark)
            return sum(n for k, n in counted.items() if (k.verb, k.resource) == (verb, "nodes"))

        await wait_until(lambda: asked("watch") >= 3, "three watches", 30)
        await label(api, "stays", "last")
        await wait_until(lambda: follower.nodes["stays"].labels.get("x") == "last", "the last change")
    assert follower.count(Bookmark) >= 1
    assert follower.count(ListSnapshot) == asked("list") == 1
    assert follower.errors == []
    await admin.delete_node("stays")


async def test_whether_a_node_exists_is_answered_by_a_list_of_that_name(api: KubeApi, admin: KubeletFleet):
    await admin.join(SimKubelet(name="asked-for"))
    await admin.join(SimKubelet(name="asked-for.example"))
    async with follow_nodes(api) as (_, reflector):
        assert await reflector.absent_as_of_version("asked-for") is None
        existed = (await api.get_node("asked-for")).metadata.resource_version
        await admin.delete_node("asked-for")
        version = await reflector.absent_as_of_version("asked-for")
    assert version is not None
    assert int(version) > int(existed)
    await admin.delete_node("asked-for.example")


async def test_the_server_opens_a_watch_from_a_version_it_has_never_reached_and_says_nothing(
    api: KubeApi, admin: KubeletFleet
):
    # If this ever fails, the server tells by itself, and the check after each break can go.
    query = {"watch": "1", "resourceVersion": "99999999999", "timeoutSeconds": "2"}
    request = Request(verb="watch", resource="nodes", path=NODES.path, query=query)
    async with api.transport.open_watch(request, seconds=10.0) as read_line:
        await admin.join(SimKubelet(name="unheard"))
        assert await read_line() == b""
    await admin.delete_node("unheard")
