"""A flow with thousands of Nodes in memory, as the services would publish it, for the page of the console."""

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec.structs import replace

from libs.common.bus.protocol import Bus
from libs.common.clocks import utc_now
from libs.common.contract.events import (
    AccountReport,
    CsrObserved,
    Decided,
    InstanceExists,
    InstanceShutDown,
    KubeServiceObserved,
    Leading,
    NodeEnriched,
    NodeObserved,
    NodeUnreachable,
    ObservationOrder,
    Pulse,
    Quarantine,
    QuarantinedBlock,
    RecordedNodeEvent,
)
from libs.common.contract.kube_service import (
    BALANCER_BLOCKED_CONDITION,
    KubeServiceCondition,
    LoadBalancerIngress,
)
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import (
    BLOCKED_CONDITION,
    NETWORK_UNAVAILABLE,
    Node,
    NodeAddress,
    NodeCondition,
)
from libs.common.contract.signing_request import SigningRequestCondition, SigningRequestStatus
from tests.builders import (
    UNINITIALIZED,
    make_cluster_networks,
    make_dead_letter,
    make_facts,
    make_kube_service,
    make_node,
    make_request,
)
from tests.service_flow import ServiceFlow

READY = NodeCondition(type="Ready", status="True", last_transition_time="2026-03-01T12:00:00Z")
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
# What fails in a service that a test lets fail.
_ERRORS: dict[str, dict[str, int]] = {
    "watcher": {"failed Kubernetes requests": 1},
    "metadata": {"failed Talos calls": 6, "failed publishes": 1},
    "labeler": {"failed Kubernetes requests": 2, "retried messages": 2},
    "csr": {"dead letters": 1},
    "ipam": {},
    "lifecycle": {"failed Kubernetes requests": 1},
}
PLATFORMS = ("hcloud", "aws", "metal", "openstack", "azure")


class ConsoleFleet(ServiceFlow):
    """Publishes Nodes, facts, decisions and requests with the present time."""

    def __init__(
        self,
        bus: Bus,
        now: Callable[[], datetime] = utc_now,
        spend: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`spend` advances the clock by the time that a hop takes."""
        super().__init__(bus)
        self._now = now
        self._spend = spend
        self._version = 100
        self._errors: Counter[tuple[str, str]] = Counter()
        self._quarantine: Quarantine | None = None
        self._events: list[tuple[str, RecordedNodeEvent]] = []

    async def publish_leading(self) -> None:
        """A leader that stays: its heartbeat is one in time only at its publication."""
        await self.publish(Leading(stream_id=self.stream_id, epoch=1, holder="watcher-7d9f_1"))

    async def pulse(self, *failing: str) -> None:
        """A pulse of each service; the named ones have had errors since the last pulse."""
        for service, causes in _ERRORS.items():
            if service in failing:
                self._errors.update({(service, cause): count for cause, count in causes.items()})
            errors = {cause: count for (own, cause), count in self._errors.items() if own == service}
            instances = ("host-1_1",) if service == "metadata" else ("host-1_1", "host-2_2")
            for instance in instances:
                leads = instance == instances[0] if service == "lifecycle" else None
                of_leader = errors if instance == instances[0] else {}
                await self.publish(
                    Pulse(
                        service=service,
                        instance=instance,
                        is_leading=leads,
                        errors=of_leader,
                        quarantine=self._quarantine if service == "ipam" else None,
                        events=self._take_events(service) if of_leader is errors else (),
                    )
                )

    def record(self, name: str, number: int, reason: str, message: str, *, service: str = "labeler") -> None:
        """Record an Event about a Node, for the next pulse of the service; "Synced" is no warning."""
        event = RecordedNodeEvent(
            node=name,
            uid=f"uid-{number}",
            component="cloud-node-controller" if service == "labeler" else f"talos-ccm-{service}",
            type="Normal" if reason == "Synced" else "Warning",
            reason=reason,
            message=message,
            at=self._now(),
        )
        self._events.append((service, event))

    def _take_events(self, service: str) -> tuple[RecordedNodeEvent, ...]:
        taken = tuple(event for own, event in self._events if own == service)
        self._events = [each for each in self._events if each[0] != service]
        return taken

    def rest(self, *numbers: int) -> None:
        """Put these blocks into quarantine, as the next pulse of ipam reports."""
        now = self._now()
        blocks = tuple(
            QuarantinedBlock(
                block=f"10.244.{number}.0/24",
                node=f"metal-{number:04}",
                since=now - timedelta(minutes=4),
                until=now + timedelta(minutes=6),
            )
            for number in numbers
        )
        self._quarantine = Quarantine(read_at=now, count=len(blocks), blocks=blocks)

    async def observe(self, node: Node) -> int:
        """The Node as it is now."""
        self._version += 1
        order = ObservationOrder(epoch=1, resource_version=self._version)
        event = NodeObserved(stream_id=self.stream_id, order=order, node=node, observed_at=self._now())
        return await self.publish(event)

    async def join(self, number: int, *, age: float = 3600.0) -> str:
        """Let a Node join, with its facts, decision and certificate; return its name."""
        name = f"{PLATFORMS[number % 5]}-{number:04}"
        node = self.make(number, name, age, ready=True)
        joining = replace(self.make(number, name, age, ready=False), metadata=node.metadata)
        sequence = await self.observe(joining)
        self._spend(0.02)
        platform, zone = PLATFORMS[number % 5], f"zone-{number % 7}"
        facts = make_facts(platform=platform, node_name=name, zone=zone, queried_at=self._now())
        enriched = NodeEnriched(
            stream_id=self.stream_id,
            observed_sequence=sequence,
            node=joining,
            facts=facts,
            verified_by="nodename",
            observed_at=self._now(),
            enriched_at=self._now(),
        )
        self._spend(0.09)
        await self.publish(enriched)
        self._spend(0.14)
        await self.decide(name, "initialized", f"{platform} machine at 10.0.0.5, recognised by nodename")
        self._spend(0.05)
        await self.observe(node)
        await self.request(name)
        self._spend(0.11)
        decided = "This CSR was approved by Talos Cloud Controller Manager: every name is attested"
        await self.decide(f"csr-{name}", "approved", decided, service="csr", kind="csr")
        self._spend(0.04)
        await self.request(name, issued=True)
        return name

    def make(self, number: int, name: str, age: float, *, ready: bool) -> Node:
        """A Node with the fields that the page shows."""
        address = f"10.{number // 62500}.{number // 250 % 250}.{number % 250}"
        labels = {
            "topology.kubernetes.io/zone": f"zone-{number % 7}",
            "node.kubernetes.io/instance-type": "cx32",
        }
        node = make_node(
            name,
            uid=f"uid-{number}",
            ip=address,
            labels=labels,
            taints=() if ready else (UNINITIALIZED,),
            provider_id=f"talos://metal/{address}" if ready else "",
            pod_cidrs=(f"10.244.{number}.0/24",) if number < 250 else (),
            addresses=(NodeAddress(type="InternalIP", address=address),),
            conditions=(READY,),
        )
        created = self._now() - timedelta(seconds=age)
        return replace(node, metadata=replace(node.metadata, creation_timestamp=created))

    async def block(self, number: int, name: str, message: str, age: float = 600.0) -> None:
        """Let a Node be stuck with that message."""
        blocked = NodeCondition(
            type=BLOCKED_CONDITION, status="True", reason="NodeWriteFailed", message=message
        )
        node = self.make(number, name, age, ready=False)
        conditions = (READY, blocked)
        await self.observe(_with_conditions(node, conditions))
        await self.decide(name, "blocked", message)

    async def silence(self, number: int, name: str) -> None:
        """Let the machine of a Node be silent."""
        fault = MachineFault(
            kind="timeout", step="connect", endpoint="10.0.0.1:50000", message="no answer within 5 s"
        )
        node = self.make(number, name, 300, ready=False)
        sequence = await self.observe(node)
        await self.publish(
            NodeUnreachable(
                stream_id=self.stream_id,
                observed_sequence=sequence,
                node=node,
                fault=fault,
                attempt=7,
                retry_at=self._now() + timedelta(seconds=30),
                observed_at=self._now(),
                enriched_at=self._now(),
            )
        )

    async def decide(
        self, name: str, outcome: str, reason: str, *, service: str = "labeler", kind: str = "node"
    ) -> None:
        """A decision of a service."""
        changes = ("label topology.kubernetes.io/zone=zone-1",) if outcome == "initialized" else ()
        await self.publish(
            Decided(
                service=service,
                kind=kind,
                name=name,
                outcome=outcome,
                reason=reason,
                decided_at=self._now(),
                changes=changes,
                rules=("zone", f"platform-{name.partition('-')[0]}") if changes else (),
            )
        )

    async def request(self, node: str, *, issued: bool = False, denied: str = "") -> None:
        """A request for a certificate, and its decision."""
        conditions = (SigningRequestCondition(type="Denied", message=denied),) if denied else ()
        request = make_request(f"csr-{node}", uid=f"csr-{node}", node=node, created=self._now())
        request = replace(request, status=SigningRequestStatus(conditions=conditions, issued=issued))
        self._version += 1
        order = ObservationOrder(epoch=1, resource_version=self._version)
        await self.publish(
            CsrObserved(stream_id=self.stream_id, order=order, request=request, observed_at=self._now())
        )
        if denied:
            await self.decide(f"csr-{node}", "denied", denied, service="csr", kind="csr")

    async def report_cloud(self, number: int, name: str, reason: str = "no certificate web") -> None:
        """An account with the instance of this Node, a route to it, and two load balancers."""
        now, node = self._now(), self.make(number, name, 3600.0, ready=True)
        routed = NodeCondition(
            type=NETWORK_UNAVAILABLE, status="False", message="Network 4711 routes 10.244.0.0/24 to this Node"
        )
        await self.observe(_with_conditions(node, (READY, routed)))
        kind = InstanceShutDown if number else InstanceExists
        await self.publish(
            kind(
                stream_id=self.stream_id,
                account="prod",
                name=name,
                node_uid=node.uid,
                provider_id=node.spec.provider_id,
                asked_at=now,
                answered_at=now,
                credential_loaded_at=now,
            )
        )
        await self.publish(
            AccountReport(
                account="prod",
                provider="hcloud",
                instances={"exists": 1, "shut-down": 1, "gone": 0},
                requests_left=3412,
                rate_limit=3600,
            )
        )
        await self.balance("web", address="203.0.113.7")
        await self.balance("api", blocked=f"The project has {reason}")

    async def balance(self, name: str, *, address: str = "", blocked: str = "") -> None:
        """A Service with a load balancer at this address, or blocked by this reason."""
        service = make_kube_service(name, ingress=(LoadBalancerIngress(ip=address),) if address else ())
        condition = KubeServiceCondition(type=BALANCER_BLOCKED_CONDITION, status="True", message=blocked)
        status = replace(service.status, conditions=(condition,) if blocked else ())
        self._version += 1
        order = ObservationOrder(epoch=1, resource_version=self._version)
        await self.publish(
            KubeServiceObserved(
                stream_id=self.stream_id,
                order=order,
                service=replace(service, status=status),
                observed_at=self._now(),
            )
        )

    async def fill(self, count: int) -> None:
        """A cluster of that many Nodes, and some in trouble, whose messages are hostile."""
        await self.publish(make_cluster_networks(stream_id=self.stream_id))
        for number in range(count):
            await self.join(number)
        await self.block(9001, "stuck-write", "writing the Node: 403 Forbidden: nodes is forbidden")
        await self.block(9002, "stuck-hostile", HOSTILE)
        await self.silence(9003, "stuck-silent")
        await self.request("hcloud-0000", denied=f"requests 10.9.9.9, which it does not have {HOSTILE}")
        await self.report_cloud(0, "hcloud-0000")
        await self.report_cloud(5, "hcloud-0005", reason=HOSTILE)
        await self.publish(make_dead_letter("aws-0001", reason=f"KeyError {HOSTILE}", at=self._now()))


def _with_conditions(node: Node, conditions: tuple[NodeCondition, ...]) -> Node:
    return replace(node, status=replace(node.status, conditions=conditions))
