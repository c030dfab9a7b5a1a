"""A Service in the form of an adapter, and what is written into its status."""

from datetime import timedelta

import msgspec
import pytest

from libs.clouds.balancers import Ingress, Port
from libs.common.contract.kube_service import (
    BALANCER_ANNOTATION,
    BALANCER_BLOCKED_CONDITION,
    CLASS_FINALIZER,
    CLEANUP_FINALIZER,
    SOURCE_RANGES_ANNOTATION,
    KubeService,
    KubeServiceCondition,
    LoadBalancerIngress,
    ServicePort,
)
from services.cloud.core.balancers.balancer_steps import BlockedCondition
from services.cloud.core.balancers.service_fields import (
    build_conditions,
    build_finalizers,
    build_ingress_entries,
    build_released_finalizers,
    build_request,
)
from tests.builders import NOW, make_kube_service

BLOCKED = BlockedCondition(reason="InvalidField", message="spec.ports: no TCP port")
OTHER = KubeServiceCondition(type="LoadBalancerPortsError", status="False", observed_generation=3)


def with_conditions(*conditions: KubeServiceCondition) -> KubeService:
    service = make_kube_service()
    status = msgspec.structs.replace(service.status, conditions=conditions)
    return msgspec.structs.replace(service, status=status)


def test_the_request_has_all_fields_that_describe_a_balancer():
    service = make_kube_service(
        annotations={"a": "b"},
        ports=(ServicePort(name="dns", protocol="UDP", port=53, node_port=30053, app_protocol="dns"),),
        load_balancer_source_ranges=("10.0.0.0/8",),
        load_balancer_ip="192.0.2.1",
        ip_families=("IPv4", "IPv6"),
        health_check_node_port=31000,
        external_traffic_policy="Local",
        session_affinity="ClientIP",
    )
    request = build_request(service)
    assert (request.namespace, request.name, request.uid) == ("shop", "web", "service-uid-1")
    assert request.ports == (Port(name="dns", protocol="UDP", port=53, node_port=30053, app_protocol="dns"),)
    assert (request.source_ranges, request.load_balancer_ip) == (("10.0.0.0/8",), "192.0.2.1")
    assert (request.ip_families, request.annotations) == (("IPv4", "IPv6"), {"a": "b"})
    assert (request.health_check_node_port, request.keeps_clients) == (31000, True)
    assert not build_request(make_kube_service()).keeps_clients


def test_ranges_of_the_annotation_restrict_a_service_without_ranges_in_its_spec():
    annotations = {SOURCE_RANGES_ANNOTATION: " 10.0.0.0/8,192.0.2.0/24 "}
    assert build_request(make_kube_service(annotations=annotations)).source_ranges == (
        "10.0.0.0/8",
        "192.0.2.0/24",
    )
    both = make_kube_service(annotations=annotations, load_balancer_source_ranges=("198.51.100.0/24",))
    assert build_request(both).source_ranges == ("198.51.100.0/24",)
    empty = make_kube_service(annotations={SOURCE_RANGES_ANNOTATION: " "})
    assert build_request(empty).source_ranges == ()
    unreadable = make_kube_service(annotations={SOURCE_RANGES_ANNOTATION: ","})
    assert build_request(unreadable).source_ranges == ("", "")


def test_the_health_check_of_kube_proxy_counts_only_for_local_traffic():
    service = make_kube_service(health_check_node_port=31000, external_traffic_policy="Cluster")
    assert build_request(service).health_check_node_port == 0


def test_only_an_address_has_a_mode():
    entries = (Ingress(ip="192.0.2.1"), Ingress(ip="fd00::1", is_proxy=True), Ingress(hostname="lb.example"))
    assert build_ingress_entries(entries) == (
        LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP"),
        LoadBalancerIngress(ip="fd00::1", ip_mode="Proxy"),
        LoadBalancerIngress(hostname="lb.example"),
    )


def test_conditions_of_others_stay_and_the_time_is_that_of_the_transition():
    (other, ours) = build_conditions(with_conditions(OTHER), BLOCKED, NOW)
    assert other == OTHER
    assert (ours.type, ours.status, ours.reason) == (BALANCER_BLOCKED_CONDITION, "True", "InvalidField")
    assert ours.last_transition_time == "2026-03-01T12:00:00Z"
    changed = BlockedCondition(reason="CloudRejected", message="quota")
    (_, later) = build_conditions(with_conditions(OTHER, ours), changed, NOW + timedelta(hours=1))
    assert (later.reason, later.last_transition_time) == ("CloudRejected", ours.last_transition_time)
    assert build_conditions(with_conditions(ours, OTHER), None, NOW) == (OTHER,)


@pytest.mark.parametrize(
    ("own_class", "has_record", "before", "recorded"),
    [
        (None, False, ("foo",), ("foo", CLEANUP_FINALIZER)),
        ("ours", False, ("foo",), ("foo", CLASS_FINALIZER)),
        # Kubernetes' own controller still ends its load balancer
        ("ours", False, (CLEANUP_FINALIZER,), (CLEANUP_FINALIZER, CLASS_FINALIZER)),
        ("ours", True, (CLEANUP_FINALIZER, CLASS_FINALIZER), (CLEANUP_FINALIZER, CLASS_FINALIZER)),
        # the class has changed since the record
        ("ours", True, (CLEANUP_FINALIZER,), (CLASS_FINALIZER,)),
        (None, True, (CLASS_FINALIZER,), (CLEANUP_FINALIZER,)),
        (None, False, (CLASS_FINALIZER,), (CLEANUP_FINALIZER,)),
    ],
)
def test_the_finalizer_of_kubernetes_own_controller_is_ours_only_without_a_class(
    own_class: str | None, has_record: bool, before: tuple[str, ...], recorded: tuple[str, ...]
):
    annotations = {BALANCER_ANNOTATION: "record"} if has_record else {}
    service = make_kube_service(annotations=annotations, finalizers=before, load_balancer_class=own_class)
    assert build_finalizers(service) == recorded
    assert build_finalizers(with_finalizers(service, recorded, "record")) == recorded


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (("foo", CLEANUP_FINALIZER), ("foo",)),
        (("foo", CLASS_FINALIZER), ("foo",)),
        ((CLEANUP_FINALIZER, CLASS_FINALIZER), (CLEANUP_FINALIZER,)),
    ],
)
def test_the_release_of_a_service_leaves_the_finalizers_of_others(
    before: tuple[str, ...], left: tuple[str, ...]
):
    assert build_released_finalizers(make_kube_service(finalizers=before)) == left


def with_finalizers(service: KubeService, finalizers: tuple[str, ...], record: str) -> KubeService:
    metadata = msgspec.structs.replace(
        service.metadata, finalizers=finalizers, annotations={BALANCER_ANNOTATION: record}
    )
    return msgspec.structs.replace(service, metadata=metadata)
