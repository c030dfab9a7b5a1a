"""Plans of load balancers at Thalassa Cloud: what comes first, and what is left alone."""

from typing import Any

import msgspec

from libs.clouds.balancers import AFFINITY_IGNORED, Balancer, BalancerRequest, Ingress, Owner, Port, Target
from libs.clouds.thalassa.balancers.annotations import PREFIX
from libs.clouds.thalassa.balancers.desired import DesiredBalancer, FileDefaults, read_request
from libs.clouds.thalassa.balancers.documents import (
    HealthCheck,
    ObservedBalancer,
    build_labels,
)
from libs.clouds.thalassa.balancers.plan import (
    Change,
    build_balancer,
    build_ingress,
    plan_changes,
    plan_release,
)

OWNER = Owner(cluster_uid="cluster-1", service_uid="service-1", account="prod")
CREATED = "2026-01-02T03:04:05Z"
ACL = "192.0.2.0/24"
TARGETS = (Target(instance_id="vm-1"), Target(instance_id="vm-2"))


def desire(*numbers: int, fields: Any = None, **annotations: str) -> DesiredBalancer:
    given = {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}
    ports = tuple(
        Port(name=f"p-{each}", protocol="TCP", port=each, node_port=30000 + each) for each in numbers or (80,)
    )
    request = BalancerRequest(
        namespace="default", name="web", uid="u", annotations=given, ports=ports, **(fields or {})
    )
    parsed = read_request(request, FileDefaults(vpc="vpc-1"))
    return msgspec.structs.replace(parsed.desired, subnet="subnet-1")


def make_listener(port: int = 80, group: str = "tg-80", **fields: Any) -> dict[str, Any]:
    defaults = {"maxConnections": 10_000, "connectionIdleTimeout": 6000, "allowedSources": []}
    return {
        "identity": f"listener-{port}",
        "port": port,
        "protocol": "tcp",
        "targetGroup": {"identity": group},
    } | (defaults | fields)


def make_group(port: int = 80, *machines: str, identity: str = "", **fields: Any) -> dict[str, Any]:
    return {
        "identity": identity or f"tg-{port}",
        "name": "web",
        "createdAt": CREATED,
        "labels": build_labels(OWNER) | {"talos-ccm/port": f"tcp-{port}"},
        "targetPort": 30000 + port,
        "protocol": "tcp",
        "loadbalancerTargetGroupAttachments": [
            {"identity": f"attachment-{each}", "virtualMachineInstance": {"identity": each}}
            for each in machines
        ],
    } | fields


def observe(
    *, listeners: tuple[dict[str, Any], ...] = (), groups: tuple[dict[str, Any], ...] = (), **fields: Any
) -> Balancer:
    document = {
        "identity": "lb-1",
        "name": "web",
        "createdAt": CREATED,
        "labels": build_labels(OWNER),
        "status": "ready",
        "subnet": {"identity": "subnet-1"},
        "externalIpAddresses": ["198.51.100.7"],
        "internalIpAddresses": ["10.0.1.7"],
    } | fields
    parts = {"balancer": document, "listeners": listeners, "groups": groups}
    return build_balancer(msgspec.convert(parts, ObservedBalancer))


def show(changes: tuple[Change, ...]) -> list[str]:
    return [f"{each.method} {each.path.removeprefix('/v1/')}" for each in changes]


def test_a_balancer_as_desired_needs_no_change():
    balancer = observe(listeners=(make_listener(),), groups=(make_group(80, "vm-1", "vm-2"),))
    assert plan_changes(desire(), TARGETS, balancer) == ()
    assert balancer.targets == TARGETS


def test_a_reserved_address_outlives_its_balancer():
    assert observe().kept_objects == ()
    assert observe(reservedIpIdentity="ip-1").kept_objects == ("reserved address ip-1",)


def test_ports_close_and_are_restricted_first_and_open_last():
    balancer = observe(
        listeners=(make_listener(80), make_listener(22, "tg-22")), groups=(make_group(80), make_group(22))
    )
    changes = plan_changes(desire(80, 443, acl_allowed_sources=ACL), TARGETS, balancer)
    assert show(changes) == [
        "DELETE loadbalancers/lb-1/listeners/listener-22",
        "PUT loadbalancers/lb-1/listeners/listener-80",
        "POST loadbalancer-target-groups",
        "POST loadbalancer-target-groups/tg-80/attachments",
        "POST loadbalancer-target-groups/tg-80/attach",
        "POST loadbalancer-target-groups/tg-80/attach",
    ]
    assert ACL in str(changes[1])


def test_an_unreadable_acl_keeps_the_restriction_of_an_open_port():
    listener = make_listener(allowedSources=[ACL], maxConnections=7)
    balancer = observe(listeners=(listener,), groups=(make_group(),))
    [change] = plan_changes(desire(80, 443, acl_allowed_sources="me"), (), balancer)
    body = msgspec.json.decode(change.body)
    assert (body["allowedSources"], body["maxConnections"]) == ([ACL], 10_000)


def test_an_unreadable_acl_changes_no_port_whose_restriction_is_not_shown():
    desired = desire(acl_allowed_sources="office", idle_connection_timeout="60")
    for groups in ((), (make_group(80),)):
        listener = make_listener(group="tg-native", allowedSources=None)
        planned = show(plan_changes(desired, (), observe(listeners=(listener,), groups=groups)))
        assert [each for each in planned if "listeners" in each] == []
    known = observe(listeners=(make_listener(allowedSources=[]),), groups=(make_group(80),))
    assert show(plan_changes(desired, (), known)) == ["PUT loadbalancers/lb-1/listeners/listener-80"]


def test_an_invalid_field_opens_no_port_and_changes_its_own_field_only():
    group = make_group(loadbalancingPolicy="MAGLEV", enableProxyProtocol=False)
    balancer = observe(listeners=(make_listener(),), groups=(group,))
    desired = desire(80, 443, loadbalancing_policy="best", enable_proxy_protocol="true")
    [change] = plan_changes(desired, (), balancer)
    body = msgspec.json.decode(change.body)
    assert (body["loadbalancingPolicy"], body["enableProxyProtocol"]) == ("MAGLEV", True)


def test_an_invalid_field_opens_no_port_of_a_target_group_that_is_there():
    assert plan_changes(desire(max_connections="many"), (), observe(groups=(make_group(),))) == ()


def test_what_an_unreadable_annotation_describes_stays():
    parts = {"listeners": (make_listener(),), "groups": (make_group(),)}
    given: dict[str, Any] = {
        **parts,
        "securityGroups": [{"identity": "sg-1"}],
        "reservedIpIdentity": "ip-1",
        "subnet": {"identity": "subnet-9"},
        "externalIpAddresses": None,
    }
    desired = desire(security_groups="no such/one", reserved_ip="no/1", internal="maybe", subnet="no/1")
    assert plan_changes(desired, (), observe(**given)) == ()


def desire_twice() -> DesiredBalancer:
    ports = (
        Port(name="a", protocol="TCP", port=80, node_port=30080),
        Port(name="b", protocol="UDP", port=80, node_port=30081),
    )
    request = BalancerRequest(namespace="default", name="web", uid="u", annotations={}, ports=ports)
    return read_request(request, FileDefaults(vpc="vpc-1")).desired


def test_a_port_that_is_there_twice_closes_nothing():
    balancer = observe(listeners=(make_listener(), make_listener(22, "tg-22")), groups=(make_group(),))
    assert plan_changes(desire_twice(), (), balancer) == ()


def test_a_port_that_an_invalid_field_keeps_open_follows_the_nodes():
    balancer = observe(listeners=(make_listener(),), groups=(make_group(80, "vm-1"),))
    assert show(plan_changes(desire_twice(), TARGETS, balancer)) == [
        "POST loadbalancer-target-groups/tg-80/attach"
    ]


def test_a_port_leaves_its_targets_only_for_a_target_group_that_has_some():
    balancer = observe(listeners=(make_listener(group="tg-native"),), groups=(make_group(80),))
    planned = show(plan_changes(desire(), TARGETS, balancer))
    assert (
        planned
        == ["POST loadbalancer-target-groups/tg-80/attachments"]
        + ["POST loadbalancer-target-groups/tg-80/attach"] * 2
    )


def test_a_port_opens_only_when_its_target_group_has_its_check():
    desired = desire(fields={"health_check_node_port": 30100})
    balancer = observe(groups=(make_group(),))
    assert show(plan_changes(desired, (), balancer)) == ["PUT loadbalancer-target-groups/tg-80"]
    check = msgspec.to_builtins(desired.listeners[0].group.health_check)
    balancer = observe(groups=(make_group(healthCheck=check),))
    assert show(plan_changes(desired, (), balancer)) == ["POST loadbalancers/lb-1/listeners"]


def test_a_port_moves_to_another_target_group_when_that_has_targets_and_is_restricted_before():
    """As of another protocol, or after a load balancer was taken over."""
    balancer = observe(listeners=(make_listener(group="tg-native"),))
    desired = desire(acl_allowed_sources=ACL)
    restrict, create = plan_changes(desired, TARGETS, balancer)
    body = msgspec.json.decode(restrict.body)
    assert (body["targetGroup"], body["allowedSources"]) == ("tg-native", [ACL])
    assert show((create,)) == ["POST loadbalancer-target-groups"]
    balancer = observe(
        listeners=(make_listener(group="tg-native", allowedSources=[ACL]),), groups=(make_group(80, "vm-1"),)
    )
    attach, move = plan_changes(desired, TARGETS, balancer)
    assert show((attach,)) == ["POST loadbalancer-target-groups/tg-80/attach"]
    assert msgspec.json.decode(move.body)["targetGroup"] == "tg-80"
    unreadable = plan_changes(desire(acl_allowed_sources="office"), (), balancer)
    assert [msgspec.json.decode(each.body)["allowedSources"] for each in unreadable if each.body] == [[ACL]]
    local = desire(acl_allowed_sources=ACL, fields={"health_check_node_port": 30100})
    assert "PUT loadbalancers/lb-1/listeners/listener-80" not in show(plan_changes(local, TARGETS, balancer))


def test_an_affinity_that_no_load_balancer_of_the_cloud_has_is_reported():
    port = Port(name="web", protocol="TCP", port=80, node_port=30080)
    for keeps_clients, warnings in ((True, (AFFINITY_IGNORED,)), (False, ())):
        request = BalancerRequest(
            namespace="default",
            name="web",
            uid="u",
            annotations={},
            ports=(port,),
            keeps_clients=keeps_clients,
        )
        assert read_request(request, FileDefaults(vpc="vpc-1")).warnings == warnings


def test_a_check_by_tcp_differs_by_no_path():
    desired = desire(health_check_enabled="true", health_check_port="8080", health_check_protocol="tcp")
    check = desired.listeners[0].group.health_check
    assert isinstance(check, HealthCheck)
    shown = msgspec.to_builtins(msgspec.structs.replace(check, path="/"))
    balancer = observe(listeners=(make_listener(),), groups=(make_group(healthCheck=shown),))
    assert plan_changes(desired, (), balancer) == ()


def test_of_two_target_groups_of_a_port_the_used_one_stays():
    """The answer to a request that creates one may be lost."""
    groups = (make_group(identity="tg-1"), make_group(identity="tg-2"))
    balancer = observe(listeners=(make_listener(group="tg-2"),), groups=groups)
    assert show(plan_changes(desire(), (), balancer)) == ["DELETE loadbalancer-target-groups/tg-1"]
    balancer = observe(groups=groups)
    assert show(plan_changes(desire(), (), balancer)) == [
        "POST loadbalancers/lb-1/listeners",
        "DELETE loadbalancer-target-groups/tg-2",
    ]


def test_one_changed_target_is_no_replacement_of_all():
    balancer = observe(listeners=(make_listener(),), groups=(make_group(80, "vm-1"),))
    [attach] = plan_changes(desire(), TARGETS, balancer)
    assert (show((attach,)), attach.target) == (
        ["POST loadbalancer-target-groups/tg-80/attach"],
        Target(instance_id="vm-2"),
    )
    assert show(plan_changes(desire(), (), balancer)) == [
        "DELETE loadbalancer-target-groups/tg-80/detach/attachment-vm-1"
    ]


def test_a_reserved_address_of_a_prepared_balancer_stays():
    labels = build_labels(OWNER) | {"talos-ccm/prepared": "true"}
    fields: dict[str, Any] = {
        "listeners": (make_listener(),),
        "groups": (make_group(),),
        "reservedIpIdentity": "ip-1",
    }
    assert plan_changes(desire(), (), observe(labels=labels, **fields)) == ()
    [change] = plan_changes(desire(), (), observe(**fields))
    assert msgspec.json.decode(change.body)["reservedIpId"] == ""
    assert plan_changes(desire(reserved_ip="no such/one"), (), observe(**fields)) == ()
    assert plan_changes(desire(), (), observe(**fields | {"reservedIpIdentity": None})) == ()


def test_a_default_subnet_moves_no_balancer_and_an_annotation_does():
    parts = {"listeners": (make_listener(),), "groups": (make_group(),)}
    balancer = observe(subnet={"identity": "subnet-9"}, **parts)
    assert plan_changes(desire(), (), balancer) == ()
    [change] = plan_changes(desire(subnet="subnet-1"), (), balancer)
    assert msgspec.json.decode(change.body)["subnet"] == "subnet-1"


def test_the_address_is_published_when_the_balancer_is_ready_and_has_a_port():
    desired = desire()
    listeners = (make_listener(),)
    published = (Ingress(ip="198.51.100.7", is_proxy=True),)
    assert build_ingress(desired, observe(listeners=listeners)) == published
    assert build_ingress(desired, observe()) is None
    assert build_ingress(desired, observe(listeners=listeners, status="creating")) is None
    assert build_ingress(desired, observe(listeners=listeners, externalIpAddresses=None)) == ()
    assert build_ingress(desire(internal="maybe"), observe(listeners=listeners)) is None


def test_a_balancer_that_is_never_created_is_known_to_be_busy_since_then():
    created = observe(status="creating")
    assert (created.busy_since, observe(status="updating").busy_since) == (created.created_at, None)


def test_a_state_that_is_not_known_keeps_no_balancer_from_its_end():
    assert [observe(status=each).is_busy for each in ("creating", "deleting", "ready", "error")] == [
        True,
        True,
        False,
        False,
    ]


def test_a_release_ends_with_the_labels():
    balancer = observe(
        listeners=(make_listener(),), groups=(make_group(),), labels=build_labels(OWNER) | {"team": "edge"}
    )
    first, last = plan_release(balancer)
    assert show((first,)) == ["DELETE loadbalancers/lb-1/listeners/listener-80"]
    assert msgspec.json.decode(last.body)["labels"] == {"team": "edge"}
    assert plan_release(observe(labels={"team": "edge"})) == ()


def test_a_release_leaves_target_groups_which_another_balancer_of_the_service_may_use():
    assert show(plan_release(observe(groups=(make_group(),)))) == ["PUT loadbalancers/lb-1"]
