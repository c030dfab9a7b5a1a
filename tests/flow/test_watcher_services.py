"""The messages of the watcher about Services and the ranges of ServiceCIDRs, with a scripted API server."""

import time
from typing import Any

import pytest

from libs.common.contract.events import KubeServiceGone
from libs.common.contract.kube_service import CLEANUP_FINALIZER
from libs.common.contract.subjects import OBSERVED_SERVICE, SNAPSHOT
from libs.common.kube.errors import Forbidden, KubeError, NotFound, Unreachable
from libs.common.kube.objects import ServiceCidr, UnreadableObject
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot
from services.watcher.informer import ServiceCidrInformer
from services.watcher.resync_requests import ResyncRequests
from tests.builders import make_kube_service, make_node, make_request
from tests.bus_actors import wait_until
from tests.watcher_actors import (
    ScriptedKind,
    ScriptedNodes,
    ScriptedRequests,
    ScriptedServices,
    follow_watcher,
    make_service_cidr,
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
