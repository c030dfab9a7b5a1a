"""Nodes with pod CIDRs, and what Kubernetes' own route controller makes of them.

The controller is that of k8s.io/cloud-provider, with which clouds build theirs.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

CLUSTER_CIDRS: Final = ("10.244.0.0/16", "fd00:244::/56")
UNINITIALIZED: Final = {"key": "node.cloudprovider.kubernetes.io/uninitialized", "effect": "NoSchedule"}
EXCLUDE: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
CILIUM: Final = {"type": "NetworkUnavailable", "status": "False", "reason": "CiliumIsUp", "message": "up"}

# The cloud has a server of the Node in the network, one outside of it, or none.
Server = Literal["in the network", "outside the network", "none"]
# What is changed when all Nodes have joined and have their conditions.
Change = Literal["delete Node", "delete Node and server", "accept"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the Node and its routes."""

    condition: str = ""  # status and reason of NetworkUnavailable; "" = none
    events: frozenset[str] = frozenset()  # type and reason
    # All routes of the cloud into the Node's pod CIDRs
    destinations: frozenset[str] = frozenset()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """What ours does otherwise, and why."""

    reason: str
    changes: Mapping[str, Any]  # fields of the outcome

    def apply(self, outcome: Outcome) -> Outcome:
        """Return what becomes of this outcome."""
        return msgspec.structs.replace(outcome, **self.changes)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One Node, named `name`."""

    name: str
    pod_cidrs: tuple[str, ...]
    server: Server = "in the network"
    provider_id: str = ""  # where there is no server
    refused: tuple[str, ...] = ()  # destinations to which the cloud creates no route
    foreign: str = ""  # destination of a route to something else, which exists before
    metadata: Mapping[str, Any] = {}
    taints: tuple[Mapping[str, str], ...] = ()
    conditions: tuple[Mapping[str, str], ...] = ({"type": "Ready", "status": "True"},)
    joined: Outcome
    change: Change | None = None
    changed: Outcome | None = None  # None = as before
    ours: Difference | None = None  # of the last outcome


_CREATED: Final = "False RouteCreated"
_NOT_CREATED: Final = "True NoRouteCreated"
_FAILED: Final = frozenset({"Warning FailedToCreateRoute"})


def _routed(*destinations: str) -> Outcome:
    return Outcome(condition=_CREATED, destinations=frozenset(destinations))


_UNTOUCHED: Final = {"condition": "", "events": frozenset(), "destinations": frozenset()}

CASES: Final = (
    Case(name="single", pod_cidrs=("10.244.1.0/24",), joined=_routed("10.244.1.0/24")),
    Case(name="no-pod-cidr", pod_cidrs=(), joined=Outcome()),
    Case(
        name="dual-stack",
        pod_cidrs=("10.244.2.0/24", "fd00:244:0:2::/64"),
        refused=("fd00:244:0:2::/64",),
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED, destinations=frozenset({"10.244.2.0/24"})),
        ours=Difference(
            reason="networks at Hetzner have no IPv6 routes: such a Node would never become available",
            changes={"condition": _CREATED, "events": frozenset()},
        ),
    ),
    Case(
        name="excluded",
        pod_cidrs=("10.244.3.0/24",),
        metadata={"labels": {EXCLUDE: "true"}},
        joined=_routed("10.244.3.0/24"),
    ),
    Case(
        name="not-ready",
        pod_cidrs=("10.244.4.0/24",),
        conditions=({"type": "Ready", "status": "False"},),
        joined=_routed("10.244.4.0/24"),
    ),
    Case(
        name="uninitialized",
        pod_cidrs=("10.244.5.0/24",),
        taints=(UNINITIALIZED,),
        joined=_routed("10.244.5.0/24"),
    ),
    Case(
        name="condition-of-another",
        pod_cidrs=("10.244.6.0/24",),
        conditions=(CILIUM,),
        joined=_routed("10.244.6.0/24"),
    ),
    Case(
        name="outside-the-network",
        pod_cidrs=("10.244.7.0/24",),
        server="outside the network",
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
    ),
    Case(
        name="refused",
        pod_cidrs=("10.244.8.0/24",),
        refused=("10.244.8.0/24",),
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
    ),
    Case(
        name="refused-then-accepted",
        pod_cidrs=("10.244.9.0/24",),
        refused=("10.244.9.0/24",),
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
        change="accept",
        changed=Outcome(condition=_CREATED, events=_FAILED, destinations=frozenset({"10.244.9.0/24"})),
    ),
    Case(
        name="outside-the-pod-networks",
        pod_cidrs=("10.99.1.0/24",),
        joined=_routed("10.99.1.0/24"),
        ours=Difference(
            reason="a kubelet may register its Node with any pod CIDR, and get the traffic of other machines",
            changes={"condition": _NOT_CREATED, "events": _FAILED, "destinations": frozenset()},
        ),
    ),
    Case(
        name="no-provider-id",
        pod_cidrs=("10.244.10.0/24",),
        server="none",
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
        ours=Difference(reason="a Node without providerID may be of any cloud", changes=_UNTOUCHED),
    ),
    Case(
        name="other-cloud",
        pod_cidrs=("10.244.11.0/24",),
        server="none",
        provider_id="aws:///eu-central-1a/i-0abc",
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
        ours=Difference(
            reason="the Node is in another cloud, whose controller has its condition", changes=_UNTOUCHED
        ),
    ),
    Case(
        name="unknown-server",
        pod_cidrs=("10.244.12.0/24",),
        server="none",
        provider_id="hcloud://999999",
        joined=Outcome(condition=_NOT_CREATED, events=_FAILED),
        ours=Difference(
            reason="the server may be of another account, whose process has its condition",
            changes=_UNTOUCHED,
        ),
    ),
    Case(
        name="foreign-route",
        pod_cidrs=("10.244.13.0/24",),
        foreign="10.244.13.0/24",
        joined=_routed("10.244.13.0/24"),
        ours=Difference(
            reason="the route may be of another cluster, and nothing proves that it is ours",
            changes={"condition": _NOT_CREATED, "events": _FAILED},
        ),
    ),
    Case(
        name="foreign-route-without-a-node",
        pod_cidrs=(),
        foreign="10.244.14.0/24",
        joined=Outcome(),
        ours=Difference(
            reason="the route may be of another cluster, and nothing proves that it is ours",
            changes={"destinations": frozenset({"10.244.14.0/24"})},
        ),
    ),
    Case(
        name="deleted",
        pod_cidrs=("10.244.15.0/24",),
        joined=_routed("10.244.15.0/24"),
        change="delete Node",
        changed=Outcome(),
        ours=Difference(
            reason="the server runs, and may register again: its pods keep their route until then",
            changes={"destinations": frozenset({"10.244.15.0/24"})},
        ),
    ),
    Case(
        name="deleted-with-its-server",
        pod_cidrs=("10.244.16.0/24",),
        joined=_routed("10.244.16.0/24"),
        change="delete Node and server",
        changed=Outcome(),
    ),
)
