"""The page against a cluster: 200 nodes join over NATS, and it shows what the API server holds."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from libs.common.contract.services import CONSOLE, DEFAULT_SERVICES
from libs.testbed.kubelet_node import SimKubelet
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_facts import make_mixed_fleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.console.browser.chromium import Browser, Page
from tests.console.browser.test_console_page import READ_TABLE

pytestmark = pytest.mark.real_servers

COUNT = 200


class Cluster(NamedTuple):
    """All services over NATS, their kubelets, and the page."""

    kubelets: KubeletFleet
    nats: NatsServer
    services: ServiceProcesses
    page: Page
    url: str

    async def wait_for_ready(self, count: int) -> None:
        """Wait until the table of Nodes shows that many ready ones."""
        expression = (
            "[...document.querySelectorAll('.chip')].find((each) => each.innerText.startsWith('Ready '))"
            f"?.innerText.replace(',', '') === 'Ready {count}'"
        )
        await self.page.wait_for(expression)


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    home, port = tmp_path_factory.mktemp("console"), allocate_port()
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(Browser.start())
        nats = await stack.enter_async_context(NatsServer.start(home / "nats"))
        server = await stack.enter_async_context(SimApiServer.start(home / "api", has_node_lifecycle=True))
        machines = await stack.enter_async_context(MachineFleet.start_simulated(home / "talos"))
        kubelets = await stack.enter_async_context(KubeletFleet.start(server))
        services = await stack.enter_async_context(
            ServiceProcesses.start(
                home / "services",
                server,
                kubelets,
                nats_url=nats.url,
                talosconfig=machines.write_talosconfig(),
                own_flags={**PATIENT_LEASE_FLAGS, CONSOLE.service: (f"--console-port={port}",)},
                wirings=(*DEFAULT_SERVICES, CONSOLE),
            )
        )
        await services.wait_until_ready()
        page = await stack.enter_async_context(browser.open_page())
        url = f"http://127.0.0.1:{port}"
        await page.resize(1360, 860)
        await page.open(f"{url}/#/nodes")
        await page.evaluate("window.isSamePage = true")
        await page.wait_for("document.body.innerText.includes('No Node yet')")
        fleet = make_mixed_fleet(COUNT, "page", digits=4)
        await machines.put_machines(*fleet)
        await kubelets.join_all(map(SimKubelet.of_machine, fleet))
        yield Cluster(kubelets, nats, services, page, url)


async def test_the_page_shows_what_the_api_server_holds(cluster: Cluster):
    await cluster.wait_for_ready(COUNT)
    nodes = (await cluster.kubelets.request("GET", "/api/v1/nodes")).body["items"]
    assert len(nodes) == COUNT
    assert set(await cluster.page.evaluate(READ_TABLE)) == {node["metadata"]["name"] for node in nodes}
    await cluster.page.evaluate("location.hash = '#/node/" + nodes[0]["metadata"]["name"] + "'")
    text = await cluster.page.wait_for("document.querySelector('.diff') && document.body.innerText")
    assert nodes[0]["spec"]["providerID"] in text
    for address in nodes[0]["status"]["addresses"]:
        assert address["address"] in text
    assert "not seen" not in text.partition("Kubernetes stores")[0]
    await cluster.page.evaluate("location.hash = '#/nodes'")
    assert cluster.page.errors == []


async def test_a_node_shows_the_event_that_the_api_server_has(cluster: Cluster):
    await cluster.wait_for_ready(COUNT)
    events = (await cluster.kubelets.request("GET", "/api/v1/namespaces/default/events")).body["items"]
    first = min(events, key=lambda event: int(event["metadata"]["resourceVersion"]))  # in the first pulse
    await cluster.page.evaluate(f"location.hash = '#/node/{first['involvedObject']['name']}'")
    shown = "(document.querySelector('.events')?.innerText ?? '')"
    text = await cluster.page.wait_for(f"{shown}.includes('{first['message']}') && {shown}", 60)
    assert f"{first['reason']} {first['source']['component']}, " in text
    await cluster.page.evaluate("location.hash = '#/nodes'")


async def test_the_page_survives_restarts_and_a_wiped_stream_without_a_reload(cluster: Cluster):
    await cluster.wait_for_ready(COUNT)
    await cluster.services.kill("console")
    await cluster.page.wait_for("document.querySelector('.banner')")
    cluster.services.restart("console")
    await cluster.page.wait_for("!document.querySelector('.banner')")
    await cluster.wait_for_ready(COUNT)
    await cluster.nats.wipe()
    name = (await cluster.kubelets.request("GET", "/api/v1/nodes")).body["items"][-1]["metadata"]["name"]
    await cluster.kubelets.delete_node(name)
    await cluster.wait_for_ready(COUNT - 1)
    await cluster.page.wait_for("!document.querySelector('.banner')")
    assert await cluster.page.evaluate("window.isSamePage")
