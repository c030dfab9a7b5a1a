"""A collector that takes what it is sent and never answers, or is not there: it costs the work nothing."""

import asyncio
import re
import socket
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.common.contract.node import UNINITIALIZED_TAINT
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, make_machine
from libs.testbed.service_processes import ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until

COUNT = 30
RUN_SECONDS = 8.0  # several exports, each of which the black hole holds for 5 s
END_SECONDS = 30.0  # what Kubernetes grants; traces alone may take 2 s


@pytest.mark.parametrize("how", ["swallows", "refuses"])
async def test_a_dead_collector_stalls_no_loop_loses_no_work_and_delays_no_end(
    tmp_path: Path, machines: MachineFleet, how: str
):
    some = [make_machine(f"untraced-{how}-{n}", f"10.231.0.{n + 1}", platform="metal") for n in range(COUNT)]
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if how == "refuses":
            listening.close()
        server = await stack.enter_async_context(SimApiServer.start(tmp_path / "api"))
        kubelets = await stack.enter_async_context(KubeletFleet.start(server))
        starting = ServiceProcesses.start(
            tmp_path / "services",
            server,
            kubelets,
            nats_url="",
            talosconfig=machines.write_talosconfig(),
            all_in_one=True,
            bus="memory",
            env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint},
        )
        services = await stack.enter_async_context(starting)
        await services.wait_until_ready()
        began = time.monotonic()
        await machines.put_machines(*some)
        stack.push_async_callback(machines.delete_machines, *(machine.id for machine in some))
        await kubelets.join_all(SimKubelet.of_machine(machine) for machine in some)

        async def all_usable() -> bool:
            nodes = (await kubelets.request("GET", "/api/v1/nodes")).body["items"]
            taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", [])]
            return len(nodes) == COUNT and UNINITIALIZED_TAINT not in taints

        await wait_until(all_usable, "no work is lost", 90)
        await wait_until(
            lambda: time.monotonic() - began > RUN_SECONDS, "it has been exported to for a while"
        )
        page = await services.fetch_page("all-in-one", "/metrics")
        ran = time.monotonic() - began
        child = services.children["all-in-one"]
        child.process.terminate()
        async with asyncio.timeout(END_SECONDS):
            assert await child.wait() == 0
    assert lag_of(page) < ran / 2, (
        "a loop that waited for the collector would have stood still most of the time"
    )


def lag_of(page: str) -> float:
    """How late the loop was in all, in seconds."""
    found = re.search(r"^talosccm_event_loop_lag_seconds_sum (\S+)$", page, re.MULTILINE)
    assert found is not None
    return float(found[1])
