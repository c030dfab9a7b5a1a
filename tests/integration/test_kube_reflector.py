"""Following Nodes through every fault: nothing is missed or made up, and the server is not stormed."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from libs.common.contract.node import Node
from libs.common.kube.api import NODES, KubeApi
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import ListSnapshot, WatchEvent
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from tests.bus_actors import wait_until
from tests.kube_loopback import (
    Answer,
    LoopbackServer,
    NodeFollower,
    encode_bookmark,
    encode_error,
    encode_event,
    follow_nodes,
    get_kind,
    hang,
    listing,
    make_node_object,
    open_api,
    open_api_by,
    refusal,
    respond_error,
    respond_list,
    respond_stream,
    script_nodes,
    stream,
)

# ---- the real server


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane whose etcd may be restored."""
    async with ControlPlane.start(
        tmp_path_factory.mktemp("kube-reflector"), controller_manager=False
    ) as running:
        yield running


@pytest.fixture
async def api(cluster: ControlPlane) -> AsyncIterator[KubeApi]:
    async with open_api_by(cluster.kubeconfig(), deadline_seconds=5.0) as made:
        yield made


@pytest.fixture
async def joining(cluster: ControlPlane) -> AsyncIterator[KubeletFleet]:
    async with KubeletFleet.start(cluster) as running:
        yield running


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

WEB_1 = make_node_object("web-1")


def added(name: str, version: int) -> bytes:
    return encode_event("ADDED", make_node_object(name, version))


Follow = Callable[..., AbstractAsyncContextManager[tuple[NodeFollower, Reflector[Node]]]]


@pytest.fixture
def follow(server: LoopbackServer, tmp_path: Path) -> Follow:
    """Follows the Nodes of `server` with these options."""

    @asynccontextmanager
    async def following(**options: Any) -> AsyncIterator[tuple[NodeFollower, Reflector[Node]]]:
        deadline = options.pop("deadline_seconds", 60.0)
        async with (
            open_api(server.url, tmp_path, deadline_seconds=deadline) as api,
            follow_nodes(api, **options) as running,
        ):
            yield running

    return following


def requests_of(server: LoopbackServer, kind: str) -> list[web.Request]:
    return [request for request in server.requests if get_kind(request) == kind]


def watched_versions(server: LoopbackServer) -> list[str]:
    return [request.query["resourceVersion"] for request in requests_of(server, "watch")]


@pytest.mark.parametrize("how", ["answer", "event"])
async def test_a_version_that_was_compacted_away_is_listed_again(
    server: LoopbackServer, follow: Follow, how: str
):
    expired = refusal(410, "Expired") if how == "answer" else stream(encode_error(410, "Expired"))
    server.answer = script_nodes(
        lists=[listing(WEB_1), listing(WEB_1, version=200)],
        watches=[expired, stream(added("web-2", 201), stays_open=True)],
    )
    async with follow() as (follower, _):
        await wait_until(lambda: "web-2" in follower.nodes)
        assert follower.count(ListSnapshot) == 2
        assert watched_versions(server) == ["100", "200"]


async def test_a_list_whose_token_expired_half_way_begins_again(server: LoopbackServer, follow: Follow):
    server.answer = script_nodes(
        lists=[
            listing(WEB_1, version=7, token="t1"),
            refusal(410, "Expired"),
            listing(WEB_1, version=7, token="t2"),
            listing(make_node_object("web-2"), version=7),
        ]
    )
    async with follow() as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 1)
        assert set(follower.nodes) == {"web-1", "web-2"}
    lists = [request.query for request in requests_of(server, "list")]
    assert [query.get("continue") for query in lists] == [None, "t1", None, "t2"]
    assert all(query["limit"] == "500" and "resourceVersion" not in query for query in lists)


async def test_a_watch_goes_on_from_the_last_thing_that_was_told(server: LoopbackServer, follow: Follow):
    server.answer = script_nodes(
        lists=[listing(WEB_1)],
        watches=[
            stream(encode_event("MODIFIED", make_node_object("web-1", 150))),
            stream(encode_bookmark(180)),
            stream(encode_event("DELETED", make_node_object("web-1", 190))),
            stream(stays_open=True),
        ],
    )
    async with follow() as (follower, _):
        await wait_until(lambda: len(watched_versions(server)) == 4)
    assert watched_versions(server) == ["100", "150", "180", "190"]
    assert follower.count(ListSnapshot) == 1


async def test_after_an_outage_the_server_is_listed_because_its_versions_may_be_those_of_a_backup(
    server: LoopbackServer, follow: Follow
):
    async def is_down(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    # A request without an answer is sent twice.
    server.answer = script_nodes(
        lists=[listing(make_node_object("lost")), listing(make_node_object("old"))],
        watches=[stream(encode_bookmark(180)), is_down, is_down, stream(stays_open=True)],
    )
    async with follow() as (follower, _):
        await wait_until(lambda: set(follower.nodes) == {"old"})
        await wait_until(lambda: watched_versions(server)[-1] == "100")
    assert follower.count(ListSnapshot) == 2


@pytest.mark.parametrize(
    ("watch", "kind", "most"),
    [(stream(), "watch", 9), (stream(encode_error(410, "Expired")), "list", 8)],
    ids=["ends every watch at once", "forgets every version"],
)
async def test_a_server_that_serves_no_watch_is_not_stormed(
    server: LoopbackServer, follow: Follow, watch: Answer, kind: str, most: int
):
    server.answer = script_nodes(watches=[watch])
    started = time.monotonic()
    async with follow():
        await wait_until(lambda: len(requests_of(server, kind)) >= 4)
    # With the shortest pauses that jitter allows: 0.5 + 1 + 2 s between the first four.
    assert time.monotonic() - started >= 3.4
    assert len(server.requests) <= most


async def test_a_watch_that_the_server_ends_because_it_fell_behind_goes_on_at_once(
    server: LoopbackServer, follow: Follow
):
    server.answer = script_nodes(watches=[stream(added(f"web-{n}", 100 + n)) for n in range(1, 9)])
    started = time.monotonic()
    async with follow() as (follower, _):
        await wait_until(lambda: len(follower.nodes) >= 8)
    # 0.1 s apart at least: such a server is not stormed either. After pauses of failures it would take 30 s.
    took = time.monotonic() - started
    assert took >= 0.7
    assert len(watched_versions(server)) <= took / 0.1 + 1
    assert follower.count(ListSnapshot) == 1
    assert follower.errors == []


async def test_a_watch_tells_while_a_busy_server_has_not_said_yet_how_far_it_is(
    server: LoopbackServer, follow: Follow
):
    server.answer = script_nodes(
        watches=[stream(added("web-101", 101)), stream(added("web-102", 102), stays_open=True)], checks=[hang]
    )
    async with follow() as (follower, _):
        await wait_until(lambda: "web-102" in follower.nodes)
        await wait_until(lambda: len(requests_of(server, "check")) == 1)
    assert follower.errors == []


@pytest.mark.parametrize(
    "fault",
    [
        refusal(429),
        refusal(429, headers={"Retry-After": "3"}),  # beyond the deadline: the caller has to repeat it
        refusal(500),
        refusal(503),
        hang,
    ],
    ids=["429", "429 with Retry-After", "500", "503", "no answer"],
)
async def test_a_side_check_that_fails_leaves_a_healthy_watch_alone_and_is_repeated(
    server: LoopbackServer, follow: Follow, fault: Answer
):
    may_answer = asyncio.Event()

    async def answer_at_last(request: web.Request) -> web.StreamResponse:
        await may_answer.wait()
        return respond_list(version=101)

    server.answer = script_nodes(
        watches=[stream(added("web-1", 101)), stream(stays_open=True)],
        checks=[fault, fault, answer_at_last],
    )
    async with follow(deadline_seconds=3.0, stale_seconds=0.5) as (follower, reflector):
        await wait_until(lambda: len(requests_of(server, "check")) >= 2 or bool(follower.errors), "repeated")
        await wait_until(lambda: any("cannot be checked" in why for why in reflector.problems()), "reported")
        may_answer.set()
        await wait_until(lambda: not reflector._needs_version_check, "answered")
        assert not any("cannot be checked" in why for why in reflector.problems())
    assert (follower.errors, len(watched_versions(server))) == ([], 2), "the watch went on"
    assert follower.count(ListSnapshot) == 1


async def test_a_server_that_turns_out_to_be_behind_after_a_failed_side_check_is_listed_again(
    server: LoopbackServer, follow: Follow
):
    server.answer = script_nodes(
        lists=[listing(version=100), listing(version=7)],
        watches=[stream(), stream(stays_open=True)],
        checks=[refusal(503), listing(version=7)],
    )
    async with follow() as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 2, "listed again")
    assert len(requests_of(server, "check")) == 2
    assert [type(trouble).__name__ for trouble in follower.errors] == ["ListAgain"]


async def test_side_checks_that_are_always_refused_back_off(server: LoopbackServer, follow: Follow):
    arrivals: list[float] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        arrivals.append(time.monotonic())
        return respond_error(503, "Busy")

    server.answer = script_nodes(watches=[stream(), stream(stays_open=True)], checks=[refuse])
    async with follow():
        await wait_until(lambda: len(arrivals) == 4, "requested again and again")
    waits = [later - earlier for earlier, later in pairwise(arrivals)]
    assert all(wait >= least for wait, least in zip(waits, (0.25, 0.5, 1.0), strict=True))


async def test_a_server_that_says_how_far_it_is_after_the_watch_has_moved_on_is_not_thought_to_be_behind(
    server: LoopbackServer, follow: Follow
):
    requested, may_answer = asyncio.Event(), asyncio.Event()

    async def check(request: web.Request) -> web.StreamResponse:
        requested.set()
        await may_answer.wait()
        return respond_list(version=101)

    async def move_on(request: web.Request) -> web.StreamResponse:
        await requested.wait()
        return await respond_stream(request, [added("web-2", 150)], stays_open=True)

    server.answer = script_nodes(watches=[stream(added("web-1", 101)), move_on], checks=[check])
    async with follow() as (follower, reflector):
        await wait_until(lambda: "web-2" in follower.nodes)
        may_answer.set()
        await wait_until(lambda: not reflector._needs_version_check)
        assert follower.count(ListSnapshot) == 1
    assert follower.errors == []


async def test_the_wait_that_a_busy_server_asks_for_is_kept(server: LoopbackServer, follow: Follow):
    refused_at: list[float] = []

    async def refuse(request: web.Request) -> web.StreamResponse:
        refused_at.append(time.monotonic())
        return respond_error(429, "TooManyRequests", headers={"Retry-After": "2"})

    server.answer = script_nodes(watches=[refuse, stream(stays_open=True)])
    async with follow():
        await wait_until(lambda: len(watched_versions(server)) == 2)
        assert time.monotonic() - refused_at[0] >= 2.0


@pytest.mark.parametrize("how", ["stalls", "breaks"])
async def test_a_refusal_whose_reason_never_comes_does_not_end_the_following(
    server: LoopbackServer, follow: Follow, how: str
):
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=503, headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"half of the reason")
        if how == "stalls":
            await asyncio.Event().wait()
        assert request.transport is not None
        request.transport.abort()
        return response

    server.answer = script_nodes(watches=[refuse, stream(added("web-1", 101), stays_open=True)])
    async with follow(deadline_seconds=3.0 if how == "stalls" else 60.0) as (follower, _):
        await wait_until(lambda: "web-1" in follower.nodes)
        assert len(follower.errors) == 1


async def keep_talking(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(encode_bookmark(100))
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("watch", [stream(stays_open=True), keep_talking], ids=["half open", "talks"])
async def test_a_watch_that_does_not_end_in_time_is_replaced(
    server: LoopbackServer, follow: Follow, watch: Answer
):
    server.answer = script_nodes(watches=[watch, stream(added("web-2", 102), stays_open=True)])
    async with follow(watch_seconds=(1, 1), silence_seconds=0.5) as (follower, _):
        await wait_until(lambda: set(follower.nodes) == {"web-2"})
        assert "no end of the watch in time" in str(follower.errors[0])


async def test_a_node_that_cannot_be_read_is_told_and_hides_no_other(server: LoopbackServer, follow: Follow):
    broken = {"metadata": {"name": "odd", "resourceVersion": "5", "labels": [1, 2]}}
    worse = encode_event("ADDED", {"metadata": {"name": "worse", "resourceVersion": "101"}, "spec": 7})
    server.answer = script_nodes(
        lists=[listing(WEB_1, broken)], watches=[stream(worse, added("web-2", 102), stays_open=True)]
    )
    async with follow() as (follower, _):
        await wait_until(lambda: set(follower.nodes) == {"web-1", "web-2"})
    listed = follower.events[0]
    assert isinstance(listed, ListSnapshot)
    assert listed.unreadable == ("odd",)
    assert [unreadable.name for unreadable in follower.unreadable] == ["odd", "worse"]
    assert "$.spec" in follower.unreadable[-1].reason


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"type": "ADDED"}\n',
        b'{"type": "BOOKMARK", "object": {"metadata": {}}}\n',
        encode_error(500, "InternalError"),
        encode_event("DELETED", {"metadata": {"name": "web-1"}, "spec": 7}),
        b'{"type":"ADDED","object":{"metadata":{"name":"x","annotations":{"a":"'
        + b"x" * 5_000_000
        + b'"}}}}\n',
    ],
    ids=["no json", "no object", "no version", "an error", "deletion of an unreadable", "beyond etcd"],
)
async def test_a_watch_that_says_something_odd_is_left_and_listed_again(
    server: LoopbackServer, follow: Follow, line: bytes
):
    server.answer = script_nodes(
        lists=[listing(WEB_1), listing()],
        watches=[stream(line, stays_open=True), stream(stays_open=True)],
    )
    async with follow() as (follower, reflector):
        await wait_until(lambda: follower.count(ListSnapshot) == 2)
        assert follower.nodes == {}
        assert len(follower.errors) == 1
        assert reflector.problems() == ()


async def test_an_answer_that_is_no_list_is_not_taken_for_an_empty_one(
    server: LoopbackServer, follow: Follow
):
    async def answer_as_a_proxy(request: web.Request) -> web.StreamResponse:
        """An empty list: every object would be deleted."""
        return web.json_response({"kind": "Status", "metadata": {}, "status": "Success"})

    server.answer = script_nodes(lists=[answer_as_a_proxy, listing(WEB_1)])
    async with follow() as (follower, _):
        await wait_until(lambda: "web-1" in follower.nodes)
        assert follower.count(ListSnapshot) == 1
        assert "resourceVersion" in str(follower.errors[0])


async def test_before_the_first_list_the_reason_is_told(server: LoopbackServer, follow: Follow):
    server.answer = refusal(403, "Forbidden", "nodes is forbidden: cannot list")
    async with follow() as (follower, reflector):
        await wait_until(lambda: bool(follower.errors))
        assert reflector.seconds_since_contact() is None
        assert "nodes have not been listed yet: list nodes: 403 Forbidden" in reflector.problems()[0]


async def test_freshness_and_staleness_follow_the_clock_that_was_given(
    server: LoopbackServer, follow: Follow
):
    now = 100.0
    server.answer = script_nodes()
    async with follow(clock=lambda: now) as (_, reflector):
        await wait_until(
            lambda: len(watched_versions(server)) == 1 and reflector.seconds_since_contact() == 0.0
        )
        now = 160.0
        assert (reflector.seconds_since_contact(), reflector.problems()) == (60.0, ())
        now = 161.0
        assert reflector.problems() == ("no contact about nodes for 61 s",)


async def test_an_error_of_the_handler_ends_the_reflector_with_it(server: LoopbackServer, tmp_path: Path):
    async def handle(happening: WatchEvent[Node]) -> None:
        raise LookupError("the handler's own")

    server.answer = listing()
    async with open_api(server.url, tmp_path) as api:
        with pytest.raises(LookupError):
            await Reflector(api, NODES, on_unreadable=lambda _: None).run(handle)


async def test_cancelling_closes_the_watch(server: LoopbackServer, follow: Follow):
    ended = asyncio.Event()

    async def watch(request: web.Request) -> web.StreamResponse:
        try:
            return await respond_stream(request, stays_open=True)
        finally:
            ended.set()

    server.answer = script_nodes(watches=[watch])
    async with follow():
        await wait_until(lambda: len(watched_versions(server)) == 1)
    async with asyncio.timeout(HANG_SECONDS):
        await ended.wait()
