"""The watcher's messages about Services, on the bus of the all-in-one, with a scripted API server."""

import pytest

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.events import KubeServiceGone
from libs.common.contract.kube_service import CLEANUP_FINALIZER
from libs.common.contract.subjects import OBSERVED_SERVICE, SNAPSHOT
from tests.builders import make_kube_service, make_node, make_request
from tests.bus_actors import run_during, wait_until
from tests.watcher_actors import (
    ScriptedNodes,
    ScriptedRequests,
    ScriptedServices,
    WatcherFlow,
    follow_watcher,
    make_watcher,
)


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
    async with follow_watcher(
        services=services.source, requests=requests.source, controllers=("cloud-node",)
    ) as (watcher, flow):
        assert (flow.snapshots()[0].services, flow.snapshots()[0].requests) == (None, None)
        await wait_until(lambda: watcher.problems() == (), "ready")
        assert (services.lists, requests.lists, flow.list_service_events(), flow.list_request_events()) == (
            0,
            0,
            [],
            [],
        )


@pytest.mark.parametrize("broken", ["shop.broken", "other.web"])
async def test_a_service_that_cannot_be_read_is_not_gone_and_stops_no_other(broken: str):
    namespace, name = broken.split(".")
    script = ScriptedServices(make_kube_service("web"), make_kube_service(name, namespace=namespace, uid="2"))
    bus, flow = MemoryBus(MemoryServer()), WatcherFlow()
    watcher = make_watcher(bus, ScriptedNodes().source, services=script.source)
    async with run_during(watcher.run()), flow.follow(bus):
        await flow.wait_for(lambda f: f.existing(OBSERVED_SERVICE) == {"shop.web", broken})
        del script.objects[broken]
        script.unreadable = (broken,)
        script.list_again()
        script.put(make_kube_service("web", annotations={"a": "b"}))
        await flow.wait_for(lambda f: len(f.list_service_events("shop.web")) == 2)
        assert flow.existing(OBSERVED_SERVICE) == {"shop.web", broken}
