"""What `talos-ccm doctor` asks API servers and machines, and what it makes of refusals and odd answers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cli.cluster.kube_reader import get_bytes, get_or_absent, get_or_unavailable, list_all, read_clock
from cli.cluster.pods import ContainerState, ContainerStatus, WaitingState
from cli.cluster.unavailable import RemoteClock, Unavailable
from cli.doctor.kubelet_queries import query_serving_certificates, read_unready_pods
from cli.doctor.read_installation import list_visible_workloads
from cli.doctor.snapshot import CredentialProbe, UnreadyPods
from cli.inside.talos_credential import TalosCredentialReport
from cli.inside.talos_probe import probe_credential
from libs.common.contract.node import NodeCondition
from libs.common.kube.api import NODES, KubeApi
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.ports import allocate_port
from tests.builders import make_node
from tests.doctor_cases import (
    PREFIX,
    format_observations,
    make_pod,
    make_remote_clock,
    make_snapshot,
)
from tests.kube_loopback import LoopbackServer, open_api

READY = (NodeCondition(type="Ready", status="True"),)


@pytest.fixture
async def loopback() -> AsyncIterator[LoopbackServer]:
    async with LoopbackServer.start() as running:
        yield running


@pytest.fixture
async def kube(loopback: LoopbackServer, tmp_path: Path) -> AsyncIterator[KubeApi]:
    async with open_api(loopback.url, tmp_path) as opened:
        yield opened


def refusal(status: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": status, "message": "no"}, status=status)


async def test_a_list_of_several_pages_is_read_whole(loopback: LoopbackServer, kube: KubeApi):
    async def answer(request: web.Request) -> web.StreamResponse:
        page = request.query.get("continue", "")
        meta = {"resourceVersion": "1"} | ({} if page else {"continue": "more"})
        return web.json_response({"metadata": meta, "items": [{"metadata": {"name": f"n{page}"}}]})

    loopback.answer = answer
    found = await list_all(kube, NODES)
    assert [one.metadata.name for one in found] == ["n", "nmore"]


async def test_a_refusal_is_a_value_that_names_the_right_and_what_is_not_there_is_another(
    loopback: LoopbackServer, kube: KubeApi
):
    async def answer(request: web.Request) -> web.StreamResponse:
        return refusal(403 if request.path.endswith("secret") else 404)

    loopback.answer = answer
    told = await get_or_unavailable(get_bytes(kube, "/api/v1/secret"), "get secret")
    assert isinstance(told, Unavailable)
    assert told.commands == ("kubectl auth can-i get secret",)
    assert await get_or_absent(get_bytes(kube, "/api/v1/nothing"), "get nothing") is None
    plain = await get_or_unavailable(get_bytes(kube, "/api/v1/nothing"), "get nothing")
    assert isinstance(plain, Unavailable)
    assert plain.required_permission == ""


@pytest.mark.parametrize(("ahead", "skewed"), [(0, False), (-60, True), (3600, True)])
async def test_the_servers_clock_is_that_of_its_answers(
    loopback: LoopbackServer, kube: KubeApi, ahead: int, skewed: bool
):
    async def answer(request: web.Request) -> web.StreamResponse:
        date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
        return web.json_response({}, headers={"Date": date})

    loopback.answer = answer
    moment = await read_clock(kube)
    assert isinstance(moment, RemoteClock)
    low, high = moment.bounds
    assert low <= timedelta(seconds=ahead) <= high
    assert (moment.offset != timedelta()) is skewed


async def test_who_may_not_list_everywhere_is_told_of_one_namespace(loopback: LoopbackServer, kube: KubeApi):
    async def answer(request: web.Request) -> web.StreamResponse:
        if "/namespaces/" not in request.path:
            return refusal(403)
        return web.json_response(
            {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a", "namespace": "x"}}]}
        )

    loopback.answer = answer
    found, everywhere = await list_visible_workloads(kube, "x")
    assert [str(one) for one in found] == ["Deployment x/a", "DaemonSet x/a", "StatefulSet x/a"]
    assert not everywhere


async def test_a_kubelets_settings_say_whether_it_asks_and_only_silent_ones_are_asked(
    loopback: LoopbackServer, kube: KubeApi
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
    told = await query_serving_certificates(
        kube, make_snapshot(nodes=(*nodes, make_node("unready", uid="u")))
    )
    assert {name: one for name, one in told.items() if isinstance(one, bool)} == {"yes": True, "no": False}
    rights = {name: one.required_permission for name, one in told.items() if isinstance(one, Unavailable)}
    assert rights == {"odd": "", "forbidden": "get nodes/proxy"}


async def test_the_last_line_is_that_of_the_run_that_crashed(loopback: LoopbackServer, kube: KubeApi):
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/events"):
            return refusal(403)
        return web.Response(text="no such flag\n")

    loopback.answer = answer
    state = ContainerState(waiting=WaitingState(reason="CrashLoopBackOff"))
    status = ContainerStatus(name="labeler", restart_count=3, state=state)
    pod = make_pod("labeler", ready=False, container_statuses=(status,))
    found = await read_unready_pods(kube, make_snapshot(pods=(pod,)))
    assert found == UnreadyPods(last_lines={f"{PREFIX}-labeler-0": "no such flag"})
    query = loopback.requests[-1].query
    assert (query["container"], query["previous"], query["tailLines"]) == ("labeler", "true", "1")


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
        assert await query_serving_certificates(api, make_snapshot(nodes=nodes)) == {
            "hangs": True,
            "a": True,
            "b": True,
        }


FIRST, WORKER, UNUSED = "10.232.0.1", "10.232.0.2", "10.232.0.99"


@pytest.fixture(scope="module")
async def fleet(machines: MachineFleet) -> AsyncIterator[MachineFleet]:
    some = (make_machine("doctor-cp", FIRST, control_plane=True), make_machine("doctor-worker", WORKER))
    await machines.put_machines(*some)
    yield machines
    await machines.delete_machines(*(machine.id for machine in some))


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that a probe reads."""
    path = tmp_path / "config"
    monkeypatch.setenv("TALOSCONFIG", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TALOS_ENDPOINTS", raising=False)
    return path


def told(talos: TalosCredentialReport, state: str = "wrong") -> str:
    """What the check makes of it."""
    return format_observations(
        "talos", make_snapshot(talos=CredentialProbe(report=talos, clock=make_remote_clock())), state
    )


async def test_a_machine_that_does_not_answer_is_told_and_the_others_are_not(
    fleet: MachineFleet, config: Path
):
    fleet.write_talosconfig(config)
    words = told(await probe_credential((WORKER, UNUSED), ""))
    assert f"{UNUSED}: " in words
    assert WORKER not in words


async def test_one_endpoint_of_two_that_is_dead_is_told(fleet: MachineFleet, config: Path):
    dead = f"127.0.0.1:{allocate_port()}"
    fleet.write_talosconfig(config)
    talos = await probe_credential((WORKER,), ",".join((dead, *fleet.endpoints)))
    assert f"not every endpoint answers: {dead}" in told(talos)
    assert [machine.fault for machine in talos.machines] == [""]


async def test_a_certificate_that_has_expired_is_told(fleet: MachineFleet, config: Path):
    fleet.write_talosconfig(config, issued_at=datetime.now(UTC) - timedelta(days=2))
    assert "expired" in told(await probe_credential((FIRST,), ""))
