"""lifecycle under test: an API server that grants the rights of its spec, and the flow around it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from libs.common.bus.protocol import Bus
from libs.common.contract.events import Decided, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.node import Node, NodeCondition
from libs.common.contract.services import LIFECYCLE, LIFECYCLE_LEASE_NAME
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions
from libs.testbed.sim_apiserver.server import SimApiServer
from services.lifecycle.service import LifecycleService
from services.lifecycle.settings import LifecycleSettings
from tests import builders
from tests.builders import NOW, STREAM_ID, make_facts, make_node, make_node_enriched
from tests.bus_actors import wait_for_value, wait_until
from tests.bus_server import BusServer, run_service
from tests.clocks import ManualClock
from tests.service_flow import ServiceFlow

OWN_UUID = "3c2f1a5e-7b9d-4e60-8f12-0a1b2c3d4e5f"
NEW_UUID = "9f8e7d6c-5b4a-4392-a1b0-c9d8e7f60514"
LONG_AGO = NOW - timedelta(hours=2)
OTHERS = MachineFault(
    kind="wrong_machine", step="Nodename", message="the machine at 10.0.0.5 answers as new-1"
)
REFUSED = MachineFault(kind="refused", step="Nodename", message="connection refused")


def make_ready_condition(status: str = "Unknown", since: datetime | str | None = LONG_AGO) -> NodeCondition:
    """The Node's condition Ready."""
    text = since.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(since, datetime) else since  # meta/v1 Time
    return NodeCondition(type="Ready", status=status, last_transition_time=text)


def make_lost_node(name: str = "web-1", **fields: Any) -> Node:
    """Initialized, not Ready for two hours, with its own UUID; other keywords are those of `make_node`."""
    usual = {
        "taints": (),
        "conditions": (make_ready_condition(),),
        "system_uuid": OWN_UUID,
        "provider_id": f"talos://{name}",
    }
    return make_node(name, **(usual | fields))


def make_foreign_machine(
    node_name: str = "new-1", *, address: str = "10.0.0.5", uuid: str = NEW_UUID, queried_at: datetime = NOW
) -> ForeignMachine:
    """A machine that answers in the Node's place."""
    return ForeignMachine(address=address, node_name=node_name, uuid=uuid, queried_at=queried_at)


def make_unreachable(
    node: Node,
    *,
    foreign_machines: tuple[ForeignMachine, ...] = (),
    fault: MachineFault | None = None,
    **fields: Any,
) -> NodeUnreachable:
    """Metadata's event; without `fault`, other machines answered, or no machine did."""
    fault = fault or (OTHERS if foreign_machines else REFUSED)
    return builders.make_unreachable(
        node, fault=fault, foreign_machines=foreign_machines, **({"retry_at": NOW} | fields)
    )


def make_answering(node: Node, *, stream_id: str = STREAM_ID, **facts: Any) -> NodeEnriched:
    """Metadata's event of a machine that answers; keywords are those of `make_facts`."""
    return make_node_enriched(node, make_facts(**({"node_name": node.name} | facts)), stream_id=stream_id)


NODES = "/api/v1/nodes"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LIFECYCLE_LEASE_NAME}"
USER = get_user_name(LIFECYCLE)
MERGE = "application/merge-patch+json"
GRACE = 601.0
# The clock advances by minutes at a time: a Lease must outlast that, or each step loses it.
PATIENT: dict[str, Any] = {"lease_duration_seconds": 20_000.0, "renew_deadline_seconds": 10_000.0}
QUICK_LOOKS: dict[str, Any] = {
    "retry_period_seconds": 0.05, "requeue_interval_seconds": 0.05, "cloud_config_poll_seconds": 0.05
}  # fmt: skip


class LifecycleFlow(ServiceFlow):
    """Publishes as watcher and metadata do, is the cluster's admin, and reads what lifecycle did."""

    decisions_of = "lifecycle.node"

    def __init__(self, buses: BusServer, bus: Bus, server: SimApiServer, admin: KubeletFleet) -> None:
        super().__init__(bus)
        self.buses = buses
        self.server = server
        self.admin = admin
        self.clock = ManualClock()
        self._attempts: dict[str, int] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path) -> AsyncIterator["LifecycleFlow"]:
        """On a bus of that kind, with a complete snapshot and a leader."""
        async with (
            BusServer.open(kind, tmp_path) as buses,
            SimApiServer.start(tmp_path / "kube") as server,
            KubeletFleet.start(server) as admin,
            buses.open_bus("watcher") as bus,
        ):
            await grant_permissions(admin, [LIFECYCLE])
            flow = cls(buses, bus, server, admin)
            await flow.start()
            yield flow

    async def wipe(self) -> None:
        """NATS loses everything; the watcher publishes again."""
        await self.buses.delete_stream()
        await self.start()

    @asynccontextmanager
    async def run_lifecycle(
        self,
        *,
        identity: str = "first",
        grown_up: bool = True,
        ready: bool = True,
        kube: Callable[[KubeApi], KubeApi] = lambda api: api,
        **settings: Any,
    ) -> AsyncIterator[LifecycleService]:
        """A lifecycle on a bus of its own with the rights of its spec; grown up = after its grace."""
        api = KubeApi(load_kube_config(self.server.kubeconfig(USER), {}), user_agent="test", instance="test")
        chosen = LifecycleSettings(**(PATIENT | QUICK_LOOKS | settings))
        try:
            async with run_service(
                self.buses,
                "lifecycle",
                lambda parts: LifecycleService(parts, chosen),
                kube=kube(api),
                clock=self.clock,
                identity=identity,
                ready=ready,
            ) as service:
                if grown_up:
                    await wait_until(
                        lambda: service.replica_status().leading_for is not None, "lifecycle leads"
                    )
                    self.clock.advance(GRACE)
                    await self.publish_leading()
                yield service
        finally:
            await api.close()

    # ---- events of watcher and metadata

    async def observe_node(self, name: str) -> Node:
        """The watcher publishes the Node as it is."""
        node = await self.get_node(name)
        assert node is not None
        await self.publish_node(node)
        return node

    async def publish_poll_result(self, node: Node, *answered: ForeignMachine, **fields: Any) -> None:
        """A poll finds no facts; without `answered` no machine answered."""
        attempt = self._attempts[node.name] = self._attempts.get(node.name, 0) + 1
        usual: dict[str, Any] = {"attempt": attempt, "stream_id": self.stream_id}
        await self.publish(make_unreachable(node, foreign_machines=answered, **(usual | fields)))

    async def publish_replacement(self, *nodes: Node, minutes: float = 5.5) -> None:
        """Another machine answers in their place, that many minutes later."""
        self.clock.advance(60 * minutes)
        await self.publish_leading()
        for node in nodes:
            await self.publish_poll_result(node, make_foreign_machine(queried_at=self.clock.now()))

    async def publish_proof(self, *nodes: Node, then: str = "deleted") -> None:
        """Three polls over eleven minutes, each decided before the next; `then` "" = any outcome."""
        for progress in ("1 of 3", "2 of 3"):
            await self.publish_replacement(*nodes)
            for node in nodes:
                await self.wait_for_decision(node.name, "kept", progress)
        await self.publish_replacement(*nodes)
        for node in nodes if then else ():
            await self.wait_for_decision(node.name, then)

    # ---- the cluster

    async def add_lost_node(self, name: str = "web-1", **fields: Any) -> Node:
        """A published Node that is not Ready for two hours; keywords: labels, taints, uuid."""
        since = NOW - timedelta(hours=2)
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "lastTransitionTime": make_ready_condition(since=since).last_transition_time,
        }
        uuid = fields.get("uuid", OWN_UUID if name == "web-1" else "")
        body = {
            "metadata": {"name": name, "labels": fields.get("labels", {})},
            "spec": {
                "providerID": fields.get("provider_id", f"talos://{name}"),
                "taints": fields.get("taints", []),
            },
            "status": {"conditions": [condition], "nodeInfo": {"systemUUID": uuid}},
        }
        created = await self.admin.request("POST", NODES, body=body)
        assert created.status == 201, created
        return await self.observe_node(name)

    async def get_node(self, name: str) -> Node | None:
        """The Node in Kubernetes, None if there is none."""
        found = await self.admin.request("GET", f"{NODES}/{name}")
        return msgspec.convert(found.body, Node) if found.status == 200 else None

    async def patch(self, path: str, body: Any) -> None:
        """Patch an object as an admin does."""
        answer = await self.admin.request("PATCH", path, body=body, content_type=MERGE)
        assert answer.status == 200, answer

    async def get_lease(self) -> Any:
        answer = await self.admin.request("GET", LEASE)
        return answer.body if answer.status == 200 else None

    async def list_event_reasons(self, name: str) -> list[str]:
        """Reasons of the Events on a Node."""
        events = await self.admin.request("GET", "/api/v1/namespaces/default/events")
        return [e["reason"] for e in events.body["items"] if e["involvedObject"]["name"] == name]

    def count_requests(self, since: int = 0) -> dict[tuple[str, str], int]:
        """Number of lifecycle's requests by verb and resource, without those for its Lease."""
        return {
            (request.verb, request.resource): count
            for request, count in self.server.audit_counts(since).items()
            if request.user == USER and request.resource != "leases"
        }

    # ---- what lifecycle decided

    async def wait_for_decision(self, name: str, *expected: str, seconds: float = HANG_SECONDS) -> Decided:
        """The last decision, once it has the outcome expected[0] and a reason with all further texts."""
        outcome, *reasons = expected
        return await wait_for_value(
            lambda: self.get_decision(name),
            lambda decided: decided.outcome == outcome and all(part in decided.reason for part in reasons),
            f"{name} decided as {outcome}: {reasons}",
            seconds,
        )
