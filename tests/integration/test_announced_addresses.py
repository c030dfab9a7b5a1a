"""Kubelets that announce addresses of other machines: all services, a real control plane, Talos machines."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from libs.common.contract.node import BLOCKED_CONDITION, PROVIDED_NODE_IP_ANNOTATION, Node
from libs.testbed.kubelets import MERGE, KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from tests.bus_actors import wait_until
from tests.integration.conftest import StartServices

OWNER = make_machine("announced-owner", "10.240.0.5", ip6="fd00:240::5")
FIRST = make_machine("announced-first", "10.240.0.66", ip6="fd00:240::66")
SECOND = make_machine("announced-second", "10.240.0.67", ip6="fd00:240::67")
SILENT = make_machine("announced-silent", "10.240.0.68", ip6="fd00:240::68")
HONEST = make_machine("announced-honest", "10.240.0.69", ip6="fd00:240::69")
ALL = (OWNER, FIRST, SECOND, SILENT, HONEST)


class Site:
    """One all-in-one process on a real control plane, and kubelets that announce what they like."""

    def __init__(self, kubelets: KubeletFleet) -> None:
        self._kubelets = kubelets

    async def announce(self, machine: SimMachineFacts, *ips: str) -> None:
        await self._kubelets.join(SimKubelet.of_machine(machine, ips=ips))

    async def announce_again(self, name: str, ips: str) -> None:
        body = {"metadata": {"annotations": {PROVIDED_NODE_IP_ANNOTATION: ips}}}
        path = f"/api/v1/nodes/{name}"
        answer = await self._kubelets.request("PATCH", path, as_node=name, body=body, content_type=MERGE)
        assert answer.status == 200

    async def node(self, name: str) -> Node:
        answer = await self._kubelets.request("GET", f"/api/v1/nodes/{name}")
        return msgspec.convert(answer.body, Node)

    async def blocked(self, name: str) -> str:
        """What the Node says of why it waits."""
        found: list[str] = []

        async def says_why() -> bool:
            condition = (await self.node(name)).find_condition(BLOCKED_CONDITION)
            found[:] = [f"{condition.reason}: {condition.message}"] if condition else []
            return bool(found)

        await wait_until(says_why, f"{name} says why it waits", 40)
        return found[0]

    async def initialized(self, name: str) -> Node:
        async def is_initialized() -> bool:
            return (await self.node(name)).is_initialized

        await wait_until(is_initialized, f"{name} is initialized", 60)
        return await self.node(name)


@pytest.fixture
async def site(
    start_services: StartServices, kubelets: KubeletFleet, machines: MachineFleet
) -> AsyncIterator[Site]:
    await machines.put_machines(*ALL)
    await start_services(all_in_one=True, bus="memory")
    yield Site(kubelets)
    for machine in ALL:
        await kubelets.request("DELETE", f"/api/v1/nodes/{machine.name}")
    await machines.delete_machines(*(machine.id for machine in ALL))


def internal_ips(node: Node) -> list[str]:
    return [each.address for each in node.status.addresses if each.type == "InternalIP"]


async def test_a_node_gets_only_addresses_that_its_machine_has(site: Site):
    await site.announce(OWNER, "10.240.0.5", "fd00:240::5")
    await site.announce(HONEST, "10.240.0.69", "fd00:240::69")
    await site.announce(FIRST, "10.240.0.5", "fd00:240::66")  # the IPv4 address is the owner's
    await site.announce(SECOND, "10.240.0.67", "fd00:240::5")  # the IPv6 address is
    await site.announce(SILENT, "10.240.0.99", "fd00:240::68")  # no machine at the IPv4 address
    for machine, foreign in ((FIRST, "10.240.0.5"), (SECOND, "fd00:240::5")):
        why = await site.blocked(machine.name)
        assert why.startswith("NodeIPOfAnotherMachine: ")
        assert f"machine announced-owner answers at {foreign}" in why
        node = await site.node(machine.name)
        assert (node.is_initialized, node.spec.provider_id) == (False, "")
    assert (await site.blocked(SILENT.name)).startswith("NodeIPNotOnMachine: ")
    assert (await site.node(SILENT.name)).spec.provider_id == ""
    await site.announce_again(SILENT.name, "10.240.0.68,fd00:240::99")  # no machine at the IPv6 address
    silent = await site.initialized(SILENT.name)
    assert silent.spec.provider_id == "talos://metal/10.240.0.68"
    assert internal_ips(silent) == ["10.240.0.68"]
    for machine, ips in ((OWNER, ["10.240.0.5", "fd00:240::5"]), (HONEST, ["10.240.0.69", "fd00:240::69"])):
        honest = await site.initialized(machine.name)
        assert (honest.spec.provider_id, internal_ips(honest)) == (f"talos://metal/{ips[0]}", ips)
    await site.announce_again(FIRST.name, "10.240.0.66,fd00:240::66")
    corrected = await site.initialized(FIRST.name)
    assert corrected.spec.provider_id == "talos://metal/10.240.0.66"
    assert internal_ips(corrected) == ["10.240.0.66", "fd00:240::66"]
    await site.announce_again(FIRST.name, "10.240.0.5,fd00:240::66")  # a kubelet may write it at any time
    await site.announce_again(HONEST.name, "10.240.0.69")

    async def follows() -> bool:
        return internal_ips(await site.node(HONEST.name)) == ["10.240.0.69"]

    await wait_until(follows, "what is announced later is followed", 40)
    assert "10.240.0.5" not in internal_ips(await site.node(FIRST.name))
