"""The flow on a real NATS: a test publishes events of watcher and metadata, and reads the stream."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.common.bus.nats.jetstream import call
from libs.common.bus.protocol import BusError
from libs.common.contract import events
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import DECIDED, ENRICHED_NODE, STREAM
from libs.testbed.child_process import HANG_SECONDS
from tests.bus_actors import wait_for_value, wait_until
from tests.service_flow import ServiceFlow

Said = TypeVar("Said", events.NodeEnriched, events.NodeUnreachable, events.EnrichedNodeGone)


class _Delivered(msgspec.Struct, frozen=True):
    stream_seq: int


class _ConsumerProgress(msgspec.Struct, frozen=True):
    delivered: _Delivered
    num_pending: int
    num_ack_pending: int


# A busy machine, which answers late, is no outage.
PATIENT_TIMING = Timeouts(
    connect=30.0, probe_deadline=30.0, publish_deadline=60.0, pull_silence=15.0, follower_kept=60.0
)
# Soon back after an outage, too.
QUICK = msgspec.structs.replace(
    PATIENT_TIMING, probe_every=0.5, retry_first=0.05, retry_cap=0.3, follow_retry_cap=0.3
)


class FlowActor(ServiceFlow):
    """Publishes as the other services do, and reads what metadata and labeler publish."""

    decisions_of = "labeler.node"
    bus: NatsBus

    def __init__(self, bus: NatsBus, url: str) -> None:
        super().__init__(bus)
        self.url = url  # of its NATS

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator["FlowActor"]:
        """A stream with its durables and without messages."""
        bus = await NatsBus.connect((url,), service="watcher", timing=QUICK)
        try:
            flow = cls(bus, url)
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

    async def provision_another(self) -> None:
        """Provision the stream in place of the present one, which NATS has lost."""
        former = self.stream_id

        async def is_another() -> bool:
            try:
                await self.provision()
            except BusError:
                return False
            return bool(self.stream_id != former)

        await wait_until(is_another)

    # ---- events of the watcher

    async def publish_snapshot(
        self, nodes: int = 1, *, requests: int | None = None, service_cidrs: tuple[str, ...] | None = ()
    ) -> None:
        """A complete snapshot; None = no signing requests are watched, or no ServiceCIDRs known."""
        await super().publish_snapshot(nodes, requests=requests, service_cidrs=service_cidrs)

    # ---- what metadata publishes

    async def get_enriched(self, name: str) -> events.EnrichedNode | None:
        """The last enriched event of the Node."""
        message = await self.bus.get_last(f"{ENRICHED_NODE}.{name}")
        event = message.event if message else None
        assert event is None or isinstance(event, events.EnrichedNode)
        return event

    async def get_sequence(self, name: str) -> int:
        """The sequence of that event in the stream, 0 for none; it grows with each event."""
        message = await self.bus.get_last(f"{ENRICHED_NODE}.{name}")
        return message.sequence if message else 0

    async def wait_for_enriched(
        self,
        name: str,
        kind: type[Said],
        says: Callable[[Said], bool] = lambda event: True,
        seconds: float = HANG_SECONDS,
    ) -> Said:
        """The last enriched event of the Node, once it is of that kind and `says` that."""

        async def get() -> Said | None:
            event = await self.get_enriched(name)
            return event if isinstance(event, kind) else None

        return await wait_for_value(get, says, f"{kind.__name__} of {name}", seconds)

    # ---- what the labeler decides

    async def get_decision_sequence(self, name: str) -> int:
        """The sequence of the last decision in the stream, 0 for none; it grows with each decision."""
        message = await self.bus.get_last(f"{DECIDED}.labeler.node.{name}")
        return message.sequence if message else 0

    async def wait_until_handled(self) -> None:
        """Wait until the labeler has acknowledged every event of metadata.

        The server acknowledges a publish before its consumers count the message as pending, so the test
        compares sequences.
        """
        durable = DURABLES[0]

        async def is_settled() -> bool:
            connection = await self.bus._link.wait_for_connection()
            last = await self.bus.get_last(durable.filter)
            info = await call(connection, f"CONSUMER.INFO.{STREAM}.{durable.name}", None, _ConsumerProgress)
            delivered_all = last is None or info.delivered.stream_seq >= last.sequence
            return delivered_all and info.num_pending == 0 and info.num_ack_pending == 0

        await wait_until(is_settled, f"all of {ENRICHED_NODE} is handled")
