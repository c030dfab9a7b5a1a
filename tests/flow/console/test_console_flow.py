"""The console on a real bus: what it shows of the flow, whom it answers, and what it survives."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from libs.common.contract.events import Pulse
from libs.common.contract.node import BLOCKED_CONDITION, NodeCondition
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from tests.builders import (
    make_cluster_networks,
    make_csr_observed,
    make_dead_letter,
    make_decided,
    make_facts,
    make_node,
    make_request,
)
from tests.bus_actors import wait_for_value, wait_until
from tests.bus_server import BusServer, make_flow_fixtures
from tests.console.console_actors import ConsoleClient, run_console
from tests.service_flow import ServiceFlow

READY = NodeCondition(type="Ready", status="True")
HOSTILE = "<img src=x onerror=alert(1)>"


class ConsoleFlow(NamedTuple):
    """A console, and the flow that it follows."""

    flow: ServiceFlow
    console: ConsoleClient
    server: BusServer

    async def wait_for_row(self, name: str, **fields: Any) -> dict[str, Any]:
        """The row of a Node, once it has these fields."""

        async def find() -> dict[str, Any] | None:
            return (await self.console.read_rows()).get(name)

        return await wait_for_value(find, lambda row: row.items() >= fields.items(), f"{name}: {fields}")


@asynccontextmanager
async def open_console_flow(kind: str, tmp_path: Path) -> AsyncIterator[ConsoleFlow]:
    async with (
        BusServer.open(kind, tmp_path) as server,
        server.open_bus("watcher") as bus,
        server.open_bus("console") as own,
    ):
        flow = ServiceFlow(bus)
        await flow.start()
        async with run_console(own) as console:

            async def is_live() -> bool:
                problems = (await console.read_state())["overview"]["problems"]
                return all("no complete snapshot" in each for each in problems)

            await wait_until(is_live, "the console follows: only then it counts hops")
            yield ConsoleFlow(flow, console, server)


in_memory, on_each_bus = make_flow_fixtures(open_console_flow)


async def test_a_node_appears_is_stuck_becomes_ready_and_disappears(on_each_bus: ConsoleFlow):
    flow, console, _ = on_each_bus
    blocked = NodeCondition(type=BLOCKED_CONDITION, status="True", reason="NodeWriteFailed", message="403")
    node = make_node(conditions=(blocked,))
    await flow.publish_node(node)
    row = await on_each_bus.wait_for_row("web-1", state="stuck")
    assert (await console.read_node("web-1"))["findings"][0]["fault"] == "write-refused"
    assert "403" in row["why"]
    await flow.publish(make_decided(outcome="initialized", reason="metal machine", uid="uid-1"))
    done = make_node(taints=(), conditions=(READY,), provider_id="talos://metal/1", resource_version="101")
    await flow.enrich(done, make_facts())
    row = await on_each_bus.wait_for_row("web-1", state="ready", platform="metal", outcome="initialized")
    assert row["why"] == "metal machine"
    await flow.publish_node_gone(done)
    await wait_until(lambda: _is_gone(console), "the Node is gone")


async def _is_gone(console: ConsoleClient) -> bool:
    return not await console.read_rows()


async def test_the_details_of_a_node_have_its_findings_its_messages_and_its_hops(on_each_bus: ConsoleFlow):
    flow, console, _ = on_each_bus
    await on_each_bus.flow.publish_node(make_node())
    await on_each_bus.wait_for_row("web-1")
    await flow.publish_unreachable(make_node(resource_version="101"))
    row = await on_each_bus.wait_for_row("web-1", state="stuck")
    assert row["what"] == "not initialized"
    detail = await console.read_node("web-1")
    assert detail["findings"][0]["fault"] == "talos-silent"
    assert "connection refused (attempt 1)" in detail["machine_problem"]
    assert (detail["changes"], detail["is_initialized"]) == ([], False)
    assert "talosctl -n 10.0.0.5 version" in detail["findings"][0]["fix"]
    assert {"registered", "observed"} <= detail["hops"].keys()


async def test_a_request_shows_what_csr_says_about_it(in_memory: ConsoleFlow):
    request = make_request()
    await in_memory.flow.publish(make_csr_observed(request, stream_id=in_memory.flow.stream_id))
    reason = "This CSR was denied by Talos Cloud Controller Manager, Reason: requests 10.0.0.9"
    await in_memory.flow.publish(make_decided("csr", "csr", "csr-1", outcome="denied", reason=reason))

    async def find() -> dict[str, Any] | None:
        return (await in_memory.console.read_requests()).get("csr-1")

    row = await wait_for_value(find, lambda row: row.get("outcome") == "denied")
    assert (row["node"], row["reason"]) == ("web-1", "requests 10.0.0.9")


async def test_the_overview_has_the_leader_the_networks_and_dead_letters(in_memory: ConsoleFlow):
    flow, console, _ = in_memory
    await flow.publish_leading()
    await flow.publish_node(make_node())
    await flow.publish(make_cluster_networks(stream_id=flow.stream_id))
    await flow.publish(make_dead_letter("web-1", reason=HOSTILE))

    async def read() -> dict[str, Any]:
        overview: dict[str, Any] = (await console.read_state())["overview"]
        return overview

    overview = await wait_for_value(read, lambda seen: seen["dead_letters"], "a dead letter")
    services = {each["service"]: each for each in overview["services"]}
    assert services["watcher"]["details"] == "leader test"
    assert services["labeler"]["health"] == "bad"
    assert services["labeler"]["text"].startswith("1 dead letter; ")
    assert overview["networks"]["pod_cidrs"] == ["10.244.0.0/16"]
    assert overview["dead_letters"][0]["reason"] == HOSTILE


async def test_the_event_stream_sends_everything_and_then_the_changes(in_memory: ConsoleFlow):
    flow, console, _ = in_memory
    await flow.publish_node(make_node())
    await in_memory.wait_for_row("web-1")
    async with console.follow() as frames:
        first = await anext(frames)
        assert first["is_complete"]
        assert [row["name"] for row in first["nodes"]] == ["web-1"]
        await flow.publish_node(make_node("web-2", uid="uid-2"))
        await flow.publish_node_gone(make_node(resource_version="102"))
        names, removed = set[str](), set[str]()
        async for frame in frames:
            assert not frame["is_complete"]
            names |= {row["name"] for row in frame["nodes"]}
            removed |= set(frame["removed_nodes"])
            if names and removed:
                break
    assert (names, removed) == ({"web-2"}, {"web-1"})


async def test_a_console_that_starts_later_shows_the_stream_and_marks_no_hop_as_seen(in_memory: ConsoleFlow):
    await in_memory.flow.publish_node(make_node())
    await in_memory.wait_for_row("web-1")
    async with in_memory.server.open_bus("console") as bus, run_console(bus) as later:
        await wait_until(lambda: _has_node(later), "the later console has replayed")
        assert "observed" not in (await later.read_node("web-1"))["hops"]


async def _has_node(console: ConsoleClient) -> bool:
    return "web-1" in await console.read_rows()


async def test_a_wiped_stream_empties_the_page_until_the_watcher_publishes_again(on_each_bus: ConsoleFlow):
    flow, console, server = on_each_bus
    if server.nats is None:
        return  # the one in memory is never replaced
    await flow.publish_node(make_node("old", uid="uid-0"))
    await on_each_bus.wait_for_row("old")
    await server.delete_stream()
    await flow.start(make_node("new"))
    await on_each_bus.wait_for_row("new")
    assert set(await console.read_rows()) == {"new"}


async def test_messages_that_name_another_subject_are_ignored(in_memory: ConsoleFlow):
    """The key of a cloud account may write any body below its own subjects."""
    await in_memory.flow.publish_node(make_node())
    await in_memory.wait_for_row("web-1")
    await in_memory.flow.publish(make_decided(name="web-2", outcome="initialized", reason="r"))
    assert set(await in_memory.console.read_rows()) == {"web-1"}


async def test_the_pulse_of_a_service_says_what_is_not_ready_and_who_leads(in_memory: ConsoleFlow):
    flow, console, _ = in_memory
    await flow.publish(Pulse(service="lifecycle", instance="host_1", is_leading=True))
    await flow.publish(Pulse(service="ipam", instance="host_2", problems=("no pod network",)))
    await flow.publish(Pulse(service="csr", instance="host_3", problems=("starting",)))
    await flow.publish(Pulse(service="csr", instance="host_4"))

    async def read() -> dict[str, dict[str, Any]]:
        services = (await console.read_state())["overview"]["services"]
        return {each["service"]: each for each in services}

    found = await wait_for_value(
        read, lambda seen: "2 processes" in seen["csr"].get("details", ""), "two processes of csr"
    )
    assert (found["lifecycle"]["health"], found["lifecycle"]["details"]) == ("ok", "1 process; leader host_1")
    assert (found["ipam"]["health"], found["ipam"]["text"]) == ("bad", "not ready: no pod network")
    assert found["csr"]["health"] == "ok", "one of two is ready"
    assert "process" not in found["labeler"].get("details", "")


# ---- whom it answers


@pytest.mark.parametrize(
    "host", ["evil.example:10467", "169.254.169.254", "localhost.evil.example", "127.0.0.1:x"]
)
async def test_a_foreign_host_header_is_refused(in_memory: ConsoleFlow, host: str):
    for path in ("/", "/api/state", "/api/events", "/app.js"):
        status, text, _ = await in_memory.console.get(path, Host=host)
        assert status == 403
        assert "localhost" in text


async def test_other_sites_may_not_read_data(in_memory: ConsoleFlow):
    for site in ("cross-site", "same-site"):
        status, _, _ = await in_memory.console.get("/api/state", **{"Sec-Fetch-Site": site})
        assert status == 403
    status, _, _ = await in_memory.console.get("/", **{"Sec-Fetch-Site": "cross-site"})
    assert status == 200, "a link to the page"


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/state", "/missing", "/api/nodes/none"])
async def test_every_response_has_the_security_headers(in_memory: ConsoleFlow, path: str):
    _, _, headers = await in_memory.console.get(path)
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert not [name for name in headers if name.lower().startswith("access-control-")]


async def test_nothing_can_be_written(in_memory: ConsoleFlow):
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        async with in_memory.console.session.request(
            method, f"{in_memory.console.url}/api/state"
        ) as response:
            assert response.status == 405


@pytest.mark.parametrize("name", ["none", "..%2f..%2fetc", "a%20b", "%3E", HOSTILE])
async def test_an_unknown_or_impossible_name_is_not_found(in_memory: ConsoleFlow, name: str):
    status, _, _ = await in_memory.console.get(f"/api/nodes/{name}")
    assert status == 404


async def test_the_console_publishes_nothing(on_each_bus: ConsoleFlow):
    flow, _, _ = on_each_bus
    await flow.publish_node(make_node())
    await on_each_bus.wait_for_row("web-1")
    before = (await flow.bus.stats()).messages
    await on_each_bus.console.read_node("web-1")
    assert (await flow.bus.stats()).messages == before
    assert await flow.bus.get_last(f"{OBSERVED_NODE}.web-1") is not None
    assert await flow.bus.get_last(f"{ENRICHED_NODE}.web-1") is None
