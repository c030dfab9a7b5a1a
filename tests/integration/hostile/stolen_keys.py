"""A client of NATS with the key of one of our users, beside the services that use the same keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from libs.common.bus.nats.connection import Connection
from libs.common.contract.events import Event, Leading, NodeEnriched, NodeObserved, encode
from libs.common.contract.subjects import ENRICHED_NODE, LEADING, OBSERVED_NODE, subject_of
from libs.testbed.child_process import HANG_SECONDS
from tests.bootstrap_actors import BootstrapInstallation
from tests.bus_actors import wait_until
from tests.integration.hostile.attacked_cluster import VICTIM, AttackedCluster

EventT = TypeVar("EventT", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class StolenKeys:
    """Every key of the installation, and the cluster that it serves."""

    cluster: AttackedCluster
    nats: BootstrapInstallation

    @asynccontextmanager
    async def connect(self, user: str) -> AsyncIterator[Connection]:
        """A connection with that user's key."""
        access = self.nats.nats_access(user)
        refused: list[str] = []
        client = await Connection.open(
            access, access.servers[0], seconds=HANG_SECONDS, on_violation=refused.append
        )
        try:
            yield client
        finally:
            await client.abort("done")
        assert refused == []

    async def publish(self, user: str, *events: Event) -> None:
        """Publish these with that key; the stream accepts each."""
        async with self.connect(user) as client:
            for event in events:
                await self.put(client, subject_of(event), encode(event))

    async def put(self, client: Connection, subject: str, payload: bytes) -> None:
        """Publish bytes, which the stream accepts."""
        answer = await client.request(subject, payload, seconds=HANG_SECONDS)
        assert b'"error"' not in answer.data, answer.data

    async def wait_until_corrected(self) -> None:
        """Wait until the stream contains the victim again, as watcher and metadata publish it."""
        uid = (await self.cluster.get_node(VICTIM))["metadata"]["uid"]

        async def is_corrected() -> bool:
            observed = await self.cluster.bus.get_last(f"{OBSERVED_NODE}.{VICTIM}")
            enriched = await self.cluster.bus.get_last(f"{ENRICHED_NODE}.{VICTIM}")
            events = [message.event for message in (observed, enriched) if message is not None]
            return [type(event) for event in events] == [NodeObserved, NodeEnriched] and all(
                event.node.uid == uid for event in events if isinstance(event, NodeObserved | NodeEnriched)
            )

        await wait_until(is_corrected, "the stream contains the victim again")

    async def read_observed(self) -> NodeObserved:
        """The watcher's last message about the victim."""
        return await self._read(f"{OBSERVED_NODE}.{VICTIM}", NodeObserved)

    async def read_enriched(self) -> NodeEnriched:
        """metadata's last message about the victim."""
        return await self._read(f"{ENRICHED_NODE}.{VICTIM}", NodeEnriched)

    async def read_leading(self) -> Leading:
        """The last leader heartbeat."""
        return await self._read(LEADING, Leading)

    async def _read(self, subject: str, kind: type[EventT]) -> EventT:
        message = await self.cluster.bus.get_last(subject)
        assert message is not None, subject
        assert isinstance(message.event, kind), message.event
        return message.event
