"""The flow around a service under test: publishes what the other services publish, reads its decisions."""

import random
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from libs.common.bus.protocol import Bus
from libs.common.contract.events import (
    Decided,
    EnrichedNodeGone,
    Event,
    Leading,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    SnapshotComplete,
)
from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import DECIDED
from libs.common.service.service import Dependencies
from libs.testbed.child_process import HANG_SECONDS
from tests.builders import NOW, make_node_enriched, make_unreachable
from tests.bus_actors import MAX_BYTES, wait_for_value
from tests.clocks import ManualClock, RunningClock, VirtualClock


class MountedConfigMap:
    """file -> ..data/file, ..data -> a directory per version."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        self._version = 0
        self.path = folder / "ccm-config.yaml"
        self.path.symlink_to(Path("..data") / self.path.name)
        self.replace_text(text)

    def replace_text(self, text: str) -> None:
        """Put another version in place, as the kubelet does: by one rename."""
        self._version += 1
        version = self._folder / f"..version_{self._version}"
        version.mkdir()
        (version / self.path.name).write_text(text)
        (self._folder / "..data_tmp").symlink_to(version.name)
        (self._folder / "..data_tmp").rename(self._folder / "..data")


REFUSED = MachineFault(
    kind="refused", step="PlatformMetadata", endpoint="cp:50000", message="connection refused"
)


def make_dependencies(
    bus: Bus,
    *,
    kube: Any = None,
    clock: ManualClock | RunningClock | VirtualClock | None = None,
    seed: int = 1,
    identity: str = "",
) -> Dependencies:
    """The dependencies of a service under test; without `clock` it gets the real time."""
    return Dependencies(
        bus=bus,
        kube=kube,
        monotonic=clock or time.monotonic,
        now=clock.now if clock else lambda: datetime.now(UTC),
        random=random.Random(seed),
        identity=identity or f"test_{seed}",
    )


class ServiceFlow:
    """Publishes as watcher and metadata do, and reads what the service under test decides."""

    decisions_of = ""  # "<service>.<kind>": whose decisions are read
    durables = DURABLES

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.stream_id = ""
        self._version = 100

    async def provision(self) -> None:
        """Create the stream with its durables."""
        self.stream_id = await self.bus.provision(self.durables, max_bytes=MAX_BYTES)

    async def start(self, *nodes: Node, requests: int | None = 0) -> None:
        """Create the stream; publish these Nodes, a complete snapshot and a leader."""
        await self.provision()
        for node in nodes:
            await self.publish_node(node)
        await self.publish_snapshot(requests=requests)
        await self.publish_leading()

    # ---- events of the watcher

    async def publish(self, event: Event) -> int:
        """Publish one event; its sequence in the stream."""
        return await self.bus.publish(event)

    async def publish_snapshot(
        self, nodes: int = 0, *, requests: int | None = 0, service_cidrs: tuple[str, ...] | None = ()
    ) -> None:
        """A complete snapshot; None = no signing requests are watched, or no ServiceCIDRs known."""
        await self.publish(
            SnapshotComplete(
                stream_id=self.stream_id,
                epoch=1,
                nodes=nodes,
                requests=requests,
                service_cidrs=service_cidrs,
            )
        )

    async def publish_leading(self) -> None:
        """The leader's heartbeat."""
        await self.publish(Leading(stream_id=self.stream_id, epoch=1, holder="test"))

    async def publish_node(self, node: Node) -> int:
        """The Node as it is now, newer than all before."""
        return await self.publish(
            NodeObserved(stream_id=self.stream_id, order=self._next_order(), node=node, observed_at=NOW)
        )

    async def publish_node_gone(self, node: Node) -> int:
        """The Node is deleted."""
        return await self.publish(
            NodeGone(
                stream_id=self.stream_id,
                order=self._next_order(),
                name=node.name,
                uid=node.uid,
                observed_at=NOW,
            )
        )

    def _next_order(self) -> ObservationOrder:
        self._version += 1
        return ObservationOrder(epoch=1, resource_version=self._version)

    # ---- events of metadata

    async def enrich(
        self,
        node: Node,
        facts: MachineFacts,
        *,
        observed: int = 0,
        verified_by: str = "nodename",
        stream_id: str = "",
    ) -> int:
        """The Node with the facts of its machine; without `observed` the Node is published first."""
        return await self.publish(
            make_node_enriched(
                node,
                facts,
                stream_id=stream_id or self.stream_id,
                observed_sequence=observed or await self.publish_node(node),
                verified_by=verified_by,
            )
        )

    async def publish_unreachable(
        self,
        node: Node,
        fault: MachineFault = REFUSED,
        *,
        last_known: MachineFacts | None = None,
    ) -> int:
        """The Node as it is now, whose machine does not answer."""
        return await self.publish(
            make_unreachable(
                node,
                fault=fault,
                last_known=last_known,
                retry_at=NOW,
                stream_id=self.stream_id,
                observed_sequence=await self.publish_node(node),
            )
        )

    async def publish_enriched_gone(self, node: Node, *, observed: int = 1) -> int:
        """Metadata passes on that the Node is deleted."""
        return await self.publish(
            EnrichedNodeGone(
                stream_id=self.stream_id, observed_sequence=observed, name=node.name, uid=node.uid
            )
        )

    # ---- decisions of the service under test

    async def get_decision(self, name: str) -> Decided | None:
        """The last decision on that object."""
        message = await self.bus.get_last(f"{DECIDED}.{self.decisions_of}.{name}")
        if message is None:
            return None
        assert isinstance(message.event, Decided)
        return message.event

    async def wait_for_decision(self, name: str, *outcomes: str, seconds: float = HANG_SECONDS) -> Decided:
        """The last decision, once it has one of these outcomes."""
        return await wait_for_value(
            lambda: self.get_decision(name),
            lambda decided: decided.outcome in outcomes,
            f"{name} decided as {outcomes}",
            seconds,
        )
