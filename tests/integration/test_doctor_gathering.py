"""What `talos-ccm doctor` asks an API server, and what it makes of refusals, odd answers and clocks."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from cli.doctor.ask_kubelets import serving
from cli.doctor.ask_kubernetes import Ask, or_absent, or_not
from cli.doctor.ask_workloads import last_words, workloads_of
from cli.doctor.objects import ContainerState, ContainerStatus, Namespace, Waiting
from cli.doctor.review_rights import review
from cli.doctor.rights import questions
from cli.doctor.seen import Absent, Moment, NotSeen
from libs.common.node import NodeCondition
from tests.builders import a_node
from tests.doctor_cases import PREFIX, a_pod, an_installation, seen
from tests.kube_loopback import Loopback, api_of

READY = (NodeCondition(type="Ready", status="True"),)


@pytest.fixture
async def loopback() -> AsyncIterator[Loopback]:
    async with Loopback.start() as running:
        yield running


@pytest.fixture
async def ask(loopback: Loopback, tmp_path: Path) -> AsyncIterator[Ask]:
    async with api_of(loopback.url, tmp_path) as kube:
        yield Ask(kube)


def refusal(status: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": status, "message": "no"}, status=status)


async def test_a_list_of_several_pages_is_read_whole(loopback: Loopback, ask: Ask):
    async def answer(request: web.Request) -> web.StreamResponse:
        page = request.query.get("continue", "")
        meta = {"resourceVersion": "1"} | ({} if page else {"continue": "more"})
        return web.json_response({"metadata": meta, "items": [{"metadata": {"name": f"n{page}"}}]})

    loopback.answer = answer
    found = await ask.listed("/api/v1/namespaces", Namespace)
    assert [one.metadata.name for one in found] == ["n", "nmore"]


async def test_a_refusal_is_a_value_that_names_the_right_and_what_is_not_there_is_another(
    loopback: Loopback, ask: Ask
):
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(403 if request.path.endswith("secret") else 404)

    loopback.answer = answer
    told = await or_not(ask.read("/api/v1/secret"), "get secret")
    assert isinstance(told, NotSeen)
    assert told.commands == ("kubectl auth can-i get secret",)
    assert isinstance(await or_absent(ask.read("/api/v1/nothing"), "get nothing"), Absent)
    plain = await or_not(ask.read("/api/v1/nothing"), "get nothing")
    assert isinstance(plain, NotSeen)
    assert plain.right == ""


@pytest.mark.parametrize(("ahead", "skewed"), [(0, False), (-60, True), (3600, True)])
async def test_the_servers_clock_is_that_of_its_answers(
    loopback: Loopback, ask: Ask, ahead: int, skewed: bool
):
    async def answer(request: web.Request) -> web.StreamResponse:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
        return web.json_response({}, headers={"Date": date})

    loopback.answer = answer
    moment = await ask.clock()
    assert isinstance(moment, Moment)
    low, high = moment.said_from - moment.answered, moment.said_until - moment.asked
    assert low <= timedelta(seconds=ahead) <= high
    assert (low > timedelta(seconds=5) or high < timedelta(seconds=-5)) is skewed


async def test_who_may_not_list_everywhere_is_told_of_one_namespace(loopback: Loopback, ask: Ask):
    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/" not in request.path:
            return refusal(403)
        return web.json_response({"metadata": {}, "items": [{"metadata": {"name": "a", "namespace": "x"}}]})

    loopback.answer = answer
    found, everywhere = await workloads_of(ask, "x")
    assert not isinstance(found, NotSeen)
    assert [str(one) for one in found] == ["Deployment x/a", "DaemonSet x/a", "StatefulSet x/a"]
    assert not everywhere


async def test_a_kubelets_settings_say_whether_it_asks_and_only_silent_ones_are_asked(
    loopback: Loopback, ask: Ask
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
    nodes = [a_node(name, uid=name, conditions=READY) for name in (*settings, "forbidden")]
    told = await serving(ask, seen(nodes=(*nodes, a_node("unready", uid="u"))))
    assert {name: one for name, one in told.items() if isinstance(one, bool)} == {"yes": True, "no": False}
    rights = {name: one.right for name, one in told.items() if isinstance(one, NotSeen)}
    assert rights == {"odd": "", "forbidden": "get nodes/proxy"}


async def test_the_last_line_is_that_of_the_run_that_crashed(loopback: Loopback, ask: Ask):
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return refusal(403)
        return web.Response(text="no such flag\n")

    loopback.answer = answer
    state = ContainerState(waiting=Waiting(reason="CrashLoopBackOff"))
    status = ContainerStatus(name="labeler", restart_count=3, state=state)
    pod = a_pod("labeler", ready=False, container_statuses=(status,))
    assert await last_words(ask, seen(pods=(pod,))) == ((), {f"{PREFIX}-labeler-0": "no such flag"})
    query = loopback.asked[-1].query
    assert (query["container"], query["previous"], query["tailLines"]) == ("labeler", "true", "1")


async def test_who_may_not_ask_about_others_asks_about_itself(loopback: Loopback, ask: Ask):
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
    reviewed = await review(ask, "kube-system", questions(an_installation()))
    own = {one.asked.account for one in reviewed if not one.why_not}
    assert own == {f"{PREFIX}-watcher"}
    assert {one.asked.resource for one in reviewed if one.allowed} == {"nodes"}
