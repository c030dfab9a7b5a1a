"""ipam between a bus and an API server in memory: which Nodes get which blocks, and when no Node gets any."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.bus.protocol import StreamPosition
from libs.common.contract.machine import AddressStatus, Inventory, MachineFacts
from libs.common.contract.services import CLAIM_PAGES_NAMESPACE
from libs.common.contract.subjects import OBSERVED_NODE
from libs.common.kube.errors import Forbidden, Invalid, KubeError, Unreachable
from libs.common.observability import metrics
from services.ipam import garbage_collector
from services.ipam.core.allocation import AllocationRequest
from services.ipam.core.pages import NAME_PREFIX
from services.ipam.core.pools import Pool
from services.ipam.reports import (
    ADDRESSES_IGNORED,
    ASSIGNMENT_FAILED,
    NOT_AVAILABLE,
    OTHER_ALLOCATOR,
)
from services.ipam.waiting_nodes import OWN_WRITE_WAIT_SECONDS
from tests.builders import NOW, make_cluster_networks
from tests.bus_actors import wait_until, wait_until_led
from tests.bus_server import make_flow_fixtures
from tests.clocks import ManualClock
from tests.ipam_actors import (
    PODS,
    SOON,
    IpamFlow,
    assert_disjoint,
    make_numbered_facts,
    make_numbered_node,
)

TWO_BLOCKS = ("10.244.0.0/23",)  # of /24


flow, any_flow = make_flow_fixtures(IpamFlow.open)


# ---- which Nodes get which blocks


async def test_nodes_get_a_block_of_each_family_with_one_write_each_and_share_those_of_claims(
    any_flow: IpamFlow,
):
    flow = any_flow
    async with flow.run_ipam() as service:
        batcher = service._batcher
        flow.kube.gate.clear()
        await flow.join_nodes(0)
        await wait_until(lambda: batcher._lock.locked() and not batcher._pending, "a claim for one Node")
        await flow.join_nodes(*range(1, 60))
        await wait_until(lambda: len(batcher._pending) == 59, "the others wait for the next claim")
        flow.kube.gate.set()
        given = await flow.wait_for_pod_cidrs(*range(60))
        decided = await flow.wait_for_decision("web-7", "allocated")
    assert_disjoint(given)
    assert all([cidr.rpartition("/")[2] for cidr in cidrs] == ["24", "80"] for cidrs in given.values())
    assert sorted(flow.kube.patched) == sorted(given)
    assert flow.kube.page_writes == 4, "two claims write a page of each family"
    assert decided.uid == "uid-7"
    assert decided.reason == f"it has {', '.join(given['web-7'])}"
    assert set(flow.kube.pages) == {f"{NAME_PREFIX}10.240.0.0-12", f"{NAME_PREFIX}fd00-0010-0244-48"}
    assert flow.kube.events == []


async def test_blocks_hold_no_address_of_a_node_or_gateway_and_nothing_of_services(flow: IpamFlow):
    await flow.publish_networks(pod_cidrs=("10.0.0.0/20",), service_cidrs=("10.0.4.0/22",))
    facts = make_numbered_facts(1)
    gateways = Inventory(gateways=("10.0.2.1",))
    cni = AddressStatus(address="10.0.3.7/32", link="eth1", flags=128)
    facts = msgspec.structs.replace(facts, inventory=gateways, addresses=(*facts.addresses, cni))
    await flow.join_nodes(1, facts=facts)  # 10.0.0.2 itself
    await flow.join_nodes(300)  # 10.0.1.51
    async with flow.run_ipam():
        given = await flow.wait_for_pod_cidrs(1, 300)
    assert_disjoint(given)
    taken = {f"10.0.{third}.0/24" for third in (0, 1, 2, 3, 4, 5, 6, 7)}
    assert not taken & {cidr for cidrs in given.values() for cidr in cidrs}


async def test_no_block_is_in_a_range_that_was_added_and_none_is_given_while_ranges_are_unknown(
    flow: IpamFlow,
):
    """Ranges of ServiceCIDR objects, beside the flags."""
    await flow.publish_networks(pod_cidrs=("10.244.0.0/22",), service_cidrs=("10.96.0.0/12",))
    await flow.publish_snapshot(service_cidrs=None)
    async with flow.run_ipam(ready=False, service_cluster_ip_range=("10.96.0.0/12",)) as service:
        await flow.join_nodes(1)
        waits = await flow.wait_for_decision("web-1", "waiting")
        assert "servicecidrs" in waits.reason
        assert waits.reason in service.problems()
        assert flow.kube.page_writes == 0
        await flow.publish_snapshot(service_cidrs=("10.244.0.0/23",))
        given = await flow.wait_for_pod_cidrs(1, seconds=SOON)
        assert given == {"web-1": ("10.244.2.0/24",)}


async def test_a_node_that_carries_a_whole_pool_is_named_on_those_for_whom_nothing_is_left(flow: IpamFlow):
    await flow.join_nodes(1, pod_cidrs=("10.244.0.0/16",))
    pool = ("10.244.0.0/16",)
    await flow.publish_networks(pod_cidrs=pool)
    async with flow.run_ipam(cluster_cidr=pool):
        await flow.join_nodes(2)
        told = await flow.wait_for_decision("web-2", "unserved")
        await wait_until(lambda: flow.kube.list_event_reasons("web-2") == [NOT_AVAILABLE], "told")
    assert "all of which is in 10.244.0.0/16, the pod CIDR of node web-1" in told.reason
    [event] = [event for event in flow.kube.events if event.regarding.name == "web-2"]
    assert "the pod CIDR of node web-1" in event.message
    assert "delete this Node" in event.message


def spread(number: int, blocks: int) -> MachineFacts:
    """A machine that reports an address in so many blocks of the cluster's pod network."""
    facts = make_numbered_facts(number)
    told = tuple(AddressStatus(address=f"10.244.{n}.9/32", link="eth1", flags=128) for n in range(blocks))
    return msgspec.structs.replace(facts, addresses=(*facts.addresses, *told))


async def test_a_machine_that_reports_an_address_in_every_block_leaves_blocks_for_others(any_flow: IpamFlow):
    flow, pool = any_flow, ("10.244.0.0/16",)
    await flow.publish_networks(pod_cidrs=pool)
    await flow.join_nodes(1, facts=spread(1, 256))
    async with flow.run_ipam(cluster_cidr=pool):
        await flow.join_nodes(*range(2, 20))
        given = await flow.wait_for_pod_cidrs(*range(1, 20))
        await wait_until(
            lambda: flow.kube.list_event_reasons("web-1") == [ADDRESSES_IGNORED], "told on its Node"
        )
    assert_disjoint(given)
    kept = {f"10.244.{n}.0/24" for n in range(16)}
    assert not kept & {cidr for cidrs in given.values() for cidr in cidrs}
    [event] = flow.kube.events
    assert "in too many blocks of /24 in 10.244.0.0/16" in event.message


# ---- when no Node gets a block


async def test_nothing_is_given_before_somebody_leads_and_then_at_once(flow: IpamFlow):
    clock = ManualClock()
    async with flow.run_ipam(clock=clock):
        clock.advance(11.0)
        retried = metrics.HANDLED.labels("ipam", "NodeEnriched", "retried")._value
        before = retried.get()
        await flow.join_nodes(1)
        await wait_until(lambda: retried.get() > before, "handed back")
        assert flow.kube.page_writes == 0
        await flow.publish_leading()
        await flow.wait_for_pod_cidrs(1)


async def test_a_node_of_whose_machine_nothing_is_known_waits_and_one_known_from_before_does_not(
    flow: IpamFlow,
):
    async with flow.run_ipam():
        await flow.publish_unreachable(flow.kube.put_node(make_numbered_node(1)))
        await flow.publish_unreachable(
            flow.kube.put_node(make_numbered_node(2)), last_known=make_numbered_facts(2)
        )
        await flow.wait_for_pod_cidrs(2)
        assert (
            "no block may contain an address of it"
            in (await flow.wait_for_decision("web-1", "waiting")).reason
        )
        assert flow.kube.pod_cidrs().keys() == {"web-2"}


async def test_observe_only_says_what_it_would_do_and_writes_nothing(flow: IpamFlow):
    async with flow.run_ipam(observe_only=True):
        await flow.join_nodes(1)
        decided = await flow.wait_for_decision("web-1", "would-allocate")
    assert decided.reason == "it would get /24 in 10.244.0.0/16, /80 in fd00:10:244::/48"
    assert (flow.kube.patched, flow.kube.page_writes, flow.kube.events) == ([], 0, [])


# ---- room


async def test_who_finds_no_room_is_told_on_the_node_and_served_soon_after_a_block_has_rested(
    any_flow: IpamFlow,
):
    flow, clock = any_flow, ManualClock()
    await flow.publish_networks(pod_cidrs=TWO_BLOCKS)
    async with flow.run_ipam(clock=clock, cluster_cidr=TWO_BLOCKS) as ipam:
        await flow.join_nodes(1, 2)
        before = await flow.wait_for_pod_cidrs(1, 2)
        await flow.join_nodes(3)
        told = await flow.wait_for_decision("web-3", "unserved")
        assert "no free IPv4 block of /24 in 10.244.0.0/23" in told.reason
        await wait_until(lambda: flow.kube.list_event_reasons("web-3") == [NOT_AVAILABLE], "told on the Node")
        await wait_until(lambda: metrics.IPAM_EXHAUSTED._value.get() == 1, "measured")
        await flow.delete_node(1)
        clock.advance(garbage_collector.MIN_INTERVAL_SECONDS + 1.0)
        await flow.publish_leading()
        await wait_until(lambda: '"goneSince"' in str(flow.kube.pages), "the block rests")
        await flow.advance_time(clock, 580.0, "nodes")
        await flow.advance_time(clock, 5.0, "configmaps")  # a try to find room
        assert "web-3" not in flow.kube.pod_cidrs()
        quarantine = ipam.list_quarantine()
        assert quarantine is not None
        [block] = quarantine.blocks
        assert (block.node, (block.block,)) == ("web-1", before["web-1"])
        assert block.until - block.since == timedelta(minutes=10)
        clock.advance(20.0)
        await flow.publish_leading()
        assert (await flow.wait_for_pod_cidrs(3, seconds=SOON))["web-3"] == before["web-1"]
        await wait_until(lambda: not getattr(ipam.list_quarantine(), "count", 1), "the quarantine is over")


async def test_a_node_that_is_being_deleted_keeps_its_block(flow: IpamFlow):
    clock = ManualClock()
    async with flow.run_ipam(
        clock=clock, cluster_cidr=("10.244.0.0/24",), service_cluster_ip_range=("10.96.0.0/12",)
    ):
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        node = flow.kube.nodes["web-1"]
        metadata = msgspec.structs.replace(node.metadata, deletion_timestamp=NOW)
        await flow.publish_node(flow.kube.put_node(msgspec.structs.replace(node, metadata=metadata)))
        await flow.join_nodes(2)
        for _ in range(4):
            await flow.advance_time(clock, 400.0, "nodes")
        assert "web-2" not in flow.kube.pod_cidrs()


async def test_a_pool_that_the_file_adds_serves_those_who_wait_soon(flow: IpamFlow, tmp_path: Path):
    file = tmp_path / "config.yaml"
    file.write_text("ipam: {pools: [{name: a, cidrs: [10.8.0.0/24], maskSizeIPv4: 24}]}")
    async with flow.run_ipam(**read(file), cluster_cidr=("10.244.0.0/16",)):
        await flow.join_nodes(1, 2)
        await flow.wait_for_decision("web-1", "allocated", "unserved")
        await wait_until(lambda: len(flow.kube.pod_cidrs()) == 1)
        file.write_text("ipam: {pools: [{name: a, cidrs: [10.8.0.0/24, 10.9.0.0/24], maskSizeIPv4: 24}]}")
        given = await flow.wait_for_pod_cidrs(1, 2, seconds=SOON)
    assert {cidr for cidrs in given.values() for cidr in cidrs} == {"10.8.0.0/24", "10.9.0.0/24"}


async def test_a_file_that_takes_blocks_from_nodes_is_refused_with_their_names_and_told(
    flow: IpamFlow, tmp_path: Path
):
    file = tmp_path / "config.yaml"
    file.write_text("ipam: {pools: [{name: a, cidrs: [10.8.0.0/16]}]}")
    async with flow.run_ipam(**read(file), cluster_cidr=("10.244.0.0/16",)) as service:
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        file.write_text("ipam: {pools: [{name: b, cidrs: [10.9.0.0/16]}]}")
        await wait_until(lambda: bool(service.problems()), "refused")
        assert "pool a would lose 1 block that a node has: web-1 (10.8.0.0/24)" in service.problems()[0]
        await wait_until(lambda: [event.reason for event in flow.kube.events] == ["PoolsRejected"])
        await flow.join_nodes(2)
        assert (await flow.wait_for_pod_cidrs(2))["web-2"] == ("10.8.1.0/24",)
        file.write_text("ipam: {pools: [{name: a, cidrs: [10.8.0.0/16]}, {name: b, cidrs: [10.9.0.0/16]}]}")
        await wait_until(lambda: not service.problems(), "obeyed")
        await wait_until(lambda: flow.kube.events[-1].reason == "PoolsAccepted")


def read(file: Path) -> dict[str, Any]:
    """The settings of that file."""
    from libs.common.cloud_config.document import parse_cloud_config

    config = parse_cloud_config(file.read_text(), str(file))
    return {"cloud_config": file, "file": config, "cloud_config_poll_seconds": 0.1}


# ---- never twice


async def test_three_replicas_give_no_block_twice_and_go_on_when_one_ends_in_the_middle(any_flow: IpamFlow):
    flow = any_flow
    async with flow.run_ipam(seed=1), flow.run_ipam(seed=2):
        async with flow.run_ipam(seed=3):
            await flow.join_nodes(*range(40))
        await flow.join_nodes(*range(40, 80))
        given = await flow.wait_for_pod_cidrs(*range(80))
    assert_disjoint(given)


async def test_what_another_replica_has_claimed_is_left_to_it_for_a_moment_and_written_if_it_does_not(
    flow: IpamFlow,
):
    flow.kube.fails_before = failing("patch")
    async with flow.run_ipam():
        await flow.join_nodes(1)
        await wait_until(lambda: flow.kube.patched == ["web-1"], "claimed, and not written")
    flow.kube.fails_before = lambda verb, name: None
    waiting = metrics.HANDLED.labels("ipam", "NodeEnriched", "waiting")._value
    before = waiting.get()
    await flow.enrich(flow.kube.nodes["web-1"], make_numbered_facts(1), observed=1)
    async with flow.run_ipam():
        await wait_until(lambda: waiting.get() > before, "handed back")
        assert flow.kube.pod_cidrs() == {}
        await flow.wait_for_pod_cidrs(1)
    assert flow.kube.patched == ["web-1", "web-1"]


@pytest.mark.parametrize("lost", ["stream", "services", "leader"])
async def test_who_gathered_before_addresses_services_or_leader_were_lost_is_given_no_block(
    flow: IpamFlow, lost: str
):
    clock = ManualClock()
    async with flow.run_ipam(clock=clock) as service:
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        writes = flow.kube.page_writes
        if lost == "stream":
            service._flow.cache.start_replay(StreamPosition(stream_id="another", last_sequence=0))
        elif lost == "services":
            service._cluster_view.apply(make_cluster_networks(pod_cidrs=PODS, service_cidrs=("no network",)))
        else:
            clock.advance(60.0)
        pool = Pool("default", 4, "10.244.0.0/16", 24)
        with pytest.raises(TemporaryError):
            await service._batcher.submit(AllocationRequest(uid="uid-2", node="web-2", pools=(pool,)))
        assert flow.kube.page_writes == writes


@pytest.mark.parametrize("claims_are_lost", [True, False])
async def test_a_node_whose_pod_cidrs_a_restored_etcd_does_not_have_gets_a_block_again(
    flow: IpamFlow, claims_are_lost: bool
):
    """Its facts are the same, so metadata publishes nothing."""
    clock = ManualClock()
    async with flow.run_ipam(clock=clock) as service:
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        await flow.advance_time(clock, 400.0, "nodes")  # a sweep lists the Node with its pod CIDRs
        clock.advance(20.0)
        await flow.publish_leading()
        await wait_until(lambda: not len(service._waiting_nodes), "the write is observed")
        if claims_are_lost:
            flow.kube.pages.clear()
        await flow.publish_node(flow.kube.put_node(make_numbered_node(1)))
        await flow.wait_for_pod_cidrs(1, seconds=SOON)
        await flow.join_nodes(2)
        assert_disjoint(await flow.wait_for_pod_cidrs(1, 2, seconds=SOON))
    assert "uid-1" in str(flow.kube.pages)


async def test_a_write_that_a_restored_etcd_does_not_have_is_repeated_if_it_is_not_observed(flow: IpamFlow):
    flow.kube.watchers = None
    clock = ManualClock()
    async with flow.run_ipam(clock=clock):
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        flow.kube.pages.clear()
        flow.kube.put_node(make_numbered_node(1))
        await flow.join_nodes(2)
        await flow.wait_for_pod_cidrs(2)
        assert "web-1" not in flow.kube.pod_cidrs()
        clock.advance(OWN_WRITE_WAIT_SECONDS)
        await flow.publish_leading()
        assert_disjoint(await flow.wait_for_pod_cidrs(1, 2, seconds=SOON))


async def test_a_repeated_write_that_fails_is_tried_again_only_after_a_while(flow: IpamFlow):
    flow.kube.watchers = None
    clock = ManualClock()
    async with flow.run_ipam(clock=clock) as service:
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        flow.kube.put_node(make_numbered_node(1))
        flow.kube.fails_before = lambda verb, name: Unreachable("no answer") if verb == "patch" else None
        clock.advance(OWN_WRITE_WAIT_SECONDS)
        await flow.publish_leading()
        await wait_until(lambda: len(flow.kube.patched) == 2, "the write is repeated")
        for _ in range(5):
            service._waiting_nodes.run_periodic_checks()
        assert len(service._waiting_nodes._queue) == 0


def secondary(number: int, address: str) -> MachineFacts:
    """Facts of a machine with one more address, which its Node does not have."""
    facts = make_numbered_facts(number)
    another = AddressStatus(address=f"{address}/32", link="eth1", flags=128)
    return msgspec.structs.replace(facts, addresses=(*facts.addresses, another))


async def test_after_a_wiped_stream_nothing_is_claimed_before_every_machine_that_was_there_was_spoken_of(
    tmp_path: Path,
):
    async with IpamFlow.open("nats", tmp_path) as flow, flow.run_ipam() as service:
        await flow.join_nodes(1, 2)
        before = await flow.wait_for_pod_cidrs(1, 2)
        assert {cidrs[0] for cidrs in before.values()} == {"10.244.0.0/24", "10.244.1.0/24"}
        writes = flow.kube.page_writes
        there = [flow.kube.nodes["web-1"], flow.kube.nodes["web-2"]]
        await flow.wipe(*there)
        await wait_until_led(service, flow.bus)
        await flow.join_nodes(3)
        told = await flow.wait_for_decision("web-3", "waiting")
        assert "metadata has not reported on all machines yet" in told.reason
        await wait_until(lambda: len(service.problems()) == 1, "all else is known")
        assert service.problems() == ("waits for metadata's first report on 2 machines, such as web-1",)
        await flow.publish_unreachable(there[0], last_known=secondary(1, "10.244.2.9"))
        waits = ("waits for metadata's first report on 1 machine, such as web-2",)
        await wait_until(lambda: service.problems() == waits, "one is left")
        assert flow.kube.page_writes == writes
        await flow.enrich(there[1], secondary(2, "10.244.3.9"), observed=1)
        given = await flow.wait_for_pod_cidrs(3, seconds=SOON)
        assert service.problems() == ()
    assert_disjoint(given)
    assert given["web-3"][0] == "10.244.4.0/24"  # two were given, two hold addresses
    assert flow.kube.list_event_reasons("web-3") == []


async def test_who_gathered_before_a_machine_became_unknown_is_given_no_block(flow: IpamFlow):
    await flow.publish_node(flow.kube.put_node(make_numbered_node(1)))
    async with flow.run_ipam(ready=False) as service:
        await wait_until(lambda: len(service.problems()) == 1, "only a first word is missing")
        pool = Pool("default", 4, "10.244.0.0/16", 24)
        with pytest.raises(TemporaryError, match="first report on 1 machine"):
            await service._batcher.submit(AllocationRequest(uid="uid-2", node="web-2", pools=(pool,)))
        assert flow.kube.page_writes == 0


async def test_no_block_is_given_while_a_node_is_of_a_newer_version(flow: IpamFlow):
    newer: Any = "of a newer version"
    node = make_numbered_node(1)
    async with flow.run_ipam() as service:
        spec = msgspec.structs.replace(node.spec, taints=newer)
        await flow.publish_node(msgspec.structs.replace(node, spec=spec))
        await wait_until(lambda: bool(service._flow.cache.list_unknown(OBSERVED_NODE)), "it is there")
        pool = Pool("default", 4, "10.244.0.0/16", 24)
        with pytest.raises(TemporaryError, match="Node web-1 is unreadable"):
            await service._batcher.submit(AllocationRequest(uid="uid-2", node="web-2", pools=(pool,)))
        assert flow.kube.page_writes == 0
        [problem] = service.problems()
        assert problem == "the last message about Node web-1 is unreadable or fenced, so no block is claimed"


# ---- another allocator


async def test_another_allocator_is_told_within_a_resync_and_what_it_gave_goes_to_nobody_else(flow: IpamFlow):
    clock = ManualClock()
    foreign = metrics.IPAM_FOREIGN._value.get()
    async with flow.run_ipam(clock=clock, resync_seconds=30.0):
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        await flow.join_nodes(2, pod_cidrs=("10.244.1.0/24",))
        clock.advance(31.0)
        await flow.publish_leading()
        await wait_until(lambda: OTHER_ALLOCATOR in flow.kube.list_event_reasons("web-2"), "told")
        await flow.join_nodes(3)
        assert_disjoint(await flow.wait_for_pod_cidrs(1, 2, 3))
    assert metrics.IPAM_FOREIGN._value.get() == foreign + 1
    assert flow.kube.list_event_reasons("web-1") == []


async def test_a_patch_that_kubernetes_does_not_take_is_told_on_the_node_and_tried_with_its_next_word(
    flow: IpamFlow,
):
    def refused(verb: str, name: str) -> KubeError | None:
        return Invalid("an admission plugin says no", status=422) if verb == "patch" else None

    flow.kube.fails_before = refused
    async with flow.run_ipam():
        await flow.join_nodes(1, 2)
        await wait_until(lambda: flow.kube.list_event_reasons("web-1") == [ASSIGNMENT_FAILED], "told")
        flow.kube.fails_before = lambda verb, name: None
        await flow.enrich(flow.kube.nodes["web-1"], make_numbered_facts(1), observed=1)
        await flow.wait_for_pod_cidrs(1)
    [event, *_] = [event for event in flow.kube.events if event.regarding.name == "web-1"]
    assert event.message.startswith("Node web-1 status is now: CIDRAssignmentFailed: ")
    assert "an admission plugin says no" in event.message


@pytest.mark.parametrize("forbidden", ["patch", "list"])
async def test_a_missing_right_is_told_on_the_node(forbidden: str, flow: IpamFlow):
    def refused(verb: str, name: str) -> KubeError | None:
        return Forbidden("ipam lacks the right", status=403) if verb == forbidden else None

    flow.kube.fails_before = refused
    async with flow.run_ipam():
        await flow.join_nodes(1)
        await wait_until(lambda: flow.kube.list_event_reasons("web-1") == [ASSIGNMENT_FAILED], "told")
    assert "ipam lacks the right" in flow.kube.events[0].message


async def test_a_page_that_nobody_understands_stops_only_its_own_blocks_and_is_named(flow: IpamFlow):
    async with flow.run_ipam() as service:
        await flow.join_nodes(1)
        await flow.wait_for_pod_cidrs(1)
        name = f"{NAME_PREFIX}10.240.0.0-12"
        page = flow.kube.pages[name]
        await flow.kube.update_config_map(
            CLAIM_PAGES_NAMESPACE, msgspec.structs.replace(page, data={"claims.json": "{}"})
        )
        await flow.join_nodes(2)
        told = await flow.wait_for_decision("web-2", "unserved")
        assert f"{name} is unreadable" in told.reason
        assert any(problem.startswith(f"{name} is unreadable") for problem in service.problems())


def failing(verb: str):
    return lambda done, name: Unreachable("cut off") if done == verb else None
