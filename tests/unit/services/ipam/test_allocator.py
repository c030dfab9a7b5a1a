"""What the model does not cover: the number of requests to Kubernetes, and the reported errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from libs.common.bus.delivery import TemporaryError
from libs.common.contract.node import Node, NodeSpec, ObjectMeta
from libs.common.kube.errors import Conflict, Forbidden, KubeError
from libs.common.kube.objects import ConfigMap
from services.ipam.allocator import Allocator
from services.ipam.core.allocation import (
    AllocationPlan,
    AllocationRequest,
    Assignment,
    ExistingAssignment,
    NoBlock,
)
from services.ipam.core.ledger import Exclusions
from services.ipam.core.pools import Pool
from tests.builders import NOW
from tests.ipam_server import CallRecordingApi, IpamServer, SimulatedTask, make_unreachable_error

IPV4 = Pool(name="default", family=4, cidr="10.0.0.0/22", mask=24)
OTHER = Pool(name="other", family=4, cidr="172.16.0.0/22", mask=24)
IPV6 = Pool(name="default", family=6, cidr="fd00::/56", mask=64)
PAGE = "talos-ccm-pod-cidrs-10.0.0.0-12"


class Cluster:
    """A server whose requests arrive at once and are counted; `refuse` may answer a write instead of it."""

    def __init__(self) -> None:
        self.server = IpamServer()
        self.seconds = 0.0
        self.asked: list[str] = []
        self.refuse: Callable[[ConfigMap], KubeError | None] = lambda page: None
        self.allocator = self.replica()

    def replica(self) -> Allocator:
        cluster = self

        class Counting(CallRecordingApi):
            def list_nodes(self):
                cluster.asked.append("list nodes")
                return super().list_nodes()

            def list_config_maps(self, namespace, labels):
                cluster.asked.append("list pages")
                return super().list_config_maps(namespace, labels)

            async def create_config_map(self, namespace, config_map):
                cluster.asked.append("write")
                refusal = cluster.refuse(config_map)
                if refusal is not None:
                    raise refusal
                return await super().create_config_map(namespace, config_map)

        api: Any = Counting(self.server)
        return Allocator(api, now=lambda: NOW, clock=lambda: self.seconds)

    def node(self, name: str, *pod_cidrs: str) -> Node:
        spec = NodeSpec(pod_cidr=pod_cidrs[0], pod_cidrs=pod_cidrs) if pod_cidrs else NodeSpec()
        return self.server.put_node(Node(metadata=ObjectMeta(name=name, uid=f"uid-{name}"), spec=spec))

    def claim(
        self, *names: str, pools: tuple[Pool, ...] = (IPV4,), by: Allocator | None = None
    ) -> AllocationPlan:
        wants = [AllocationRequest(uid=f"uid-{name}", node=name, pools=pools) for name in names]
        claimed = finished((by or self.allocator).claim(wants, Exclusions))
        assert isinstance(claimed, AllocationPlan)
        return claimed


def finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    task = SimulatedTask(coroutine)
    while not task.done:
        task.deliver_response()
    if task.error is not None:
        raise task.error
    return task.result


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_thousand_nodes_of_both_families_cost_two_writes(cluster):
    names = [f"n{i}" for i in range(1000)]
    pools = (Pool(name="p", family=4, cidr="10.0.0.0/13", mask=24), Pool("p", 6, "fd00::/48", 80))
    claimed = cluster.claim(*names, pools=pools)
    assert all(isinstance(answer, Assignment) for answer in claimed.results.values())
    assert len(claimed.new_blocks) == 2000
    assert cluster.asked == ["list pages", "list nodes", "write", "write"]


def test_a_node_that_comes_again_costs_one_read_of_the_pages(cluster):
    first = cluster.claim("a")
    cluster.asked.clear()
    assert cluster.claim("a").results["uid-a"].pod_cidrs == first.results["uid-a"].pod_cidrs
    assert cluster.asked == ["list pages"]


def test_pod_cidrs_that_a_restored_etcd_does_not_have_are_claimed_again(cluster):
    cluster.claim("a")
    backup = cluster.server.save()
    cluster.node("a", "10.0.0.0/24")
    finished(cluster.allocator.sweep())  # lists the Node with its pod CIDRs
    cluster.server.restore(backup)
    assert isinstance(cluster.claim("a").results["uid-a"], ExistingAssignment), "the list is recent"
    cluster.seconds += 10.0
    assert isinstance(cluster.claim("a").results["uid-a"], Assignment)


def test_a_pod_cidr_that_a_node_got_after_a_restored_etcd_is_no_other_nodes(cluster):
    cluster.node("a", "10.0.9.0/24")
    finished(cluster.allocator.sweep())  # lists what the Node had
    observed = Exclusions(pod_cidrs_by_uid={"uid-a": ("10.0.0.0/24",)})
    wants = [AllocationRequest(uid="uid-b", node="b", pools=(IPV4,))]
    claimed = finished(cluster.allocator.claim(wants, lambda: observed))
    assert claimed.results["uid-b"].pod_cidrs == ("10.0.1.0/24",)


def overtaken_claim(
    cluster: Cluster, get_exclusions: Callable[[], Exclusions] = Exclusions
) -> AllocationPlan:
    """A claim for c in both families; another replica writes the IPv4 page between its read and its write."""
    task = SimulatedTask(
        cluster.allocator.claim(
            [AllocationRequest(uid="uid-c", node="c", pools=(IPV4, IPV6))], get_exclusions
        )
    )
    for _ in range(2):
        task.deliver_response()  # it has listed
    cluster.asked.clear()
    cluster.claim("a", by=cluster.replica())
    cluster.asked.clear()
    while not task.done:
        task.deliver_response()
    assert isinstance(task.result, AllocationPlan)
    return task.result


def test_overtaken_in_one_page_it_reads_all_of_them_and_plans_again(cluster):
    claimed = overtaken_claim(cluster)
    assert cluster.asked == ["list pages", "write", "write"]
    assert claimed.results["uid-c"] == Assignment(
        uid="uid-c", pod_cidrs=("10.0.1.0/24", "fd00::/64"), is_new=True
    )
    assert claimed.new_blocks == (("10.0.1.0/24", IPV4), ("fd00::/64", IPV6))


def test_an_address_that_is_learnt_while_another_was_quicker_is_in_no_block(cluster):
    views = [Exclusions(), Exclusions(networks=("10.0.1.7",))]
    claimed = overtaken_claim(cluster, lambda: views.pop(0))
    assert claimed.new_blocks == (("10.0.2.0/24", IPV4), ("fd00::/64", IPV6))


def test_a_write_that_succeeded_though_an_error_was_reported_is_found_and_not_repeated(cluster):
    task = SimulatedTask(
        cluster.allocator.claim([AllocationRequest(uid="u", node="n", pools=(IPV4,))], Exclusions)
    )
    for _ in range(2):
        task.deliver_response()
    task.deliver_request()
    task.resume(make_unreachable_error())
    while not task.done:
        task.deliver_response()
    assert task.result.results["u"] == Assignment(uid="u", pod_cidrs=("10.0.0.0/24",))
    assert cluster.asked == ["list pages", "list nodes", "write", "list pages"]


def test_a_page_that_takes_no_writes_stops_only_the_nodes_that_need_it(cluster):
    cluster.refuse = lambda page: Forbidden("no right") if page.metadata.name == PAGE else None
    wants = [
        AllocationRequest(uid="a", node="a", pools=(IPV4,)),
        AllocationRequest(uid="b", node="b", pools=(IPV4, OTHER)),
    ]
    answers = finished(cluster.allocator.claim(wants, Exclusions)).results
    assert answers["b"] == Assignment(uid="b", pod_cidrs=("172.16.0.0/24",), is_new=True)
    assert answers["a"] == NoBlock(
        reason=f"no free IPv4 block of /24 in 10.0.0.0/22 (pool default): {PAGE} was not written: no right"
    )


def test_endless_conflicts_end_in_a_temporary_error(cluster):
    cluster.claim("a")

    def somebody_was_quicker(page: ConfigMap) -> KubeError:
        cluster.server.store_page(cluster.server.pages[page.metadata.name], NOW)
        return Conflict("another version")

    cluster.refuse = somebody_was_quicker
    with pytest.raises(TemporaryError, match="wrote every page of claims first"):
        cluster.claim("b")


def test_room_that_another_replica_made_is_seen_before_a_node_is_refused(cluster):
    names = ("a", "b", "c", "d")
    for name in names:
        cluster.node(name)
    cluster.claim(*names)
    second = cluster.replica()
    assert cluster.claim("e", by=second).results["uid-e"] == NoBlock(
        reason="no free IPv4 block of /24 in 10.0.0.0/22 (pool default)", is_exhausted=True
    )
    del cluster.server.nodes["a"]
    finished(cluster.allocator.sweep())
    cluster.seconds += 600.0
    assert [claim.node for claim in finished(cluster.allocator.sweep()).freed] == ["a"]
    assert isinstance(cluster.claim("e", by=second).results["uid-e"], Assignment)


def test_what_we_gave_is_not_reported_as_somebody_elses(cluster):
    node = cluster.node("a")
    answer = cluster.claim("a").results["uid-a"]
    given = finished(cluster.allocator.assign(node, answer))
    assert given.spec.pod_cidrs == ("10.0.0.0/24",)
    assert given.spec.pod_cidr == "10.0.0.0/24"
    cluster.asked.clear()
    swept = finished(cluster.allocator.sweep())
    assert (swept.adopted, swept.invalid, swept.dropped) == ((), (), ())
    assert cluster.asked == ["list pages", "list nodes"]


def test_a_page_that_somebody_deleted_makes_the_nodes_be_listed_before_the_next_claim(cluster):
    node = cluster.node("a")
    finished(cluster.allocator.assign(node, cluster.claim("a").results["uid-a"]))
    second = cluster.replica()
    cluster.claim("b", by=second)
    cluster.server.pages.clear()
    cluster.asked.clear()
    answer = cluster.claim("c", by=second).results["uid-c"]
    assert cluster.asked == ["list pages", "list nodes", "write"]
    assert answer.pod_cidrs != node.spec.pod_cidrs
    assert [claim.node for claim in finished(second.sweep()).adopted] == ["a"]


def test_what_is_claimed_for_one_node_is_given_to_no_other(cluster):
    claimed = cluster.claim("a").results["uid-a"]
    with pytest.raises(ValueError, match="claimed for uid-a"):
        finished(cluster.allocator.assign(cluster.node("b"), claimed))


async def test_a_claim_waits_for_a_sweep_whose_list_would_not_have_its_node(cluster):
    """The list of Nodes judges the claims in the pages that were read before it."""
    sweep, claim = cluster.allocator.sweep(), cluster.allocator.claim([], Exclusions)
    sweeping = SimulatedTask(sweep)
    assert cluster.asked == ["list pages"]
    claiming = asyncio.create_task(claim)
    await asyncio.sleep(0)
    assert cluster.asked == ["list pages"]
    while not sweeping.done:
        sweeping.deliver_response()
    claiming.cancel()
