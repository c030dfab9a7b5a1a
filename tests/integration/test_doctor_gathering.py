"""What `talos-ccm doctor` asks an API server, and what it makes of refusals, odd answers and clocks."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from cli.cluster.kube_objects import Namespace
from cli.cluster.kube_reader import KubeReader, get_or_not_found, get_or_unavailable
from cli.cluster.pods import ContainerState, ContainerStatus, WaitingState
from cli.cluster.unavailable import AbsentObject, RemoteClock, Unavailable
from cli.cluster.workload_queries import list_workloads
from cli.doctor.access_reviews import review_access
from cli.doctor.kubelet_queries import query_serving_certificates
from cli.doctor.required_permissions import list_access_reviews
from cli.doctor.unready_pods import fetch_last_messages
from libs.common.contract.node import NodeCondition
from tests.builders import make_node
from tests.doctor_cases import PREFIX, make_installation, make_pod, make_snapshot
from tests.kube_loopback import LoopbackServer, open_api

READY = (NodeCondition(type="Ready", status="True"),)


@pytest.fixture
async def loopback() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer.start() as running:
        yield running


@pytest.fixture
async def ask(loopback: LoopbackServer, tmp_path: Path) -> AsyncIterator[KubeReader]:
    async with open_api(loopback.url, tmp_path) as kube:
        yield KubeReader(kube)


def refusal(status: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": status, "message": "no"}, status=status)


async def test_a_list_of_several_pages_is_read_whole(loopback: LoopbackServer, ask: KubeReader):
    async def answer(request: web.Request) -> web.StreamResponse:
        page = request.query.get("continue", "")
        meta = {"resourceVersion": "1"} | ({} if page else {"continue": "more"})
        return web.json_response({"metadata": meta, "items": [{"metadata": {"name": f"n{page}"}}]})

    loopback.answer = answer
    found = await ask.list_all("/api/v1/namespaces", Namespace)
    assert [one.metadata.name for one in found] == ["n", "nmore"]


async def test_a_refusal_is_a_value_that_names_the_right_and_what_is_not_there_is_another(
    loopback: LoopbackServer, ask: KubeReader
):
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(403 if request.path.endswith("secret") else 404)

    loopback.answer = answer
    told = await get_or_unavailable(ask.get_bytes("/api/v1/secret"), "get secret")
    assert isinstance(told, Unavailable)
    assert told.commands == ("kubectl auth can-i get secret",)
    assert isinstance(await get_or_not_found(ask.get_bytes("/api/v1/nothing"), "get nothing"), AbsentObject)
    plain = await get_or_unavailable(ask.get_bytes("/api/v1/nothing"), "get nothing")
    assert isinstance(plain, Unavailable)
    assert plain.required_permission == ""


@pytest.mark.parametrize(("ahead", "skewed"), [(0, False), (-60, True), (3600, True)])
async def test_the_servers_clock_is_that_of_its_answers(
    loopback: LoopbackServer, ask: KubeReader, ahead: int, skewed: bool
):
    async def answer(request: web.Request) -> web.StreamResponse:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
        return web.json_response({}, headers={"Date": date})

    loopback.answer = answer
    moment = await ask.read_clock()
    assert isinstance(moment, RemoteClock)
    low, high = moment.earliest - moment.responded_at, moment.latest - moment.requested_at
    assert low <= timedelta(seconds=ahead) <= high
    assert (low > timedelta(seconds=5) or high < timedelta(seconds=-5)) is skewed


async def test_who_may_not_list_everywhere_is_told_of_one_namespace(
    loopback: LoopbackServer, ask: KubeReader
):
    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/" not in request.path:
            return refusal(403)
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": "a", "namespace": "x"}}]})

    loopback.answer = answer
    found, everywhere = await list_workloads(ask, "x")
    assert not isinstance(found, Unavailable)
    assert [str(one) for one in found] == ["Deployment x/a", "DaemonSet x/a", "StatefulSet x/a"]
    assert not everywhere


async def test_a_kubelets_settings_say_whether_it_asks_and_only_silent_ones_are_asked(
    loopback: LoopbackServer, ask: KubeReader
):
    settings: dict[str, Any] = {
        "yes": {"kubeletconfig": {"serverTLSBootstrap": True}},
        "no": {"kubeletconfig": {}},
        "odd": [],
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        node = request.path.split("/")[4]
        return web.json_response(settings[node]) if node in settings else refusal(403)

    loopback.answer = answer
    nodes = [make_node(name, uid=name, conditions=READY) for name in (*settings, "forbidden")]
    told = await query_serving_certificates(ask, make_snapshot(nodes=(*nodes, make_node("unready", uid="u"))))
    assert {name: one for name, one in told.items() if isinstance(one, bool)} == {"yes": True, "no": False}
    rights = {name: one.required_permission for name, one in told.items() if isinstance(one, Unavailable)}
    assert rights == {"odd": "", "forbidden": "get nodes/proxy"}


async def test_the_last_line_is_that_of_the_run_that_crashed(loopback: LoopbackServer, ask: KubeReader):
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return refusal(403)
        return web.Response(text="no such flag\n")

    loopback.answer = answer
    state = ContainerState(waiting=WaitingState(reason="CrashLoopBackOff"))
    status = ContainerStatus(name="labeler", restart_count=3, state=state)
    pod = make_pod("labeler", ready=False, container_statuses=(status,))
    assert await fetch_last_messages(ask, make_snapshot(pods=(pod,))) == (
        (),
        {f"{PREFIX}-labeler-0": "no such flag"},
    )
    query = loopback.requests[-1].query
    assert (query["container"], query["previous"], query["tailLines"]) == ("labeler", "true", "1")


async def test_who_may_not_ask_about_others_asks_about_itself(loopback: LoopbackServer, ask: KubeReader):
    me = f"system:serviceaccount:kube-system:{PREFIX}-watcher"

    async def answer(request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        if kind == "subjectaccessreviews":
            return refusal(403)
        if kind == "selfsubjectreviews":
            return web.json_response({"status": {"userInfo": {"username": me}}}, status=201)
        asked = msgspec.json.decode(await request.read())["spec"]["resourceAttributes"]
        return web.json_response({"status": {"allowed": asked["resource"] == "nodes"}}, status=201)

    loopback.answer = answer
    reviewed = await review_access(ask, "kube-system", list_access_reviews(make_installation()))
    own = {one.request.service_account for one in reviewed if not one.error}
    assert own == {f"{PREFIX}-watcher"}
    assert {one.request.resource for one in reviewed if one.is_allowed} == {"nodes"}


async def test_a_kubelet_that_hangs_keeps_no_other_from_answering(tmp_path: Path):
    others: set[str] = set()
    answered = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        node = request.path.split("/")[4]
        if node == "hangs":
            await answered.wait()
        else:
            others.add(node)
            if len(others) == 2:
                answered.set()
        return web.json_response({"kubeletconfig": {"serverTLSBootstrap": True}})

    nodes = tuple(make_node(name, uid=name, conditions=READY) for name in ("hangs", "a", "b"))
    async with LoopbackServer.start() as loopback, open_api(loopback.url, tmp_path, connections=1) as api:
        loopback.answer = answer
        assert await query_serving_certificates(KubeReader(api), make_snapshot(nodes=nodes)) == {
            "hangs": True,
            "a": True,
            "b": True,
        }
