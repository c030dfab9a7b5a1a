"""The messages of the watcher about requests, Services and ServiceCIDRs, with a scripted API server."""

import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.events import CsrGone, CsrObserved, KubeServiceGone
from libs.common.contract.kube_service import CLEANUP_FINALIZER
from libs.common.contract.signing_request import SigningRequest, SigningRequestCondition
from libs.common.contract.subjects import OBSERVED_CSR, OBSERVED_SERVICE, SNAPSHOT
from libs.common.kube.errors import Forbidden, KubeError, NotFound, Unreachable
from libs.common.kube.objects import ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot
from services.csr.on_csr_enriched import FENCE_RETRY_SECONDS
from services.watcher.core.kinds import CSR, MAX_PENDING_PER_REQUESTER
from services.watcher.core.work_queue import compute_cooldown
from services.watcher.informer import ServiceCidrInformer
from services.watcher.resync_requests import ResyncRequests
from tests.builders import NOW, make_kube_service, make_node, make_request
from tests.bus_actors import run_during, wait_until
from tests.clocks import VirtualClock, virtually
from tests.watcher_actors import (
    ScriptedKind,
    ScriptedNodes,
    ScriptedRequests,
    ScriptedServices,
    WatcherFlow,
    follow_watcher,
    make_service_cidr,
    make_watcher,
)

APPROVED = SigningRequestCondition(type="Approved")
REFUSAL = Forbidden(
    'certificatesigningrequests.certificates.k8s.io is forbidden: User "talos-ccm" cannot list resource',
    request="list certificatesigningrequests",
    status=403,
    reason="Forbidden",
)


def the_nth(number: int, *, node: str = "web-1", **fields) -> SigningRequest:
    """Filed so many seconds after the first."""
    created = NOW + timedelta(seconds=number)
    return make_request(f"csr-{node}-{number}", uid=f"{node}-{number}", node=node, created=created, **fields)


async def test_requests_are_said_beside_nodes_and_one_snapshot_tells_that_this_is_all():
    nodes = ScriptedNodes(make_node("web-1"), make_node("web-2", uid="uid-2"))
    script = ScriptedRequests(
        the_nth(1),
        the_nth(2, conditions=(APPROVED,), certificate="Y2VydA=="),
        make_request("of-a-user", username="jane"),
    )
    async with follow_watcher(nodes.source, requests=script.source) as (watcher, flow):
        assert [(said.nodes, said.requests) for said in flow.snapshots()] == [(2, 2)]
        assert flow.existing(OBSERVED_CSR) == {"csr-web-1-1", "csr-web-1-2"}
        order = [message.subject for message in sorted(flow.messages, key=lambda m: m.sequence)]
        assert order.index(SNAPSHOT) > max(i for i, s in enumerate(order) if s.startswith(OBSERVED_CSR))
        [issued] = flow.list_request_events("csr-web-1-2")
        assert isinstance(issued, CsrObserved)
        assert (issued.request.is_pending, issued.request.status.certificate) == (False, "")
        await wait_until(lambda: watcher.problems() == (), "ready")


@virtually
async def test_what_became_of_a_request_is_said_within_five_seconds_among_thousands():
    """csr reads nothing: when its write is refused, it counts on hearing by then who else has decided."""
    script = ScriptedRequests(*(the_nth(1, node=f"web-{n}") for n in range(1000)))
    async with follow_watcher(requests=script.source, clock=VirtualClock()) as (_, flow):
        assert len(flow.existing(OBSERVED_CSR)) == 1000
        began = asyncio.get_running_loop().time()
        decided = script.put(the_nth(1, node="web-999", conditions=(APPROVED,)))
        await flow.wait_for(lambda f: _is_decided(f, decided.name), "that it is decided")
        took = asyncio.get_running_loop().time() - began
    assert CSR.max_cooldown_seconds <= FENCE_RETRY_SECONDS - 2.0
    assert took < compute_cooldown(1000, at_most=60.0) - 1.0, "it rests no longer than that, among thousands"


def _is_decided(flow: WatcherFlow, name: str) -> bool:
    said = flow.list_request_events(name)[-1]
    return isinstance(said, CsrObserved) and not said.request.is_pending


@virtually
async def test_of_a_requester_that_never_stops_little_is_said_and_of_others_all_at_once():
    # each word stays in the stream for an hour, as the word that it is gone: 100 a second would fill it
    script = ScriptedRequests(*(the_nth(number, node="noisy") for number in range(MAX_PENDING_PER_REQUESTER)))
    async with follow_watcher(requests=script.source, clock=VirtualClock()) as (_, flow):
        last = MAX_PENDING_PER_REQUESTER + 500
        for number in range(MAX_PENDING_PER_REQUESTER, last):
            script.put(the_nth(number, node="noisy"))
            await asyncio.sleep(0.002)
        script.put(the_nth(0, node="quiet"))
        await flow.wait_for(lambda f: "csr-quiet-0" in f.existing(OBSERVED_CSR))
        newest = {f"csr-noisy-{number}" for number in range(last - MAX_PENDING_PER_REQUESTER, last)}
        await flow.wait_for(lambda f: f.existing(OBSERVED_CSR) == newest | {"csr-quiet-0"})
    assert (
        len({event.name for event in flow.list_request_events() if isinstance(event, CsrGone)})
        <= 3 * MAX_PENDING_PER_REQUESTER
    )


async def test_nodes_are_said_while_requests_cannot_be_listed_and_the_missing_rule_is_named():
    nodes, script = ScriptedNodes(make_node("web-1")), ScriptedRequests(the_nth(1))
    script.refusal = REFUSAL
    async with follow_watcher(nodes.source, requests=script.source) as (watcher, flow):
        assert [(said.nodes, said.requests) for said in flow.snapshots()] == [(1, None)]
        nodes.put(make_node("joins", uid="uid-j"))
        await flow.wait_for(lambda f: f.existing() == {"web-1", "joins"})
        assert flow.list_request_events() == []
        told = "; ".join(watcher.problems())
        assert "cannot list resource" in told
        assert (
            "missing RBAC rule: apiGroups ['certificates.k8s.io'], resources [certificatesigningrequests], "
            "verbs [list, watch]" in told
        )
        script.grant()
        await flow.wait_for(lambda f: len(f.snapshots()) == 2, "a snapshot of all")
        assert (flow.snapshots()[-1].nodes, flow.snapshots()[-1].requests) == (2, 1)
        assert flow.existing(OBSERVED_CSR) == {"csr-web-1-1"}
        assert flow.snapshots()[-1].epoch == flow.snapshots()[0].epoch
        assert len(flow.list_node_events("web-1")) == 1, "nodes are not said again for it"
        await wait_until(lambda: watcher.problems() == (), "ready")


async def test_a_request_that_cannot_be_read_is_told_of_once_and_the_others_are_said(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.ERROR)
    script = ScriptedRequests(the_nth(1), the_nth(2))
    script.unreadable = ("broken",)
    async with follow_watcher(requests=script.source) as (watcher, flow):
        script.list_again()
        marker = script.put(the_nth(3))
        await flow.wait_for(lambda f: f.list_request_events(marker.name))
        assert flow.existing(OBSERVED_CSR) == {"csr-web-1-1", "csr-web-1-2", marker.name}
        await wait_until(lambda: watcher.problems() == (), "ready")
    told = [record for record in caplog.records if getattr(record, "csr", "") == "broken"]
    assert len(told) == 1


async def test_the_resync_says_again_what_somebody_owes_an_answer_and_counts_it_all():
    issued = the_nth(2, conditions=(APPROVED,), certificate="Y2VydA==")
    owed = the_nth(3, conditions=(APPROVED,))  # by the signer: a csr that starts hours later counts it, too
    script = ScriptedRequests(the_nth(1), issued, owed)
    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    watcher = make_watcher(bus, ScriptedNodes().source, requests=script.source, resync_seconds=1.0)
    async with run_during(watcher.run()), flow.follow(bus):
        await flow.wait_for(lambda f: len(f.snapshots()) >= 3, "two resyncs")
        assert {said.requests for said in flow.snapshots()} == {3}
        assert len(flow.list_request_events("csr-web-1-1")) >= 3
        assert len(flow.list_request_events(owed.name)) >= 3
        assert len(flow.list_request_events(issued.name)) == 1


async def test_only_services_with_a_load_balancer_are_published_and_the_snapshot_counts_them():
    script = ScriptedServices(
        make_kube_service("web"),
        make_kube_service("web", namespace="other", uid="uid-2"),
        make_kube_service("plain", uid="uid-3", type="ClusterIP"),
        make_kube_service("ends", uid="uid-4", type="ClusterIP", finalizers=(CLEANUP_FINALIZER,)),
    )
    async with follow_watcher(ScriptedNodes(make_node("web-1")).source, services=script.source) as (
        watcher,
        flow,
    ):
        assert [(each.nodes, each.services) for each in flow.snapshots()] == [(1, 3)]
        assert flow.existing(OBSERVED_SERVICE) == {"shop.web", "other.web", "shop.ends"}
        order = [message.subject for message in sorted(flow.messages, key=lambda m: m.sequence)]
        assert order.index(SNAPSHOT) > max(i for i, s in enumerate(order) if s.startswith(OBSERVED_SERVICE))
        await wait_until(lambda: watcher.problems() == (), "ready")


async def test_a_service_that_is_no_longer_of_interest_is_gone_and_may_return():
    script = ScriptedServices(make_kube_service("web", finalizers=(CLEANUP_FINALIZER,)))
    async with follow_watcher(services=script.source) as (_, flow):
        script.put(make_kube_service("web", type="ClusterIP", finalizers=(CLEANUP_FINALIZER,)))
        await flow.wait_for(lambda f: len(f.list_service_events("shop.web")) == 2, "still with the finalizer")
        script.put(make_kube_service("web", type="ClusterIP"))
        await flow.wait_for(lambda f: isinstance(f.list_service_events("shop.web")[-1], KubeServiceGone))
        gone = flow.list_service_events("shop.web")[-1]
        assert isinstance(gone, KubeServiceGone)
        assert (gone.namespace, gone.name, gone.uid) == ("shop", "web", "service-uid-1")
        script.put(make_kube_service("plain", uid="uid-9", type="ClusterIP"))
        script.put(make_kube_service("web"))
        await flow.wait_for(lambda f: f.existing(OBSERVED_SERVICE) == {"shop.web"})
        script.delete("shop.web")
        await flow.wait_for(lambda f: isinstance(f.list_service_events("shop.web")[-1], KubeServiceGone))
    assert not flow.list_service_events("shop.plain")


async def test_without_their_controllers_services_and_requests_are_not_even_listed():
    services, requests = ScriptedServices(make_kube_service()), ScriptedRequests(make_request())
    sources: dict[str, Any] = {"services": services.source, "requests": requests.source}
    async with follow_watcher(**sources, controllers=("cloud-node",)) as (watcher, flow):
        assert (flow.snapshots()[0].services, flow.snapshots()[0].requests) == (None, None)
        await wait_until(lambda: watcher.problems() == (), "ready")
        assert (services.lists, requests.lists) == (0, 0)
        assert (flow.list_service_events(), flow.list_request_events()) == ([], [])


@pytest.mark.parametrize("broken", ["shop.broken", "other.web"])
async def test_a_service_that_cannot_be_read_is_not_gone_and_stops_no_other(broken: str):
    namespace, name = broken.split(".")
    script = ScriptedServices(make_kube_service("web"), make_kube_service(name, namespace=namespace, uid="2"))
    async with follow_watcher(services=script.source, resync_seconds=1.0) as (_, flow):
        del script.objects[broken]
        script.unreadable = (broken,)
        script.list_again()
        script.put(make_kube_service("web", annotations={"a": "b"}))
        await flow.wait_for(lambda f: len(f.list_service_events("shop.web")) >= 2)
        seen = len(flow.snapshots())
        await flow.wait_for(lambda f: len(f.snapshots()) >= seen + 2, "a resync after it")
        assert flow.existing(OBSERVED_SERVICE) == {"shop.web", broken}


# ---- ServiceCIDRs

DEFAULT = make_service_cidr("kubernetes", "10.96.0.0/12")
ADDED = make_service_cidr("added", "10.200.0.0/16", "fd00:200::/112")


def informed() -> ServiceCidrInformer:
    script = ScriptedKind[ServiceCidr]()
    script.refusal = Forbidden("servicecidrs is forbidden", status=403)
    return ServiceCidrInformer(script.source, ResyncRequests(time.monotonic))


async def test_each_change_of_the_ranges_is_in_another_snapshot():
    script = ScriptedKind(DEFAULT)
    async with follow_watcher(service_cidrs=script.source) as (_, flow):
        script.put(ADDED)
        await flow.wait_for(lambda f: len(f.snapshots()) == 2, "another one")
        script.put(ADDED)  # its status changed
        script.delete("added")
        await flow.wait_for(lambda f: len(f.snapshots()) == 3, "the last one")
    assert [said.service_cidrs for said in flow.snapshots()] == [
        ("10.96.0.0/12",),
        ("10.200.0.0/16", "10.96.0.0/12", "fd00:200::/112"),
        ("10.96.0.0/12",),
    ]


async def test_ranges_that_the_watcher_may_not_list_are_unknown_until_it_may():
    script = ScriptedKind(DEFAULT)
    script.refusal = Forbidden("servicecidrs is forbidden", status=403)
    async with follow_watcher(service_cidrs=script.source) as (watcher, flow):
        assert flow.snapshots()[0].service_cidrs is None
        assert any("servicecidrs is forbidden" in problem for problem in watcher.problems())
        script.grant()
        await flow.wait_for(lambda f: f.snapshots()[-1].service_cidrs == ("10.96.0.0/12",), "the ranges")
        await wait_until(lambda: watcher.problems() == (), "ready")


@pytest.mark.parametrize(
    ("error", "ranges"),
    [
        (NotFound("404 page not found", status=404), ()),
        (Forbidden("no", status=403), None),
        (Unreachable("no"), None),
    ],
)
async def test_only_an_api_server_without_the_kind_has_no_ranges(
    error: KubeError, ranges: tuple[str, ...] | None
):
    informer = informed()
    assert informer.is_sync_pending
    informer._on_error(error)
    assert (informer.cidrs, informer.is_sync_pending) == (ranges, False)
    assert bool(informer.problems()) == (ranges is None)
    assert ("resources [servicecidrs]" in str(informer.problems())) == isinstance(error, Forbidden)


@pytest.mark.parametrize(
    "error", [NotFound("no", status=404), Forbidden("no", status=403), Unreachable("no")]
)
async def test_no_failure_ends_a_range_that_is_known(error: KubeError):
    """An older API server of a cluster that is being upgraded answers 404."""
    informer = informed()
    await informer._on_watch_event(ListSnapshot((DEFAULT,), "1", ()))
    informer._on_error(error)
    assert informer.cidrs == ("10.96.0.0/12",)


async def test_ranges_are_unknown_while_an_object_cannot_be_decoded():
    informer = informed()
    found: list[tuple[str, ...] | None] = []
    await informer._on_watch_event(ListSnapshot((DEFAULT,), "1", ()))
    informer._on_unreadable(UnreadableObject(resource="servicecidrs", name="added", reason="odd"))
    assert "added" in str(informer.problems())
    found.append(informer.cidrs)
    for event in (Changed(ADDED), Deleted(ADDED)):
        await informer._on_watch_event(event)
        found.append(informer.cidrs)
    assert found == [None, ("10.200.0.0/16", "10.96.0.0/12", "fd00:200::/112"), ("10.96.0.0/12",)]
