"""Following Nodes through every fault: nothing is missed or made up, and the server is not stormed."""

import asyncio
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from libs.common.contract.node import Node
from libs.common.kube.api import NODES, KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import ListSnapshot, WatchEvent
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.kube_loopback import (
    LoopbackServer,
    encode_bookmark,
    encode_error,
    encode_event,
    follow_nodes,
    make_node_object,
    open_api,
    respond_error,
    respond_list,
    respond_stream,
)

# ---- the real server


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane that may be killed and frozen."""
    async with ControlPlane.start(
        tmp_path_factory.mktemp("kube-reflector"), controller_manager=False
    ) as running:
        yield running


@pytest.fixture
async def api(cluster: ControlPlane) -> AsyncIterator[KubeApi]:
    made = KubeApi(
        load_kube_config(cluster.kubeconfig(), {}), user_agent="talos-ccm/test", deadline_seconds=5.0
    )
    yield made
    await made.close()


@pytest.fixture
async def joining(cluster: ControlPlane) -> AsyncIterator[KubeletFleet]:
    async with KubeletFleet.start(cluster) as running:
        yield running


async def test_what_happened_while_the_server_was_dead_is_told_after_it_is_back(
    api: KubeApi, joining: KubeletFleet, cluster: ControlPlane
):
    await joining.join(SimKubelet(name="before"))
    async with follow_nodes(api) as (follower, reflector):
        await wait_until(lambda: "before" in follower.nodes)
        await cluster.apiserver.kill()
        await wait_until(lambda: bool(follower.errors), "noticed")
        await cluster.restart_apiserver()
        await joining.join(SimKubelet(name="after"))
        await joining.delete_node("before")
        await wait_until(lambda: follower.nodes.keys() & {"before", "after"} == {"after"}, "caught up", 30)
        assert reflector.problems() == ()
    await joining.delete_node("after")


async def test_a_server_that_froze_is_noticed_at_the_end_of_the_watch_and_followed_again(
    api: KubeApi, joining: KubeletFleet, cluster: ControlPlane
):
    options: dict[str, Any] = {"watch_seconds": (2, 2), "silence_seconds": 1.0, "stale_seconds": 2.0}
    async with follow_nodes(api, **options) as (follower, reflector):
        await wait_until(lambda: not reflector.problems())
        cluster.apiserver.pause()
        before = len(follower.errors)
        try:
            await wait_until(lambda: len(follower.errors) > before, "noticed")
            noticed = str(follower.errors[before])
            # "no answer" is the deadline of a request, when the pause falls between two watches.
            assert "no end of the watch in time" in noticed or "no answer" in noticed
            await wait_until(
                lambda: any("no contact about nodes for" in why for why in reflector.problems()),
                "not ready",
            )
        finally:
            cluster.apiserver.resume()
        await joining.join(SimKubelet(name="thawed"))
        await wait_until(lambda: "thawed" in follower.nodes and not reflector.problems(), "followed again")
    await joining.delete_node("thawed")


async def test_a_restored_backup_of_etcd_is_followed(
    api: KubeApi, joining: KubeletFleet, cluster: ControlPlane, tmp_path: Path
):
    async with follow_nodes(api) as (follower, _):
        await joining.join(SimKubelet(name="deleted-later"))
        await cluster.back_up_etcd(tmp_path / "backup")
        await joining.delete_node("deleted-later")
        await joining.join_all([SimKubelet(name=f"lost-{number}") for number in range(20)])
        await wait_until(lambda: len(follower.nodes) == 20)
        before, mark = await list_version(joining), cluster.audit_mark()
        await cluster.restore_etcd(tmp_path / "backup")
        assert await list_version(joining) < before
        assert cluster.etcd_restores == [mark]
        await wait_until(lambda: set(follower.nodes) == {"deleted-later"}, "the follower has listed again")


async def list_version(kubelets: KubeletFleet) -> int:
    return int((await kubelets.request("GET", "/api/v1/nodes")).body["metadata"]["resourceVersion"])


# ---- faults on demand


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer.start() as running:
        yield running


def is_watch(request: web.Request) -> bool:
    return "watch" in request.query


def watches(server: LoopbackServer) -> list[web.Request]:
    return [request for request in server.requests if is_watch(request)]


def lists(server: LoopbackServer) -> list[web.Request]:
    return [request for request in server.requests if not is_watch(request)]


@pytest.mark.parametrize("how", ["answer", "event"])
async def test_a_version_that_was_compacted_away_is_listed_again(
    server: LoopbackServer, tmp_path: Path, how: str
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(make_node_object("web-1"), version=100 * len(lists(server)))
        if request.query["resourceVersion"] == "100":
            return (
                respond_error(410, "Expired")
                if how == "answer"
                else await respond_stream(request, [encode_error(410, "Expired")])
            )
        return await respond_stream(
            request, [encode_event("ADDED", make_node_object("web-2", 201))], stays_open=True
        )

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: "web-2" in follower.nodes)
        assert follower.count(ListSnapshot) == 2
        assert [request.query["resourceVersion"] for request in watches(server)] == ["100", "200"]


async def test_a_list_whose_token_expired_half_way_begins_again(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if is_watch(request):
            return await respond_stream(request, stays_open=True)
        match request.query.get("continue"):
            case None:
                return respond_list(make_node_object("web-1"), version=7, token=f"t{len(lists(server))}")
            case "t1":
                return respond_error(410, "Expired")
            case _:
                return respond_list(make_node_object("web-2"), version=7)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 1)
        assert set(follower.nodes) == {"web-1", "web-2"}
        assert all(request.query["limit"] == "500" for request in lists(server))
        assert all("resourceVersion" not in request.query for request in lists(server))


async def test_a_watch_goes_on_from_the_last_thing_that_was_told(server: LoopbackServer, tmp_path: Path):
    said = iter(
        [
            [encode_event("MODIFIED", make_node_object("web-1", 150))],
            [encode_bookmark(180)],
            [encode_event("DELETED", make_node_object("web-1", 190))],
        ]
    )

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(make_node_object("web-1"), version=100 + len(watches(server)) * 50)
        lines = next(said, None)
        return await respond_stream(request, lines or [], stays_open=lines is None)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: len(watches(server)) == 4)
    assert [request.query["resourceVersion"] for request in watches(server)] == ["100", "150", "180", "190"]
    assert follower.count(ListSnapshot) == 1


async def test_after_an_outage_the_server_is_listed_because_its_versions_may_be_those_of_a_backup(
    server: LoopbackServer, tmp_path: Path
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            restored = len(watches(server)) > 0
            return respond_list(make_node_object("old" if restored else "lost", 100), version=100)
        if len(watches(server)) == 1:
            return await respond_stream(request, [encode_bookmark(180)])
        if request.query["resourceVersion"] == "180" and request.transport is not None:
            request.transport.abort()  # no answer, as from a server that is down
            return web.Response()
        return await respond_stream(request, stays_open=True)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: set(follower.nodes) == {"old"})
        await wait_until(lambda: watches(server)[-1].query["resourceVersion"] == "100")
    assert follower.count(ListSnapshot) == 2


async def test_a_server_that_ends_every_watch_at_once_is_not_stormed(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        return await respond_stream(request) if is_watch(request) else respond_list()

    server.answer = answer
    started = time.monotonic()
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (_, _reflector):
        await wait_until(lambda: len(watches(server)) >= 4, seconds=20)
    # With the shortest pauses that jitter allows: 0.5 + 1 + 2 s between the first four.
    assert time.monotonic() - started >= 3.4
    assert len(server.requests) <= 9


async def test_a_watch_that_the_server_ends_because_it_fell_behind_goes_on_at_once(
    server: LoopbackServer, tmp_path: Path
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(version=100 + len(watches(server)))
        number = len(watches(server))
        return await respond_stream(
            request, [encode_event("ADDED", make_node_object(f"web-{number}", 100 + number))]
        )

    server.answer = answer
    started = time.monotonic()
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: len(follower.nodes) >= 8, seconds=20)
    # 0.1 s apart at least: such a server is not stormed either. After pauses of failures it would take 30 s.
    took = time.monotonic() - started
    assert took >= 0.7
    assert len(watches(server)) <= took / 0.1 + 1
    assert follower.count(ListSnapshot) == 1
    assert follower.errors == []


async def test_a_watch_tells_while_a_busy_server_has_not_said_yet_how_far_it_is(
    server: LoopbackServer, tmp_path: Path
):
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("limit") == "1":
            asked.set()
            await asyncio.Event().wait()
        if not is_watch(request):
            return respond_list()
        first = len(watches(server)) == 1
        number = 101 if first else 102
        lines = [encode_event("ADDED", make_node_object(f"web-{number}", number))]
        return await respond_stream(request, lines, stays_open=not first)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: "web-102" in follower.nodes)
        await wait_until(asked.is_set)
    assert follower.errors == []


@pytest.mark.parametrize("fault", ["429", "429 with Retry-After", "500", "503", "no answer"])
async def test_a_side_check_that_fails_leaves_a_healthy_watch_alone_and_is_repeated(
    server: LoopbackServer, tmp_path: Path, fault: str
):
    checks = 0

    async def check() -> web.StreamResponse:
        nonlocal checks
        checks += 1
        if checks > 2:
            return respond_list(version=101)
        if fault == "no answer":
            await asyncio.Event().wait()
        headers = {"Retry-After": "1"} if "Retry-After" in fault else {}
        return respond_error(int(fault[:3]), "Busy", headers=headers)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("limit") == "1":
            return await check()
        if not is_watch(request):
            return respond_list()
        if len(watches(server)) == 1:
            return await respond_stream(request, [encode_event("ADDED", make_node_object("web-1", 101))])
        return await respond_stream(request, stays_open=True)

    server.answer = answer
    async with (
        open_api(server.url, tmp_path, deadline_seconds=1.0) as api,
        follow_nodes(api, stale_seconds=0.5) as (follower, reflector),
    ):
        await wait_until(lambda: checks == 2 or bool(follower.errors), "asked again")
        assert (follower.errors, len(watches(server))) == ([], 2), "the watch goes on"
        await wait_until(lambda: any("cannot be checked" in why for why in reflector.problems()), "told")
        await wait_until(lambda: not reflector._needs_version_check, "answered")
        assert not any("cannot be checked" in why for why in reflector.problems())
    assert (follower.errors, len(watches(server))) == ([], 2), "the watch went on"
    assert follower.count(ListSnapshot) == 1


async def test_a_server_that_turns_out_to_be_behind_after_a_failed_side_check_is_listed_again(
    server: LoopbackServer, tmp_path: Path
):
    checks = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal checks
        if request.query.get("limit") == "1":
            checks += 1
            return respond_error(503, "Busy") if checks == 1 else respond_list(version=7)
        if not is_watch(request):
            return respond_list(version=100 if len(lists(server)) == 1 else 7)
        if len(watches(server)) == 1:
            return await respond_stream(request)
        return await respond_stream(request, stays_open=True)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 2, "listed again")
    assert checks == 2
    assert [type(trouble).__name__ for trouble in follower.errors] == ["ListAgain"]


async def test_side_checks_that_are_always_refused_back_off(server: LoopbackServer, tmp_path: Path):
    arrivals: list[float] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("limit") == "1":
            arrivals.append(time.monotonic())
            return respond_error(503, "Busy")
        if not is_watch(request):
            return respond_list()
        return await respond_stream(request, stays_open=len(watches(server)) > 1)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api):
        await wait_until(lambda: len(arrivals) == 4, "asked again and again")
    waits = [later - earlier for earlier, later in pairwise(arrivals)]
    assert all(wait >= least for wait, least in zip(waits, (0.25, 0.5, 1.0), strict=True))


async def test_a_server_that_says_how_far_it_is_after_the_watch_has_moved_on_is_not_thought_to_be_behind(
    server: LoopbackServer, tmp_path: Path
):
    asked, told, said = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query.get("limit") == "1":
            asked.set()
            await told.wait()
            said.set()
            return respond_list(version=101)
        if not is_watch(request):
            return respond_list()
        if len(watches(server)) == 1:
            return await respond_stream(request, [encode_event("ADDED", make_node_object("web-1", 101))])
        await asked.wait()
        return await respond_stream(
            request, [encode_event("ADDED", make_node_object("web-2", 150))], stays_open=True
        )

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, reflector):
        await wait_until(lambda: "web-2" in follower.nodes)
        told.set()
        await wait_until(lambda: said.is_set() and not reflector._needs_version_check)
        assert follower.count(ListSnapshot) == 1
    assert follower.errors == []


async def test_a_server_that_forgets_every_version_is_not_stormed_with_lists(
    server: LoopbackServer, tmp_path: Path
):
    async def answer(request: web.Request) -> web.StreamResponse:
        return (
            await respond_stream(request, [encode_error(410, "Expired")])
            if is_watch(request)
            else respond_list()
        )

    server.answer = answer
    started = time.monotonic()
    async with open_api(server.url, tmp_path) as api, follow_nodes(api):
        await wait_until(lambda: len(lists(server)) >= 4, seconds=20)
    assert time.monotonic() - started >= 3.4
    assert len(server.requests) <= 8


async def test_the_wait_that_a_busy_server_asks_for_is_kept(server: LoopbackServer, tmp_path: Path):
    arrivals: list[float] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list()
        arrivals.append(time.monotonic())
        if len(arrivals) == 1:
            return respond_error(429, "TooManyRequests", headers={"Retry-After": "2"})
        return await respond_stream(request, stays_open=True)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api):
        await wait_until(lambda: len(arrivals) == 2)
    assert arrivals[1] - arrivals[0] >= 2.0


@pytest.mark.parametrize("told", ["header", "body", "event"])
async def test_a_retry_after_of_an_hour_pauses_the_watch_for_at_most_a_minute(
    server: LoopbackServer, tmp_path: Path, told: str
):
    # A longer delay comes from a mistake or a proxy: an hour without a watch is an hour without joins.
    details = {"retryAfterSeconds": 3600}

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list()
        if told == "event":
            return await respond_stream(request, [encode_error(429, "TooManyRequests", details=details)])
        headers = {"Retry-After": "3600"} if told == "header" else {}
        return respond_error(429, "TooManyRequests", headers=headers, details=details)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: bool(follower.errors), "refused")
        assert getattr(follower.errors[0], "retry_after_seconds", None) == 60.0


@pytest.mark.parametrize("how", ["stalls", "breaks"])
async def test_a_refusal_whose_reason_never_comes_does_not_end_the_following(
    server: LoopbackServer, tmp_path: Path, how: str
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list()
        if len(watches(server)) > 1:
            return await respond_stream(
                request, [encode_event("ADDED", make_node_object("web-1", 101))], stays_open=True
            )
        response = web.StreamResponse(status=503, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half of the reason")
        if how == "stalls":
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answer = answer
    async with (
        open_api(server.url, tmp_path, deadline_seconds=1.0) as api,
        follow_nodes(api) as (follower, _),
    ):
        await wait_until(lambda: "web-1" in follower.nodes)
        assert len(follower.errors) == 1


async def test_a_half_open_watch_is_ended_and_replaced(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(version=100 + len(watches(server)))
        number = len(watches(server))
        return await respond_stream(
            request, [encode_event("ADDED", make_node_object(f"web-{number}", 100 + number))], stays_open=True
        )

    server.answer = answer
    async with (
        open_api(server.url, tmp_path) as api,
        follow_nodes(api, watch_seconds=(1, 1), silence_seconds=0.5) as (follower, _),
    ):
        await wait_until(lambda: set(follower.nodes) == {"web-1", "web-2"})
        assert "no end of the watch in time" in str(follower.errors[0])


async def test_a_server_that_keeps_a_watch_open_with_words_is_left_at_its_end_too(
    server: LoopbackServer, tmp_path: Path
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list()
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(encode_bookmark(100))
            await asyncio.sleep(0.05)

    server.answer = answer
    async with (
        open_api(server.url, tmp_path) as api,
        follow_nodes(api, watch_seconds=(1, 1), silence_seconds=0.2),
    ):
        await wait_until(lambda: len(watches(server)) >= 2)


async def test_a_node_that_cannot_be_read_is_told_and_hides_no_other(server: LoopbackServer, tmp_path: Path):
    broken = {"metadata": {"name": "odd", "resourceVersion": "5", "labels": [1, 2]}}

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(make_node_object("web-1"), broken)
        worse = {"metadata": {"name": "worse", "resourceVersion": "101"}, "spec": 7}
        lines = [encode_event("ADDED", worse), encode_event("ADDED", make_node_object("web-2", 102))]
        return await respond_stream(request, lines, stays_open=True)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: set(follower.nodes) == {"web-1", "web-2"})
    listed = follower.events[0]
    assert isinstance(listed, ListSnapshot)
    assert listed.unreadable == ("odd",)
    assert [unreadable.name for unreadable in follower.unreadable] == ["odd", "worse"]
    assert "$.spec" in follower.unreadable[-1].reason


async def test_a_deletion_that_cannot_be_read_leads_to_a_list(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(*([make_node_object("web-1")] if len(lists(server)) == 1 else []))
        broken = {"metadata": {"name": "web-1"}, "spec": 7}
        first = len(watches(server)) == 1
        return await respond_stream(
            request, [encode_event("DELETED", broken)] if first else [], stays_open=True
        )

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 2)
        assert follower.nodes == {}


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n',
        encode_error(500, "InternalError"),
        b'{"type":"ADDED","object":{"metadata":{"name":"x","annotations":{"a":"'
        + b"x" * 5_000_000
        + b'"}}}}\n',
    ],
    ids=["no json", "no object", "no version", "an error", "longer than etcd allows"],
)
async def test_a_watch_that_says_something_odd_is_left_and_listed_again(
    server: LoopbackServer, tmp_path: Path, line: bytes
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list(make_node_object("web-1"))
        first = len(watches(server)) == 1
        return await respond_stream(request, [line] if first else [], stays_open=True)

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, reflector):
        await wait_until(lambda: follower.count(ListSnapshot) == 2)
        assert len(follower.errors) == 1
        assert reflector.problems() == ()


async def test_an_answer_that_is_no_list_is_not_taken_for_an_empty_one(
    server: LoopbackServer, tmp_path: Path
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if is_watch(request):
            return await respond_stream(request, stays_open=True)
        if len(lists(server)) == 1:  # an empty list, as from a proxy: every object would be deleted
            return web.json_response({"kind": "Status", "metadata": {}, "status": "Success"})
        return respond_list(make_node_object("web-1"))

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, _):
        await wait_until(lambda: "web-1" in follower.nodes)
        assert follower.count(ListSnapshot) == 1
        assert "resourceVersion" in str(follower.errors[0])


async def test_before_the_first_list_the_reason_is_told(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        return respond_error(403, "Forbidden", "nodes is forbidden: cannot list")

    server.answer = answer
    async with open_api(server.url, tmp_path) as api, follow_nodes(api) as (follower, reflector):
        await wait_until(lambda: bool(follower.errors))
        assert reflector.seconds_since_contact() is None
        assert "nodes have not been listed yet: list nodes: 403 Forbidden" in reflector.problems()[0]


async def test_freshness_and_staleness_follow_the_clock_that_was_given(
    server: LoopbackServer, tmp_path: Path
):
    now = 100.0

    async def answer(request: web.Request) -> web.StreamResponse:
        return await respond_stream(request, stays_open=True) if is_watch(request) else respond_list()

    server.answer = answer
    async with (
        open_api(server.url, tmp_path) as api,
        follow_nodes(api, clock=lambda: now) as (_follower, reflector),
    ):
        await wait_until(lambda: len(watches(server)) == 1 and reflector.seconds_since_contact() == 0.0)
        now = 160.0
        assert (reflector.seconds_since_contact(), reflector.problems()) == (60.0, ())
        now = 161.0
        assert reflector.problems() == ("no contact about nodes for 61 s",)


async def test_an_error_of_the_handler_ends_the_reflector_with_it(server: LoopbackServer, tmp_path: Path):
    async def answer(request: web.Request) -> web.StreamResponse:
        return respond_list()

    async def handle(happening: WatchEvent[Node]) -> None:
        raise LookupError("the handler's own")

    server.answer = answer
    async with open_api(server.url, tmp_path) as api:
        with pytest.raises(LookupError):
            await Reflector(api, NODES, on_unreadable=lambda _: None).run(handle)


async def test_cancelling_closes_the_watch(server: LoopbackServer, tmp_path: Path):
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if not is_watch(request):
            return respond_list()
        try:
            return await respond_stream(request, stays_open=True)
        finally:
            ended.set()

    server.answer = answer
    async with open_api(server.url, tmp_path) as api:
        async with follow_nodes(api):
            await wait_until(lambda: len(watches(server)) == 1)
        async with asyncio.timeout(30):
            await ended.wait()
