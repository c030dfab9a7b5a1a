"""Services and their status, on a real and a simulated API server: fences, finalizers, watch and absence."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    CLEANUP_FINALIZER,
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
)
from libs.common.kube.api import SERVICES, KubeApi
from libs.common.kube.errors import Conflict, Invalid, KubeError, NotFound
from libs.common.kube.reflector import Reflector
from libs.common.kube.watch_events import Changed, Deleted, ListSnapshot, WatchEvent
from libs.testbed.kubelets import KubeletFleet
from tests.bus_actors import run_during, wait_until

ADDRESS = LoadBalancerIngress(ip="192.0.2.9", ip_mode="VIP")
SERVICES_OF = "/api/v1/namespaces/default/services"


async def create(admin: KubeletFleet, name: str, **spec: Any) -> None:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    body = {
        "metadata": {"name": name, "annotations": {"kept": "yes"}},
        "spec": {"type": "LoadBalancer", "ports": ports, **spec},
    }
    await admin.send("POST", SERVICES_OF, body=body)


@pytest.fixture
async def service(
    admin: KubeletFleet, api: KubeApi, request: pytest.FixtureRequest
) -> AsyncIterator[KubeService]:
    name = f"s{abs(hash(request.node.name)) % 10**12}"
    await create(admin, name)
    yield await api.get_service("default", name)
    await admin.request("DELETE", f"{SERVICES_OF}/{name}")


async def test_finalizer_and_record_are_written_together_and_removed_together(
    api: KubeApi, service: KubeService
):
    held = await api.patch_service(
        service, finalizers=(CLEANUP_FINALIZER,), annotations={BALANCER_ANNOTATION: "record"}
    )
    assert held.metadata.finalizers == (CLEANUP_FINALIZER,)
    assert held.metadata.annotations == {"kept": "yes", BALANCER_ANNOTATION: "record"}
    assert (held.spec, held.status) == (service.spec, service.status)
    released = await api.patch_service(held, finalizers=(), annotations={BALANCER_ANNOTATION: None})
    assert (released.metadata.finalizers, released.metadata.annotations) == ((), {"kept": "yes"})


async def test_a_service_with_a_finalizer_goes_only_with_it(
    api: KubeApi, admin: KubeletFleet, service: KubeService
):
    held = await api.patch_service(service, finalizers=(CLEANUP_FINALIZER,))
    await admin.request("DELETE", f"{SERVICES_OF}/{service.name}")
    ending = await api.get_service("default", service.name)
    assert ending.metadata.deletion_timestamp is not None
    with pytest.raises(Conflict):
        await api.patch_service(held, finalizers=())
    await api.patch_service(ending, finalizers=())
    with pytest.raises(NotFound):
        await api.get_service("default", service.name)
    with pytest.raises(NotFound):
        await api.patch_service(ending, finalizers=())


async def test_the_status_has_its_own_path(api: KubeApi, service: KubeService):
    ready = await api.patch_service_status(service, ingress=(ADDRESS,))
    assert ready.status.load_balancer.ingress == (ADDRESS,)
    assert ready.spec == service.spec
    other = await api.patch_service(ready, annotations={"more": "x"})
    assert other.status.load_balancer.ingress == (ADDRESS,)
    named = await api.patch_service_status(other, ingress=(LoadBalancerIngress(hostname="lb.example"),))
    assert named.status.load_balancer.ingress == (LoadBalancerIngress(hostname="lb.example"),)
    assert (await api.patch_service_status(named, ingress=())).status.load_balancer.ingress == ()


async def test_conditions_are_written_beside_the_addresses(api: KubeApi, service: KubeService):
    blocked = KubeServiceCondition(
        type="TalosLoadBalancerBlocked",
        status="True",
        reason="InvalidField",
        message="spec.loadBalancerSourceRanges: not supported",
        last_transition_time="2026-03-01T12:00:00Z",
    )
    ready = await api.patch_service_status(service, ingress=(ADDRESS,), conditions=(blocked,))
    assert (ready.status.conditions, ready.status.load_balancer.ingress) == ((blocked,), (ADDRESS,))
    same = await api.patch_service_status(ready, ingress=())
    assert (same.status.conditions, same.status.load_balancer.ingress) == ((blocked,), ())
    assert (await api.patch_service_status(same, conditions=())).status.conditions == ()


async def test_no_write_counts_for_another_version_or_another_service_of_the_name(
    api: KubeApi, admin: KubeletFleet, service: KubeService
):
    await api.patch_service(service, annotations={"changed": "meanwhile"})
    for write in (
        api.patch_service(service, finalizers=(CLEANUP_FINALIZER,)),
        api.patch_service_status(service, ingress=(ADDRESS,)),
    ):
        with pytest.raises(Conflict):
            await write
    await admin.request("DELETE", f"{SERVICES_OF}/{service.name}")
    await create(admin, service.name)
    same_version = (await api.get_service("default", service.name)).metadata.resource_version
    metadata = msgspec.structs.replace(service.metadata, resource_version=same_version)
    with pytest.raises(KubeError, match=r"(uid|UID)"):
        await api.patch_service(msgspec.structs.replace(service, metadata=metadata), finalizers=("x/y",))
    now = await api.get_service("default", service.name)
    assert (now.metadata.finalizers, now.metadata.annotations) == ((), {"kept": "yes"})


@pytest.mark.parametrize("lacking", ["uid", "resource_version"])
async def test_a_write_without_a_fence_is_not_sent(api: KubeApi, service: KubeService, lacking: str):
    metadata = msgspec.structs.replace(service.metadata, **{lacking: ""})
    with pytest.raises(Invalid, match="not patched"):
        await api.patch_service(msgspec.structs.replace(service, metadata=metadata), finalizers=())


@pytest.mark.real_only
async def test_a_finalizer_that_is_no_name_is_refused(api: KubeApi, service: KubeService):
    with pytest.raises(Invalid):
        await api.patch_service(service, finalizers=("no name at all",))


async def test_the_cluster_is_known_by_the_uid_of_its_namespace(api: KubeApi):
    found = await api.get_namespace("kube-system")
    assert len(found.uid) == 36
    assert (await api.get_namespace("kube-system")).uid == found.uid
    with pytest.raises(NotFound):
        await api.get_namespace("nowhere")


async def test_services_are_watched_and_their_absence_is_asked_by_namespace_and_name(
    api: KubeApi, admin: KubeletFleet, service: KubeService
):
    events: list[WatchEvent[KubeService]] = []

    async def handle(event: WatchEvent[KubeService]) -> None:
        events.append(event)

    def is_about(event: WatchEvent[KubeService], name: str) -> bool:
        return isinstance(event, Changed | Deleted) and event.item.key == f"default.{name}"

    reflector = Reflector(api, SERVICES, on_unreadable=lambda what: None)
    async with run_during(reflector.run(handle)):
        await wait_until(lambda: bool(events), "a list")
        assert isinstance(events[0], ListSnapshot)
        listed = {each.key: each for each in events[0].items}
        assert listed[f"default.{service.name}"].spec == service.spec
        await api.patch_service(service, annotations={"more": "x" * 2000})
        await wait_until(lambda: any(is_about(event, service.name) for event in events), "the change")
        changed = next(event for event in events if is_about(event, service.name))
        assert isinstance(changed, Changed)
        assert changed.item.metadata.annotations["more"].startswith("sha256:")
        assert await reflector.absent_as_of_version(f"default.{service.name}") is None
        absent = await asyncio.gather(
            reflector.absent_as_of_version(f"kube-system.{service.name}"),
            reflector.absent_as_of_version("default.nothing"),
            reflector.absent_as_of_version(
                f"default.{service.name}", lambda found: not found.may_have_balancer
            ),
        )
        assert all(version is not None for version in absent)
        await admin.request("DELETE", f"{SERVICES_OF}/{service.name}")
        await wait_until(lambda: isinstance(events[-1], Deleted), "the deletion")
