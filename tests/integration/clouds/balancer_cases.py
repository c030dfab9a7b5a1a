"""Services of type LoadBalancer and their Nodes, and what Kubernetes' own controller makes of them.

The controller is that of k8s.io/cloud-provider, with which clouds build theirs. Ours has the adapter of
Hetzner Cloud here. Finalizers, ends and most Events are the same with each adapter. An adapter decides which
values are invalid or left out (condition, Events), the kind of address with its ipMode, and which Nodes it
reaches. Tests of each adapter hold those, beginning with `tests/unit/libs/clouds`.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from libs.common.contract.kube_service import (
    BALANCER_BLOCKED_CONDITION,
    CLEANUP_FINALIZER,
    LoadBalancerIngress,
)

# ---- Nodes

EXCLUDE: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
AUTOSCALER: Final = {"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}
UNINITIALIZED: Final = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}


class NodeCase(msgspec.Struct, frozen=True, kw_only=True):
    """A Node when it is created."""

    labels: Mapping[str, str] = {}
    taints: tuple[Mapping[str, str], ...] = ()
    ready: str = "True"  # status of the condition, "" = none
    has_server: bool = True  # a server of the cloud, named by the providerID
    provider_id: str = ""  # where it has no server
    is_target: bool  # for Kubernetes' own controller


NODES: Final = {
    "ready": NodeCase(is_target=True),
    "drained-later": NodeCase(is_target=True),
    "excluded-later": NodeCase(is_target=True),
    "deleted-later": NodeCase(is_target=True),
    "not-ready": NodeCase(ready="False", is_target=True),
    "unknown-ready": NodeCase(ready="", is_target=True),
    "uninitialized": NodeCase(taints=(UNINITIALIZED,), is_target=True),
    "no-provider-id": NodeCase(has_server=False, is_target=True),
    "other-cloud": NodeCase(has_server=False, provider_id="aws:///eu-central-1a/i-0abc", is_target=True),
    "included": NodeCase(labels={EXCLUDE: "false"}, is_target=True),
    "excluded": NodeCase(labels={EXCLUDE: "true"}, is_target=False),
    "excluded-unreadably": NodeCase(labels={EXCLUDE: ""}, is_target=False),
    "drained": NodeCase(taints=(AUTOSCALER,), is_target=False),
}
TARGETS: Final = frozenset(name for name, node in NODES.items() if node.is_target)
TARGETS_AT_THE_END: Final = TARGETS - {"drained-later", "excluded-later", "deleted-later"}

# ---- Services

# When the steps of a case are taken. What a phase changes has reached all load balancers when they begin.
Phase = Literal["no Nodes", "Nodes", "a Node is drained", "Nodes leave"]
PHASES: Final[tuple[Phase, ...]] = ("no Nodes", "Nodes", "a Node is drained", "Nodes leave")


class Patch(msgspec.Struct, frozen=True):
    """The user changes these fields of the Service (a merge patch)."""

    body: Mapping[str, Any]


class Told(msgspec.Struct, frozen=True):
    """The case goes on when the Service has an Event with this reason."""

    reason: str


# "refuse": the cloud refuses every write for this Service from now on, until "accept". The last three wait:
# for an address in the status, for the end of finalizer and status, for the end of the Service.
Step = Literal["create", "delete", "refuse", "accept", "has address", "is released", "is gone"] | Patch | Told


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the Service, and what it was told."""

    exists: bool = True
    finalizers: tuple[str, ...] = ()
    ingress: tuple[str, ...] = ()  # of status.loadBalancer: the kind of address, and ipMode
    conditions: tuple[str, ...] = ()
    events: frozenset[str] = frozenset()  # type and reason
    targets: frozenset[str] | None = None  # None = no load balancer


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What ours does otherwise, and why."""

    reason: str
    changes: Mapping[str, Any]  # fields of the outcome
    steps: tuple[Step, ...] = ()  # () = those of the case

    def apply(self, outcome: Outcome) -> Outcome:
        """Return what becomes of this outcome."""
        return msgspec.structs.replace(outcome, **self.changes)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One Service, named `name`."""

    name: str
    phase: Phase = "Nodes"
    earlier: tuple[Step, ...] = ()  # in the phase before
    steps: tuple[Step, ...]
    spec: Mapping[str, Any] = {}
    annotations: Mapping[str, str] = {}
    ingress: tuple[LoadBalancerIngress, ...] = (
        LoadBalancerIngress(ip="203.0.113.1", ip_mode="VIP"),
        LoadBalancerIngress(ip="2001:db8::1", ip_mode="VIP"),
    )  # fmt: skip
    outcome: Outcome
    ours: Difference | None = None


_ENSURING: Final = "Normal EnsuringLoadBalancer"
_ENSURED: Final = frozenset({_ENSURING, "Normal EnsuredLoadBalancer"})
_ENDED: Final = frozenset({"Normal DeletingLoadBalancer", "Normal DeletedLoadBalancer"})
_NO_NODES: Final = frozenset({"Warning UnAvailableLoadBalancer"})
_UPDATED: Final = frozenset({"Normal UpdatedLoadBalancer"})
_FAILED: Final = frozenset({"Warning SyncLoadBalancerFailed"})
_BOTH_FAMILIES: Final = ("IPv4 VIP", "IPv6 VIP")
_FINALIZER: Final = (CLEANUP_FINALIZER,)
_BALANCED: Final = Outcome(
    finalizers=_FINALIZER, ingress=_BOTH_FAMILIES, events=_ENSURED, targets=TARGETS
)  # fmt: skip
_NOT_CREATED: Final = {
    "finalizers": (),
    "ingress": (),
    "conditions": (BALANCER_BLOCKED_CONDITION,),
    "events": _FAILED,
    "targets": None,
}
_FAILS: Final = Told("SyncLoadBalancerFailed")
# Some controllers add targets when the address is there
_COMPLETE: Final[tuple[Step, ...]] = ("create", "has address", Told("EnsuredLoadBalancer"))
_UNTOUCHED: Final = Outcome()


def _balanced(**changes: Any) -> Outcome:
    return msgspec.structs.replace(_BALANCED, **changes)


def _gone(*events: frozenset[str]) -> Outcome:
    return Outcome(exists=False, events=frozenset().union(*events))


CASES: Final = (
    Case(
        name="created-without-nodes",
        phase="no Nodes",
        steps=("create", "has address"),
        outcome=_balanced(events=_ENSURED | _NO_NODES, targets=frozenset()),
    ),
    Case(
        name="first-nodes-come",
        earlier=("create", "has address"),
        steps=(Told("UpdatedLoadBalancer"),),
        outcome=_balanced(events=_ENSURED | _NO_NODES | _UPDATED),
    ),
    Case(name="created", steps=("create", "has address"), outcome=_BALANCED),
    Case(
        name="cluster-ip",
        spec={"type": "ClusterIP"},
        steps=("create",),
        outcome=_UNTOUCHED,
    ),
    Case(
        name="type-changed",
        steps=("create", "has address", Patch({"spec": {"type": "ClusterIP"}}), "is released"),
        outcome=Outcome(events=_ENSURED | _ENDED),
    ),
    Case(
        name="type-changed-and-back",
        steps=(
            *("create", "has address", Patch({"spec": {"type": "NodePort"}}), "is released"),
            *(Patch({"spec": {"type": "LoadBalancer"}}), "has address"),
        ),
        outcome=_balanced(events=_ENSURED | _ENDED),
    ),
    Case(
        name="deleted",
        steps=("create", "has address", "delete", "is gone"),
        outcome=_gone(_ENSURED, _ENDED),
    ),
    Case(
        name="recreated",
        steps=("create", "has address", "delete", "is gone", "create", "has address"),
        outcome=_balanced(events=_ENSURED | _ENDED),
    ),
    Case(
        name="deleted-while-the-cloud-refuses",
        phase="Nodes leave",
        steps=(*_COMPLETE, "refuse", "delete", _FAILS),
        outcome=_balanced(
            events=_ENSURED | _FAILED | {"Normal DeletingLoadBalancer"}, targets=TARGETS_AT_THE_END
        ),
        ours=Difference(
            reason="the address leaves the status first: afterwards, it could be another controller's",
            changes={"ingress": (), "conditions": (BALANCER_BLOCKED_CONDITION,)},
        ),
    ),
    Case(
        name="deleted-when-the-cloud-accepts-again",
        steps=(*_COMPLETE, "refuse", "delete", _FAILS, "accept", "is gone"),
        outcome=_gone(_ENSURED, _FAILED, _ENDED),
    ),
    Case(
        name="quota",
        phase="Nodes leave",
        steps=("refuse", "create", _FAILS),
        outcome=Outcome(finalizers=_FINALIZER, events=_FAILED | {_ENSURING}),
        ours=Difference(
            reason="a condition stays where Events expire",
            changes={"conditions": (BALANCER_BLOCKED_CONDITION,)},
        ),
    ),
    Case(
        name="quota-that-ends",
        steps=("refuse", "create", _FAILS, "accept", "has address"),
        outcome=_balanced(events=_ENSURED | _FAILED),
    ),
    Case(
        name="quota-deleted",
        steps=("refuse", "create", _FAILS, "delete", "is gone"),
        outcome=_gone(_FAILED, frozenset({_ENSURING, "Normal DeletedLoadBalancer"})),
    ),
    Case(
        name="port-added",
        steps=(
            *("create", "has address"),
            Patch({"spec": {"ports": [{"name": "http", "port": 80}, {"name": "alt", "port": 8080}]}}),
        ),
        outcome=_BALANCED,
    ),
    Case(
        name="local",
        spec={"externalTrafficPolicy": "Local"},
        steps=("create", "has address"),
        outcome=_BALANCED,
    ),
    Case(
        name="hostname",
        annotations={"load-balancer.hetzner.cloud/hostname": "lb.example.com"},
        ingress=(LoadBalancerIngress(hostname="lb.example.com"),),
        steps=("create", "has address"),
        outcome=_balanced(ingress=("lb.example.com",)),
    ),
    Case(
        name="proxy-protocol",
        annotations={"load-balancer.hetzner.cloud/uses-proxyprotocol": "true"},
        ingress=(
            LoadBalancerIngress(ip="203.0.113.1", ip_mode="Proxy"),
            LoadBalancerIngress(ip="2001:db8::1", ip_mode="Proxy"),
        ),
        steps=("create", "has address"),
        outcome=_balanced(ingress=("IPv4 Proxy", "IPv6 Proxy")),
    ),
    Case(
        name="source-ranges",
        spec={"loadBalancerSourceRanges": ["198.51.100.0/24"]},
        steps=("create", "has address"),
        outcome=_BALANCED,
        ours=Difference(
            reason="Hetzner's load balancers have no firewall: what is not enforced must not be open",
            changes=_NOT_CREATED,
            steps=("create", _FAILS),
        ),
    ),
    Case(
        name="open-source-ranges",
        spec={"loadBalancerSourceRanges": ["0.0.0.0/0", "::/0"]},
        steps=("create", "has address"),
        outcome=_BALANCED,
    ),
    Case(
        name="no-node-ports",
        spec={"allocateLoadBalancerNodePorts": False},
        steps=("create", "has address"),
        outcome=_BALANCED,
        ours=Difference(
            reason="Hetzner's load balancers reach Nodes by their NodePorts only",
            changes=_NOT_CREATED,
            steps=("create", _FAILS),
        ),
    ),
    Case(
        name="udp-beside-tcp",
        spec={
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ]
        },
        steps=("create", "has address"),
        outcome=_BALANCED,
        ours=Difference(
            reason="Hetzner's load balancers have TCP only: the other port is left out, and told",
            changes={"events": _ENSURED | {"Warning LoadBalancerFieldIgnored"}},
        ),
    ),
    Case(
        name="dual-stack",
        spec={"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]},
        steps=("create", "has address"),
        outcome=_BALANCED,
    ),
    Case(
        name="ipv6-only",
        spec={"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
        steps=("create", "has address"),
        outcome=_BALANCED,
        ours=Difference(
            reason="Hetzner's load balancers reach Nodes by IPv4 only",
            changes=_NOT_CREATED,
            steps=("create", _FAILS),
        ),
    ),
    Case(
        name="other-class",
        spec={"loadBalancerClass": "example.com/other"},
        steps=("create",),
        outcome=_UNTOUCHED,
    ),
    Case(
        name="other-class-deleted",
        spec={"loadBalancerClass": "example.com/other"},
        steps=("create", Patch({"metadata": {"finalizers": [CLEANUP_FINALIZER]}}), "delete", "is gone"),
        outcome=_gone(frozenset({"Normal DeletedLoadBalancer"})),
        ours=Difference(
            reason="a Service of another class is another controller's, and so is its finalizer",
            changes={"exists": True, "finalizers": _FINALIZER, "events": frozenset()},
            steps=("create", Patch({"metadata": {"finalizers": [CLEANUP_FINALIZER]}}), "delete"),
        ),
    ),
    Case(
        name="a-node-is-drained",
        phase="a Node is drained",
        earlier=("create", "has address"),
        steps=(),
        outcome=_BALANCED,
        ours=Difference(
            reason="connections end while the Node can still finish them, and not when it is gone",
            changes={"events": _ENSURED | _UPDATED, "targets": TARGETS - {"drained-later"}},
        ),
    ),
    Case(
        name="nodes-leave",
        phase="Nodes leave",
        earlier=("create", "has address"),
        steps=(Told("UpdatedLoadBalancer"),),
        outcome=_balanced(events=_ENSURED | _UPDATED, targets=TARGETS_AT_THE_END),
    ),
)
