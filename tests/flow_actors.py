"""The flow on a real bus: what watcher and metadata say in a test, and what the stream holds by then."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.common.bus.nats.jetstream import fetch_consumer_info
from libs.common.contract.events import (
    Decided,
    EnrichedNode,
    EnrichedNodeGone,
    Leading,
    NodeEnriched,
    NodeGone,
    NodeObserved,
    NodeUnreachable,
    ObservationOrder,
    SnapshotComplete,
)
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import DECIDED, ENRICHED_NODE
from tests.builders import NOW
from tests.bus_actors import MAX_BYTES, wait_until

Said = TypeVar("Said", NodeEnriched, NodeUnreachable, EnrichedNodeGone)

QUICK = Timeouts(probe_every=0.5, probe_deadline=0.5, retry_first=0.05, retry_cap=0.3, follow_retry_cap=0.3)


class FlowActor:
    """Speaks as the other services do, on a bus of the watcher's, and reads what the one under test said."""

    def __init__(self, bus: NatsBus) -> None:
        self.bus = bus
        self.stream_id = ""
        self._version = 100

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["FlowActor"]:
        """A stream with its durables, in which nobody has said anything yet."""
        bus = await NatsBus.connect((url,), service="watcher", timing=QUICK)
        try:
            flow = cls(bus)
            await flow.provision()
            yield flow
        finally:
            await bus.close()

    @classmethod
    @asynccontextmanager
    async def open_led(cls, url: str) -> AsyncIterator["FlowActor"]:
        """A stream with a complete snapshot and a leader."""
        async with cls.open(url) as flow:
            await flow.publish_snapshot(0)
            await flow.publish_leading()
            yield flow

    async def provision(self) -> None:
        self.stream_id = await self.bus.provision(DURABLES, max_bytes=MAX_BYTES)

    # ---- the watcher's words

    async def publish_snapshot(self, nodes: int = 1) -> None:
        await self.bus.publish(SnapshotComplete(stream_id=self.stream_id, epoch=1, nodes=nodes))

    async def publish_leading(self) -> None:
        await self.bus.publish(Leading(stream_id=self.stream_id, epoch=1, holder="test"))

    async def publish_node(self, node: Node, *, headers: dict[str, str] | None = None) -> int:
        """How the Node is; the word's place in the stream."""
        order = self._next()
        event = NodeObserved(stream_id=self.stream_id, order=order, node=node, observed_at=NOW)
        return await self.bus.publish(event, headers=headers)

    async def publish_node_gone(self, node: Node) -> int:
        """That it is no more."""
        order = self._next()
        return await self.bus.publish(
            NodeGone(stream_id=self.stream_id, order=order, name=node.name, uid=node.uid, observed_at=NOW)
        )

    # ---- metadata's words

    async def enrich(
        self, node: Node, facts: MachineFacts, *, observed: int = 0, recognized_by: str = "nodename",
        stream_id: str = "",
    ) -> int:  # fmt: skip
        """What the machine says; `observed` 0 = the watcher says so first."""
        return await self.bus.publish(
            NodeEnriched(
                stream_id=stream_id or self.stream_id,
                observed_sequence=observed or await self.publish_node(node),
                node=node,
                facts=facts,
                verified_by=recognized_by,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def publish_unreachable(self, node: Node, fault: MachineFault, *, observed: int = 0) -> int:
        """That the machine says nothing."""
        return await self.bus.publish(
            NodeUnreachable(
                stream_id=self.stream_id,
                observed_sequence=observed or await self.publish_node(node),
                node=node,
                fault=fault,
                attempt=1,
                retry_at=NOW,
                observed_at=NOW,
                enriched_at=NOW,
            )
        )

    async def publish_enriched_gone(self, node: Node) -> int:
        """That a Node is gone, passed on."""
        return await self.bus.publish(
            EnrichedNodeGone(stream_id=self.stream_id, observed_sequence=1, name=node.name, uid=node.uid)
        )

    # ---- what metadata under test has said

    async def get_enriched(self, name: str) -> EnrichedNode | None:
        """What the stream holds of the enriched Node."""
        message = await self.bus.get_last(f"{ENRICHED_NODE}.{name}")
        event = message.event if message else None
        assert event is None or isinstance(event, EnrichedNode)
        return event

    async def get_sequence(self, name: str) -> int:
        """The place of that word in the stream, 0 for none: it grows with each one."""
        message = await self.bus.get_last(f"{ENRICHED_NODE}.{name}")
        return message.sequence if message else 0

    async def wait_for_enriched(
        self,
        name: str,
        kind: type[Said],
        says: Callable[[Said], bool] = lambda event: True,
        seconds: float = 30.0,
    ) -> Said:
        """What the stream holds of the Node, as soon as it is of that kind and says that."""
        found: list[Said] = []

        async def there() -> bool:
            event = await self.get_enriched(name)
            if not isinstance(event, kind) or not says(event):
                return False
            found.append(event)
            return True

        await wait_until(there, f"{kind.__name__} of {name}", seconds)
        return found[0]

    # ---- what the labeler under test has decided

    async def get_decision(self, name: str) -> Decided | None:
        """What was decided last."""
        message = await self.bus.get_last(f"{DECIDED}.labeler.node.{name}")
        if message is None:
            return None
        assert isinstance(message.event, Decided)
        return message.event

    async def get_decision_sequence(self, name: str) -> int:
        """The place of the last decision in the stream, 0 for none: it grows with each one."""
        message = await self.bus.get_last(f"{DECIDED}.labeler.node.{name}")
        return message.sequence if message else 0

    async def wait_for_decision(self, name: str, *outcomes: str) -> Decided:
        """The decision, as soon as it is one of these."""
        found: list[Decided] = []

        async def is_decided() -> bool:
            decided = await self.get_decision(name)
            if decided is None or decided.outcome not in outcomes:
                return False
            found.append(decided)
            return True

        await wait_until(is_decided, f"{name} decided as {outcomes}")
        return found[0]

    async def wait_until_handled(self) -> None:
        """Everything that metadata has said is settled: nothing pending, in flight or parked."""

        async def is_settled() -> bool:
            info = await fetch_consumer_info(await self.bus._link.wait_for_connection(), DURABLES[0].name)
            return info.num_pending == 0 and info.num_ack_pending == 0

        await wait_until(is_settled, f"all of {ENRICHED_NODE} handled")

    def _next(self) -> ObservationOrder:
        self._version += 1
        return ObservationOrder(epoch=1, resource_version=self._version)
