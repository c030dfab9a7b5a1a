"""Who gets a certificate for an address that several machines list: metadata's messages, judged by csr."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec
import pytest

from libs.common.contract.events import CsrEnriched, NodeEnriched, NodeObserved, NodeUnreachable
from libs.common.contract.machine import AddressStatus, MachineFacts
from libs.common.contract.node import Node, NodeAddress
from libs.common.contract.public_addresses import EXTERNAL_LINK
from libs.common.contract.subjects import ENRICHED_NODE, OBSERVED_NODE
from services.csr.core.claim_index import ClaimIndex
from services.csr.core.decide import decide
from services.csr.core.decision import Approve, Decision, Wait
from services.csr.core.flow_state import compact_message
from services.metadata import on_csr_observed
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.csr_actors import make_serving_request
from tests.csr_cases import POLICY
from tests.metadata_actors import CALM, ScriptedTalos
from tests.metadata_csr_flow import MetadataCsrFlow

Report = NodeEnriched | NodeUnreachable
VICTIMS = 50


def on(link: str, *addresses: str) -> tuple[AddressStatus, ...]:
    return tuple(AddressStatus(address=address, link=link, flags=128) for address in addresses)


def machine(name: str, ip: str, *more: AddressStatus, link: str = "eth0") -> MachineFacts:
    return make_facts(node_name=name, node_ip=ip, addresses=(*on(link, f"{ip}/24"), *more))


def behind_nat(number: int) -> MachineFacts:
    return machine(f"web-{number}", f"10.0.0.{number}", *on(EXTERNAL_LINK, public(number)))


def public(number: int) -> str:
    return f"203.0.114.{number}"


def node_of(facts: MachineFacts, *, uid: str = "", ip: str = "", labels: str = "") -> Node:
    name = facts.node_name
    return make_node(name, uid=uid or f"uid-{name}", ip=ip or facts.node_ip, labels={"a": labels})


class Cluster(MetadataCsrFlow):
    """Nodes, their machines, and the decisions of a csr that has received the whole stream."""

    def __init__(self) -> None:
        super().__init__()
        self.talos = ScriptedTalos()
        self.names: set[str] = set()
        self._requests = 0

    @asynccontextmanager
    async def running(self, *, seed: int = 1) -> AsyncIterator[None]:
        """A metadata that follows the complete stream."""
        async with self.metadata(self.talos, CALM, seed=seed, in_real_time=True) as service:
            await self.publish_snapshot()
            await wait_until(lambda: service._stream_cache.is_complete)
            yield

    async def join(self, facts: MachineFacts, node: Node | None = None) -> None:
        """Observe the Node of that machine; return once metadata has published it."""
        self.talos.put(facts)
        node = node or node_of(facts)
        self.names.add(node.name)
        observed = await self.publish_node(node)
        await self.wait_for_report(node.name, lambda event: event.observed_sequence >= observed)

    async def change(self, facts: MachineFacts) -> None:
        """Change a watched machine; return once metadata has published its new addresses."""
        self.talos.put(facts)
        await self.wait_for_report(
            facts.node_name,
            lambda event: isinstance(event, NodeEnriched) and event.facts.addresses == facts.addresses,
        )

    async def wait_for_report(self, name: str, says: Callable[[Report], bool]) -> None:
        async def is_there() -> bool:
            message = await self.bus.get_last(f"{ENRICHED_NODE}.{name}")
            event = message.event if message is not None else None
            return isinstance(event, NodeEnriched | NodeUnreachable) and says(event)

        await wait_until(is_there)

    async def file(self, name: str, *ips: str) -> str:
        """File a request of that Node, and return its name once metadata has published it with facts."""
        self._requests += 1
        request = make_serving_request(f"csr-{self._requests}", node=name, ips=ips)
        await self.file_request(request)
        await self.wait_for_enriched(lambda event: event.facts is not None, request.name)
        return request.name

    async def decide(self, request: str) -> Decision:
        claims = ClaimIndex()
        for name in sorted(self.names):
            for prefix in (OBSERVED_NODE, ENRICHED_NODE):
                message = await self.bus.get_last(f"{prefix}.{name}")
                match compact_message(message).event if message is not None else None:
                    case NodeObserved(node=node):
                        claims.upsert_node(node)
                    case NodeEnriched() | NodeUnreachable() as report:
                        claims.upsert_report(report)
        event = await self.get_enriched(request)
        assert isinstance(event, CsrEnriched)
        return decide(event, claims, POLICY).decision

    async def ask(self, name: str, *ips: str) -> Decision:
        return await self.decide(await self.file(name, *ips))


@pytest.fixture
async def cluster() -> Cluster:
    cluster = Cluster()
    await cluster.provision()
    return cluster


async def assert_approved(cluster: Cluster, numbers: Iterable[int]) -> None:
    decisions = [await cluster.ask(f"web-{n}", f"10.0.0.{n}", public(n)) for n in numbers]
    assert [each for each in decisions if not isinstance(each, Approve)] == []


@pytest.mark.parametrize("link", ["dummy0", "eth1", EXTERNAL_LINK])
async def test_a_machine_that_lists_the_addresses_of_others_blocks_only_its_own_requests(cluster, link):
    numbers = range(1, VICTIMS + 1)
    async with cluster.running():
        await cluster.join(machine("liar", "10.0.1.1"))
        for number in numbers:
            await cluster.join(behind_nat(number))
        stolen = tuple(f"{public(number)}/32" for number in numbers)
        await cluster.change(machine("liar", "10.0.1.1", *on(link, *stolen)))
        await assert_approved(cluster, numbers)
        decision = await cluster.ask("liar", "10.0.1.1", *map(public, numbers))
        assert isinstance(decision, Wait)
        assert "Node web-1" in decision.message
        assert decision.rivals == ()
    async with cluster.running(seed=2):  # renewals after a restart of metadata
        await cluster.publish_node(node_of(behind_nat(7), labels="changed"))
        await cluster.wait_for_report("web-7", lambda event: event.node.labels == {"a": "changed"})
        await assert_approved(cluster, (1, 7, VICTIMS))
        assert isinstance(await cluster.ask("liar", public(7)), Wait)


async def test_a_silent_kubelet_that_writes_the_addresses_of_others_blocks_nobody(cluster):
    async with cluster.running():
        await cluster.join(behind_nat(1))
        written = (NodeAddress(type="ExternalIP", address=public(1)),)
        await cluster.publish_node(make_node("liar", uid="uid-liar", ip="10.0.1.1", addresses=written))
        cluster.names.add("liar")
        await cluster.wait_for_report("liar", lambda event: isinstance(event, NodeUnreachable))
        await assert_approved(cluster, (1,))


async def test_who_lists_the_address_of_a_future_node_holds_it_until_it_lets_go(cluster):
    async with cluster.running():
        await cluster.join(machine("early", "10.0.1.1", *on("eth1", f"{public(1)}/32")))
        await cluster.join(behind_nat(1))
        decision = await cluster.ask("web-1", "10.0.0.1", public(1))
        assert isinstance(decision, Wait)
        assert "Node early, too" in decision.message
        await cluster.change(machine("early", "10.0.1.1"))
        await assert_approved(cluster, (1,))


async def test_nodes_whose_order_is_unknown_both_wait(cluster):
    """As after the loss of the stream, and where metadata starts for the first time."""
    for number in (1, 2):
        facts = machine(f"web-{number}", f"10.0.0.{number}", *on("eth1", "203.0.114.9/32"))
        cluster.talos.put(facts)
        cluster.names.add(facts.node_name)
        await cluster.publish_node(node_of(facts))
    async with cluster.running():
        for number in (1, 2):
            await cluster.wait_for_report(f"web-{number}", lambda event: isinstance(event, NodeEnriched))
        for number, other in ((1, "web-2"), (2, "web-1")):
            decision = await cluster.ask(f"web-{number}", f"10.0.0.{number}", "203.0.114.9")
            assert isinstance(decision, Wait)
            assert decision.rivals == (other,)
        await cluster.join(machine("web-3", "10.0.0.3", *on("eth1", "203.0.114.9/32")))
        decision = await cluster.ask("web-3", "203.0.114.9")
        assert isinstance(decision, Wait)
        await cluster.change(machine("web-2", "10.0.0.2"))
        await cluster.change(machine("web-3", "10.0.0.3"))
        assert isinstance(await cluster.ask("web-1", "203.0.114.9"), Approve)


async def test_a_floating_ip_moves_when_the_former_machine_lets_go(cluster):
    floating = on("eth1", "203.0.114.9/32")
    async with cluster.running():
        await cluster.join(machine("web-1", "10.0.0.1", *floating))
        await cluster.join(machine("web-2", "10.0.0.2"))
        await cluster.change(machine("web-2", "10.0.0.2", *floating))
        assert isinstance(await cluster.ask("web-2", "203.0.114.9"), Wait)
        await cluster.change(machine("web-1", "10.0.0.1"))
        assert isinstance(await cluster.ask("web-2", "203.0.114.9"), Approve)
        await cluster.change(machine("web-1", "10.0.0.1", *floating))  # takes it again: the later claim now
        assert isinstance(await cluster.ask("web-1", "203.0.114.9"), Wait)
        assert isinstance(await cluster.ask("web-2", "203.0.114.9"), Approve)


async def test_a_floating_ip_of_a_silent_machine_belongs_to_neither(cluster):
    floating = on("eth1", "203.0.114.9/32")
    async with cluster.running():
        await cluster.join(machine("web-1", "10.0.0.1", *floating))
    cluster.talos.fail_queries("10.0.0.1")
    async with cluster.running(seed=2):
        await cluster.wait_for_report("web-1", lambda event: isinstance(event, NodeUnreachable))
        await cluster.join(machine("web-2", "10.0.0.2", *floating))
        assert isinstance(await cluster.ask("web-2", "203.0.114.9"), Wait)
        silent = make_serving_request("csr-silent", node="web-1", ips=("203.0.114.9",))
        await cluster.file_request(silent)
        await cluster.wait_for_enriched(lambda event: event.fault is not None, silent.name)
        assert isinstance(await cluster.decide(silent.name), Wait)
        await cluster.publish_node_gone(node_of(machine("web-1", "10.0.0.1")))
        cluster.names.remove("web-1")
        assert isinstance(await cluster.ask("web-2", "203.0.114.9"), Approve)


@pytest.mark.parametrize("links", [("lo", "lo"), ("dummy0", "dummy0"), ("eth0", "dummy0")])
async def test_node_ips_of_routed_hosts_are_approved(cluster, links):
    """BGP on the host announces node IPs that are on `lo` or a dummy link."""
    first, second = links
    facts = machine("web-1", "10.0.0.1", *on(second, "fd00::1/128"), link=first)
    cluster.talos.put(msgspec.structs.replace(facts, node_ip="fd00::1"))
    async with cluster.running():
        await cluster.join(facts, node_of(facts, ip="10.0.0.1,fd00::1"))
        assert isinstance(await cluster.ask("web-1", "10.0.0.1", "fd00::1"), Approve)
        other = await cluster.file("web-1", "10.0.0.1")
        assert isinstance(await cluster.decide(other), Approve)


async def test_a_node_ip_on_a_dummy_link_is_dialled_again_for_the_request(cluster):
    facts = machine("web-1", "10.0.0.1", *on("dummy0", "fd00::1/128"))
    async with cluster.running():
        await cluster.join(facts, node_of(facts, ip="10.0.0.1,fd00::1"))
        cluster.talos.put(msgspec.structs.replace(facts, node_ip="fd00::1"))  # BGP announces the route now
        request = await cluster.file("web-1", "10.0.0.1", "fd00::1")
        await cluster.wait_for_enriched(lambda event: "fd00::1" in event.answering_addresses, request)
        assert isinstance(await cluster.decide(request), Approve)


async def test_an_address_of_other_nodes_pods_is_only_a_node_ip_that_answers(cluster, monkeypatch):
    monkeypatch.setattr(on_csr_observed, "CLAIM_CHECK_SECONDS", 0.05)
    mine = on("eth0", "2001:db8::5/64", "2001:db8::6/64", "10.244.1.7/24")
    facts = machine("web-1", "10.0.0.1", *mine)
    cluster.talos.put(msgspec.structs.replace(facts, node_ip="2001:db8::5"))
    ips = ("10.0.0.1", "2001:db8::5")
    async with cluster.running():
        await cluster.join(facts, node_of(facts, ip=",".join(ips)))
        request = await cluster.file("web-1", *ips)
        other = make_node("web-2", uid="uid-2", ip="10.0.0.2", pod_cidrs=("10.244.1.0/24", "2001:db8::/72"))
        cluster.names.add("web-2")
        await cluster.publish_node(other)
        # metadata dials it because the podCIDR is new
        await cluster.wait_for_enriched(lambda event: "2001:db8::5" in event.answering_addresses, request)
        assert isinstance(await cluster.decide(request), Approve)
        for stolen in ("2001:db8::6", "10.244.1.7"):
            decision = await cluster.ask("web-1", *ips, stolen)
            assert isinstance(decision, Wait)
            assert (decision.reason, "podCIDR of Node web-2" in decision.message) == ("pod-cidrs", True)


async def test_a_node_that_registers_with_the_addresses_of_others_as_its_pod_cidr_blocks_nobody(cluster):
    async with cluster.running():
        await cluster.join(behind_nat(1))
        await cluster.join(behind_nat(2))
        await cluster.publish_node(
            make_node("liar", uid="uid-liar", ip="10.0.1.1", pod_cidrs=("203.0.114.0/24",))
        )
        cluster.names.add("liar")
        await cluster.wait_for_report("liar", lambda event: isinstance(event, NodeUnreachable))
        await assert_approved(cluster, (1, 2))
        await cluster.join(behind_nat(3))  # it may be the address of a pod
        assert isinstance(await cluster.ask("web-3", "10.0.0.3", public(3)), Wait)
