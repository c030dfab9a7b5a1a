"""Watches of Nodes and of the requests of one signer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from libs.common.contract.signing_request import KUBELET_SERVING, REQUEST_LIMIT, SigningRequest
from libs.common.kube.api import NODES, SIGNING_REQUESTS, KubeApi
from libs.common.kube.reflector import Reflector
from libs.common.kube.request import Request
from libs.common.kube.watch_events import Bookmark, Changed, Deleted, ListSnapshot, WatchEvent
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.signing_requests import CSRS, SERVING_USAGES, build_signing_request, make_request_pem
from tests.bus_actors import run_during, wait_until
from tests.contract.conftest import ApiServer
from tests.kube_loopback import follow_nodes


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

        def count_requests(verb: str) -> int:
            counted = api_server.audit_counts(mark)
            return sum(n for k, n in counted.items() if (k.verb, k.resource) == (verb, "nodes"))

        await wait_until(lambda: count_requests("watch") >= 3, "three watches")
        await label(api, "stays", "last")
        await wait_until(lambda: follower.nodes["stays"].labels.get("x") == "last", "the last change")
    assert follower.count(ListSnapshot) == count_requests("list") == 1
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


USER = "system:node:asks"
OTHER = "example.com/other"
PEM = make_request_pem(common_name=USER, dns=["asks"], ips=["10.7.0.2"])
OURS = f"spec.signerName={KUBELET_SERVING}"


async def file(admin: KubeletFleet, name: str, signer: str = KUBELET_SERVING) -> None:
    body = build_signing_request(PEM, usages=SERVING_USAGES, expiration_seconds=None, signer=signer)
    await admin.send("POST", CSRS, as_node="asks", body=body | {"metadata": {"name": name}})


@pytest.fixture
async def six(admin: KubeletFleet) -> AsyncIterator[None]:
    """list-0, 2 and 4 of the kubelets' signer, list-1, 3 and 5 of another."""
    for number in range(6):
        await file(admin, f"list-{number}", OTHER if number % 2 else KUBELET_SERVING)
    yield
    for number in range(6):
        await admin.request("DELETE", f"{CSRS}/list-{number}")


async def pages(admin: KubeletFleet, query: str) -> list[tuple[list[str], int | None]]:
    """Names and remainingItemCount of each page."""
    received: list[tuple[list[str], int | None]] = []
    token = ""
    while True:
        body = (await admin.request("GET", f"{CSRS}?{query}{token}")).body
        names = [item["metadata"]["name"] for item in body["items"]]
        received.append((names, body["metadata"].get("remainingItemCount")))
        if not (text := body["metadata"].get("continue", "")):
            return received
        token = f"&continue={text}"


@pytest.mark.usefixtures("six")
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [(["list-0", "list-1", "list-2", "list-3", "list-4", "list-5"], None)]),
        (f"fieldSelector={OURS}", [(["list-0", "list-2", "list-4"], None)]),
        (f"fieldSelector=spec.signerName%3D{OTHER}", [(["list-1", "list-3", "list-5"], None)]),
        (f"fieldSelector={OURS},metadata.name=list-2", [(["list-2"], None)]),
        ("fieldSelector=spec.signerName=", [([], None)]),
        pytest.param(
            "limit=4",
            [(["list-0", "list-1", "list-2", "list-3"], 2), (["list-4", "list-5"], None)],
            marks=pytest.mark.real_only,
        ),
        pytest.param(
            f"fieldSelector={OURS}&limit=2",
            [(["list-0", "list-2"], None), (["list-4"], None)],
            marks=pytest.mark.real_only,
        ),
        # A page is full, and what follows is all of another signer: the last page may be empty.
        pytest.param(
            f"fieldSelector={OURS}&limit=3",
            [(["list-0", "list-2", "list-4"], None), ([], None)],
            marks=pytest.mark.real_only,
        ),
        (f"fieldSelector={OURS}&limit=3&resourceVersion=0", [(["list-0", "list-2", "list-4"], None)]),
    ],
)
async def test_a_selector_chooses_and_a_limit_counts_what_was_chosen(
    admin: KubeletFleet, query: str, expected: list[tuple[list[str], int | None]]
):
    assert await pages(admin, query) == expected


async def test_other_fields_cannot_be_selected_by(admin: KubeletFleet):
    refused = await admin.request("GET", f"{CSRS}?fieldSelector=spec.username=x")
    assert (refused.status, refused.body["message"]) == (400, "field label not supported: spec.username")


@asynccontextmanager
async def following(api: KubeApi, **options: Any) -> AsyncIterator[list[WatchEvent[SigningRequest]]]:
    received: list[WatchEvent[SigningRequest]] = []

    async def handle(happening: WatchEvent[SigningRequest]) -> None:
        received.append(happening)

    def fail(what: object) -> None:
        raise AssertionError(what)

    reflector = Reflector(api, SIGNING_REQUESTS, on_unreadable=fail, on_failure=fail, **options)
    async with run_during(reflector.run(handle)):
        await wait_until(lambda: not reflector.problems(), "listed")
        yield received


def changes(received: list[WatchEvent[SigningRequest]]) -> list[tuple[str, str]]:
    """What happened to requests since the list."""
    return [(type(one).__name__, one.item.name) for one in received if isinstance(one, Changed | Deleted)]


async def test_a_reflector_hears_of_our_signer_only_from_the_request_to_its_end(
    api: KubeApi, admin: KubeletFleet
):
    async with following(api) as received:
        for name, signer in (("watch-other", OTHER), ("watch-ours", KUBELET_SERVING)):
            await file(admin, name, signer)
            await admin.approve(name)
            await admin.request("DELETE", f"{CSRS}/{name}")
        await wait_until(lambda: ("Deleted", "watch-ours") in changes(received), "received")
    assert {name for _, name in changes(received)} == {"watch-ours"}
    pending = [one.item.is_pending for one in received if isinstance(one, Changed)]
    assert (pending[0], pending[-1]) == (True, False)


@pytest.mark.real_only
@pytest.mark.usefixtures("six")
async def test_bookmarks_carry_a_watch_of_one_signer_past_the_news_of_others(
    api: KubeApi, admin: KubeletFleet, api_server: ApiServer
):
    mark = api_server.audit_mark()

    def count_requests(verb: str) -> int:
        counted = api_server.audit_counts(mark)
        return sum(n for k, n in counted.items() if (k.verb, k.resource) == (verb, SIGNING_REQUESTS.plural))

    async with following(api, watch_seconds=(3, 3)) as received:
        await file(admin, "others", OTHER)
        await admin.request("DELETE", f"{CSRS}/others")
        await wait_until(lambda: count_requests("watch") >= 2, "another watch")
        await file(admin, "ours")
        await wait_until(lambda: ("Changed", "ours") in changes(received), "received")
    await admin.request("DELETE", f"{CSRS}/ours")
    assert (sum(isinstance(one, ListSnapshot) for one in received), count_requests("list")) == (1, 1)


@pytest.mark.real_only
async def test_of_many_large_requests_a_page_is_short_and_nothing_large_is_kept(
    api: KubeApi, admin: KubeletFleet, api_server: ApiServer
):
    many = SIGNING_REQUESTS.page_size + 5
    large = PEM + bytes(REQUEST_LIMIT)  # the server does not look at what stands behind it
    names = await asyncio.gather(*(admin.file_request(large, user=USER) for _ in range(many)))
    mark = api_server.audit_mark()
    async with following(api) as received:
        [listed] = (one for one in received if isinstance(one, ListSnapshot))
    found = [one for one in listed.items if one.name in names]
    assert (len(found), {one.spec.request for one in found}) == (many, {b""})
    counted = api_server.audit_counts(mark)
    assert (
        sum(n for k, n in counted.items() if (k.verb, k.resource) == ("list", CSRS.rpartition("/")[2])) == 2
    )
    await asyncio.gather(*(admin.request("DELETE", f"{CSRS}/{name}") for name in names))


@pytest.mark.usefixtures("six")
async def test_whether_a_request_of_the_signer_exists_is_answered_by_a_list_of_that_name(api: KubeApi):
    reflector = Reflector(api, SIGNING_REQUESTS, on_unreadable=lambda _: None)
    assert await reflector.absent_as_of_version("list-0") is None
    for of_another_signer_or_nobody in ("list-1", "list"):
        assert int(await reflector.absent_as_of_version(of_another_signer_or_nobody) or 0) > 0
