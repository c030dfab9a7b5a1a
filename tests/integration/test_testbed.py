"""The testbed's servers are what they claim to be."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

import nats
import nats.errors
import pytest

from libs.testbed.child_process import ChildExited, ChildProcess
from libs.testbed.child_process import wait_until as wait_for_child
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, RequestRejected, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from tests.bus_actors import wait_until

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def test_an_approved_serving_certificate_is_issued(kubelets: KubeletFleet) -> None:
    kubelet = SimKubelet(name="tb-csr", ips=("10.7.0.2",))
    await kubelets.join(kubelet)
    name = await kubelets.request_certificate(kubelet)
    csr = (await kubelets.request("GET", f"{CSRS}/{name}")).body
    assert csr["spec"]["username"] == "system:node:tb-csr"
    assert csr["spec"]["groups"] == ["system:nodes", "system:authenticated"]
    csr["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": "-"}]}
    assert (await kubelets.request("PUT", f"{CSRS}/{name}/approval", body=csr)).status == 200

    async def issued() -> bool:
        return "certificate" in (await kubelets.request("GET", f"{CSRS}/{name}")).body["status"]

    await wait_until(issued, "issued", 20)
    await kubelets.delete_node("tb-csr")


async def test_a_node_cannot_ask_for_a_certificate_in_the_name_of_another(kubelets: KubeletFleet) -> None:
    with pytest.raises(RequestRejected, match="403"):
        await kubelets.request_certificate(SimKubelet(name="tb-thief"), common_name="system:node:tb-victim")


async def test_a_killed_apiserver_comes_back_with_what_etcd_holds(tmp_path: Path) -> None:
    async with ControlPlane.start(tmp_path / "own", controller_manager=False, audit=False) as own:
        async with KubeletFleet.start(own) as kubelets:
            await kubelets.join(SimKubelet(name="survivor"))
            await own.apiserver.kill()
            with pytest.raises(OSError, match="Cannot connect"):
                await kubelets.request("GET", "/api/v1/nodes/survivor")
            await own.restart_apiserver()
            assert (await kubelets.request("GET", "/api/v1/nodes/survivor")).status == 200
        servers = [own.etcd, own.apiserver]
    assert not any(server.is_running for server in servers)


async def test_a_restarted_nats_server_keeps_its_port_and_store_and_a_wiped_one_only_its_port(
    nats_server: NatsServer,
) -> None:
    async def streams() -> int:
        client = await nats.connect(nats_server.url)
        try:
            return (await client.jetstream().account_info()).streams
        finally:
            await client.close()

    client = await nats.connect(nats_server.url)
    await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
    await client.close()
    await nats_server.restart()
    assert await streams() == 1
    await nats_server.wipe()
    assert await streams() == 0


async def test_a_paused_nats_server_is_silent_until_it_resumes(nats_server: NatsServer) -> None:
    client = await nats.connect(nats_server.url)
    inbox = await client.subscribe("said")
    await client.flush()
    nats_server.pause()
    await client.publish("said", b"while paused")
    with pytest.raises(nats.errors.TimeoutError):
        await inbox.next_msg(timeout=0.5)
    nats_server.resume()
    assert (await inbox.next_msg(timeout=5)).data == b"while paused"
    await client.close()


async def test_a_server_that_ends_at_once_tells_the_last_words_of_its_log(tmp_path: Path) -> None:
    child = ChildProcess.start("poor", ["sh", "-c", "echo no such disk; exit 3"], tmp_path)

    async def never() -> bool:
        return False

    with pytest.raises(ChildExited, match=r"status 3[\s\S]*no such disk"):
        await wait_for_child(never, child, what="ready", seconds=10)


async def test_machines_that_are_killed_say_so_instead_of_waiting(tmp_path: Path) -> None:
    async with MachineFleet.start(tmp_path) as talos:
        await talos.put_machines(make_machine())
        with pytest.raises(ValueError, match='no machine "other"'):
            await talos.set_faults("other", hang=True)
        await talos.child.kill()
        with pytest.raises(ChildExited):
            await talos.count_calls()


async def test_machines_that_do_not_listen_any_more_are_killed_at_the_end(tmp_path: Path) -> None:
    async with MachineFleet.start(tmp_path) as talos:
        talos.child.pause()
    assert talos.child.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills the children of a killed parent")
async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from libs.testbed.child_process import ChildProcess\n"
        f"child = ChildProcess.start('sleeper', ['sleep', '600'], pathlib.Path({str(tmp_path)!r}))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert _alive(pid)
    parent.kill()
    await parent.wait()

    await wait_until(lambda: not _alive(pid), "dead with its parent", 20)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # an orphan that is not reaped yet is dead too


def test_no_port_of_a_process_is_handed_out_by_another_one():
    program = (
        "import random; from libs.testbed.ports import allocate_port; random.seed(5); print(allocate_port())"
    )
    state = random.getstate()
    try:
        random.seed(5)
        ours = allocate_port()
    finally:
        random.setstate(state)
    theirs = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert int(theirs.stdout) != ours


def test_no_port_is_handed_out_twice_even_before_its_server_listens():
    state = random.getstate()
    try:
        random.seed(4)
        first = allocate_port()
        random.seed(4)
        assert allocate_port() != first
    finally:
        random.setstate(state)
