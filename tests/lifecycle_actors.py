"""Around lifecycle in tests: an API server that gives it its wiring's rights, and what others say."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import nats

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import Bus
from libs.common.contract.events import Decided, Event, Leading, SnapshotComplete
from libs.common.contract.machine import ForeignMachine
from libs.common.contract.node import Node
from libs.common.contract.services import DURABLES, LIFECYCLE, LIFECYCLE_LEASE_NAME
from libs.common.contract.subjects import DECIDED, STREAM
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.service.service import Dependencies
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import grant_permissions
from libs.testbed.sim_apiserver.server import SimApiServer
from services.lifecycle.service import LifecycleService
from services.lifecycle.settings import LifecycleSettings
from tests.builders import NOW, make_node_observed
from tests.bus_actors import MAX_BYTES, run_during, wait_until, wait_until_led, wait_until_ready
from tests.flow_actors import QUICK
from tests.lifecycle_cases import OWN_UUID, make_foreign_machine, make_ready_condition, make_unreachable
from tests.manual_clock import ManualClock

NODES = "/api/v1/nodes"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LIFECYCLE_LEASE_NAME}"
USER = get_user_name(LIFECYCLE)
MERGE = "application/merge-patch+json"
GRACE = 601.0
# The clock is turned by minutes at a time: a Lease must outlast that, or it is lost with every turn.
PATIENT: dict[str, Any] = {"lease_duration_seconds": 20_000.0, "renew_deadline_seconds": 10_000.0}
QUICK_LOOKS: dict[str, Any] = {
    "retry_period_seconds": 0.05, "requeue_interval_seconds": 0.05, "cloud_config_poll_seconds": 0.05
}  # fmt: skip


class LifecycleFlow:
    """Speaks as watcher and metadata do, is the cluster's admin, and reads what lifecycle said and did."""

    def __init__(
        self, connect: Callable[..., Awaitable[Bus]], bus: Bus, server: SimApiServer, admin: KubeletFleet
    ) -> None:
        self._connect = connect
        self.bus = bus
        self.server = server
        self.admin = admin
        self.stream_id = ""
        self.nats_url = ""
        self.nats: NatsServer | None = None  # on NATS only
        self.clock = ManualClock()
        self._attempts: dict[str, int] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, kind: str, tmp_path: Path) -> AsyncIterator["LifecycleFlow"]:
        """On a bus of that kind, with a complete snapshot and a leader."""
        async with AsyncExitStack() as stack:
            connect: Callable[..., Awaitable[Bus]]
            url, nats_server = "", None
            if kind == "nats":
                nats_server = await stack.enter_async_context(NatsServer.start(tmp_path / "nats"))
                url = nats_server.url
                connect = partial(NatsBus.connect, (url,), timing=QUICK)
            else:
                memory = MemoryServer()

                async def connect(*, service: str) -> Bus:
                    return MemoryBus(memory)

            server = await stack.enter_async_context(SimApiServer.start(tmp_path / "kube"))
            admin = await stack.enter_async_context(KubeletFleet.start(server))
            await grant_permissions(admin, [LIFECYCLE])
            bus = await connect(service="watcher")
            stack.push_async_callback(bus.close)
            flow = cls(connect, bus, server, admin)
            flow.nats_url, flow.nats = url, nats_server
            await flow.provision()
            yield flow

    async def provision(self) -> None:
        """A stream as the watcher makes it."""
        self.stream_id = await self.bus.provision(DURABLES, max_bytes=MAX_BYTES)
        await self.publish(SnapshotComplete(stream_id=self.stream_id, epoch=1, nodes=0, requests=0))
        await self.publish_leading()

    async def wipe(self) -> None:
        """NATS loses everything, and the watcher says it anew."""
        client = await nats.connect(self.nats_url)
        await client.jetstream().delete_stream(STREAM)
        await client.close()
        await self.provision()

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
        """A lifecycle on a bus of its own with the rights of its wiring; grown up = after its grace."""
        bus = await self._connect(service="lifecycle")
        api = KubeApi(load_kube_config(self.server.kubeconfig(USER), {}), user_agent="test", instance="test")
        try:
            parts = Dependencies(
                bus=bus,
                kube=kube(api),
                monotonic=self.clock,
                now=self.clock.now,
                random=random.Random(1),
                identity=identity,
            )
            service = LifecycleService(parts, LifecycleSettings(**(PATIENT | QUICK_LOOKS | settings)))
            async with run_during(service.run()):
                await (wait_until_ready if ready else wait_until_led)(service, bus)
                if grown_up:
                    await wait_until(
                        lambda: service.replica_status().leading_for is not None, "lifecycle leads"
                    )
                    self.clock.advance(GRACE)
                    await self.publish_leading()
                yield service
        finally:
            await bus.close()
            await api.close()

    # ---- what others say

    async def publish(self, event: Event) -> int:
        return await self.bus.publish(event)

    async def publish_leading(self) -> None:
        await self.publish(Leading(stream_id=self.stream_id, epoch=1, holder="test"))

    async def observe_node(self, name: str) -> Node:
        """The watcher's word of the Node as it is."""
        node = await self.get_node(name)
        assert node is not None
        await self.publish(make_node_observed(node, stream_id=self.stream_id))
        return node

    async def publish_poll_result(self, node: Node, *answered: ForeignMachine, **fields: Any) -> None:
        """Metadata's word after a look that found no facts; without `answered` nobody answered."""
        attempt = self._attempts[node.name] = self._attempts.get(node.name, 0) + 1
        said: dict[str, Any] = {"attempt": attempt, "stream_id": self.stream_id} | fields
        await self.publish(make_unreachable(node, foreign_machines=answered, **said))

    async def publish_replacement(self, *nodes: Node, minutes: float = 5.5) -> None:
        """Another machine answers in their place, after so much time."""
        self.clock.advance(60 * minutes)
        await self.publish_leading()
        for node in nodes:
            await self.publish_poll_result(node, make_foreign_machine(queried_at=self.clock.now()))

    async def publish_proof(self, *nodes: Node, then: str = "deleted") -> None:
        """Three looks over eleven minutes, each heard before the next; "" = whatever comes of it."""
        for told in ("1 of 3", "2 of 3"):
            await self.publish_replacement(*nodes)
            for node in nodes:
                await self.wait_for_decision(node.name, "kept", told)
        await self.publish_replacement(*nodes)
        for node in nodes if then else ():
            await self.wait_for_decision(node.name, then)

    # ---- the cluster

    async def add_lost_node(self, name: str = "web-1", **fields: Any) -> Node:
        """A Node that is not Ready for two hours, seen by the watcher; keywords: labels, taints, uuid."""
        since = NOW - timedelta(hours=2)
        condition = {
            "type": "Ready",
            "status": "Unknown",
            "lastTransitionTime": make_ready_condition(since=since).last_transition_time,
        }
        uuid = fields.get("uuid", OWN_UUID if name == "web-1" else "")
        body = {
            "metadata": {"name": name, "labels": fields.get("labels", {})},
            "spec": {"providerID": f"talos://{name}", "taints": fields.get("taints", [])},
            "status": {"conditions": [condition], "nodeInfo": {"systemUUID": uuid}},
        }
        created = await self.admin.request("POST", NODES, body=body)
        assert created.status == 201, created
        return await self.observe_node(name)

    async def get_node(self, name: str) -> Node | None:
        """As Kubernetes has it; None = there is none."""
        found = await self.admin.request("GET", f"{NODES}/{name}")
        return msgspec.convert(found.body, Node) if found.status == 200 else None

    async def patch(self, path: str, body: Any) -> None:
        """As an admin does."""
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
        """How often lifecycle asked for what, by verb and resource; its Lease apart."""
        return {
            (request.verb, request.resource): count
            for request, count in self.server.audit_counts(since).items()
            if request.user == USER and request.resource != "leases"
        }

    # ---- what lifecycle said

    async def get_decision(self, name: str) -> Decided | None:
        message = await self.bus.get_last(f"{DECIDED}.lifecycle.node.{name}")
        return message.event if message and isinstance(message.event, Decided) else None

    async def wait_for_decision(self, name: str, outcome: str, *told: str) -> Decided:
        """The decision, as soon as it is this one and tells all of that."""
        found: list[Decided] = []

        async def is_decided() -> bool:
            decided = await self.get_decision(name)
            if (
                decided is None
                or decided.outcome != outcome
                or any(text not in decided.reason for text in told)
            ):
                return False
            found.append(decided)
            return True

        await wait_until(is_decided, f"{name} decided as {outcome}: {told}")
        return found[0]
