"""Talos's own API servers: the contract of simulated machines, the demo, and what metadata publishes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.testbed.machine_facts import SimMachineFacts
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.namespaces import NamespaceError
from libs.testbed.nats_server import NatsServer
from services.metadata.settings import MetadataSettings
from tests.builders import make_node
from tests.bus_actors import wait_until
from tests.contract import test_machines_contract as contract
from tests.flow_actors import FlowActor
from tests.integration.test_demo import a_demo, tells_all
from tests.metadata_actors import CALM, run_metadata

talos, cosi, machine = contract.talos, contract.cosi, contract.machine


@pytest.fixture(scope="module")
def start() -> contract.Start:
    return MachineFleet.start_behind_apid


class TestWhatAMachineSays(contract.TestWhatAMachineSays):
    pass


class TestRouting(contract.TestRouting):
    pass


class TestAccess(contract.TestAccess):
    pass


class TestWatching(contract.TestWatching):
    pass


class TestConnections(contract.TestConnections):
    pass


# ---- the demo


def test_nodes_become_ready_and_nothing_stays_behind(tmp_path: Path):
    with a_demo(tmp_path, "--nodes=9", "--exit-when-ready", "--real-talos", "--bus=memory") as demo:
        said = demo.ends(0)
    assert "Talos's own API server (apid)" in said
    tells_all(said, 9)


@pytest.mark.usefixtures("no_namespaces")
def test_a_user_without_namespaces_gets_the_reason(tmp_path: Path):
    with a_demo(tmp_path, "--real-talos", "--bus=memory") as demo:
        said = demo.ends(1)
    assert "allow users to create user namespaces" in " ".join(said.split())


@pytest.mark.usefixtures("no_namespaces")
async def test_a_user_without_namespaces_gets_the_reasons_of_both_attempts(tmp_path: Path):
    with pytest.raises(NamespaceError, match=r"user namespaces \(unshare --net: .*; unshare --user: .*\)"):
        async with MachineFleet.start_behind_apid(tmp_path):
            pass


# ---- metadata


RECOVERY_SECONDS = 15.0  # of apid, which dials again after 15 s at most

Disturb = Callable[[MachineFleet], Awaitable[None]]
DISTURBANCES: dict[str, Disturb] = {
    "certificates are renewed": lambda front: front.renew_certificates("control-1", "web-1"),
    "the machine's API server restarts": lambda front: front.restart_apid("web-1"),
    "the endpoint's API server restarts": lambda front: front.restart_apid("control-1"),
}


@pytest.fixture
async def settings(front: MachineFleet, worker: SimMachineFacts, tmp_path: Path) -> MetadataSettings:
    """Settings of a reader; the worker has its facts."""
    await front.put_machines(worker)
    config = front.write_talosconfig(tmp_path / "talosconfig")
    return msgspec.structs.replace(CALM, talosconfig=config)


@pytest.mark.parametrize("disturbance", DISTURBANCES)
async def test_a_change_reaches_the_node_after(
    front: MachineFleet,
    nats_server: NatsServer,
    stream: FlowActor,
    settings: MetadataSettings,
    disturbance: str,
):
    worker = front.get_machine("web-1")
    assert worker.platform is not None
    async with run_metadata(nats_server.url, None, settings) as service:
        await stream.publish_node(make_node(ip=worker.reachable_at[0]))
        await stream.wait_for_enriched("web-1", NodeEnriched)
        await wait_until(lambda: service._nodes["web-1"].state.is_watched)
        await DISTURBANCES[disturbance](front)
        platform = msgspec.structs.replace(worker.platform, zone="elsewhere")
        await front.change_machine("web-1", platform=platform)
        await stream.wait_for_enriched(
            "web-1",
            NodeEnriched,
            lambda event: event.facts.platform.zone == "elsewhere",
            seconds=RECOVERY_SECONDS,
        )


async def test_a_role_that_may_not_read_is_the_fault_of_the_node(
    front: MachineFleet, nats_server: NatsServer, stream: FlowActor, settings: MetadataSettings
):
    assert settings.talosconfig is not None
    front.write_talosconfig(settings.talosconfig, roles=("os:none",))
    async with run_metadata(nats_server.url, None, settings):
        await stream.publish_node(make_node(ip="10.80.0.1"))
        event = await stream.wait_for_enriched("web-1", NodeUnreachable)
    assert event.fault.kind == "permission"
    assert "os:reader is needed" in event.fault.message
