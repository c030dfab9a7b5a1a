"""A collector that takes what it is sent and never answers, or is not there: it costs the work nothing."""

import asyncio
import re
import socket
import time

import pytest

from libs.testbed.machine_fleet import make_machine
from tests.bus_actors import wait_until
from tests.integration.service_cluster import MEMORY, ServiceCluster

COUNT = 30
RUN_SECONDS = 8.0  # several exports, each of which the black hole holds for 5 s
END_SECONDS = 30.0  # what Kubernetes grants; traces alone may take 2 s


@pytest.mark.parametrize("how", ["swallows", "refuses"])
async def test_a_dead_collector_stalls_no_loop_loses_no_work_and_delays_no_end(
    simulated_cluster: ServiceCluster, how: str
):
    cluster = simulated_cluster
    with socket.create_server(("127.0.0.1", 0)) as listening:
        endpoint = f"http://127.0.0.1:{listening.getsockname()[1]}"
        if how == "refuses":
            listening.close()
        services = await cluster.serve(**MEMORY, env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
        began = time.monotonic()
        await cluster.join(
            *(
                make_machine(f"untraced-{how}-{n}", f"10.231.0.{n + 1}", platform="metal")
                for n in range(COUNT)
            )
        )
        await cluster.wait_until_initialized(COUNT, 90)  # no work is lost
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
