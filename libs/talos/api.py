"""Queries and watches machines over the Talos API. No other package of this project uses that API."""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from libs.common.clocks import loop_time
from libs.common.contract.machine import (
    CONNECT_STEP,
    FAULT_KINDS,
    Inventory,
    MachineFacts,
    MachineFault,
    SystemInformation,
)
from libs.talos.calls import Observe, TalosCalls, TraceHeaders
from libs.talos.cluster_name import ClusterNameCache
from libs.talos.credentials import CredentialStore
from libs.talos.inventory_reading import InventoryResponse, merge_inventories, read_part
from libs.talos.machine_events import WatchSnapshot
from libs.talos.machine_reading import (
    MachineConfigNetworks,
    read_addresses,
    read_cluster_name,
    read_cluster_networks,
    read_member_names,
    read_node_name,
    read_platform,
    read_stage,
    read_system,
)
from libs.talos.machine_watch import MachineWatch
from libs.talos.resources import (
    ADDRESSES,
    CLUSTER_INFO,
    CONTROLLER_MANAGER,
    INVENTORY,
    MACHINE_STATUS,
    MEMBERS,
    NODENAME,
    PLATFORM_METADATA,
    SYSTEM_INFORMATION,
    WATCHED_RESOURCES,
    Part,
)
from libs.talos.session import MachineUnavailable, TalosSession

__all__ = [
    "InventoryResponse",
    "MachineConfigNetworks",
    "MachineUnavailable",
    "Part",
    "TalosApi",
    "WatchSnapshot",
]

T = TypeVar("T")

MAX_CONCURRENT_QUERIES: Final = 32  # machine queries, not Talos calls
CONNECT_SECONDS: Final = 3.0
OPEN_SECONDS: Final = 10.0


class TalosApi:
    """Queries and watches machines. Close it in the event loop in which it was used."""

    def __init__(
        self,
        credentials: CredentialStore,
        *,
        clock: Callable[[], datetime],
        observe: Observe = lambda request, seconds, failed: None,
        trace_headers: TraceHeaders = dict,
        max_concurrent_queries: int = MAX_CONCURRENT_QUERIES,
        connect_seconds: float = CONNECT_SECONDS,
        with_stage: bool = False,
        queries_cluster_name: bool = False,
    ) -> None:
        """`max_concurrent_queries` limits machine queries, not Talos calls.

        Facts, inventory and opening the watches of a machine take one slot each.

        `with_stage`: machine queries and watches include the stage of the machine.

        `queries_cluster_name`: query a control plane for the cluster name if the talosconfig has none.
        """
        self._clock = clock
        self._session = TalosSession(credentials, clock=clock, connect_seconds=connect_seconds)
        self._calls = TalosCalls(self._session, observe=observe, trace_headers=trace_headers)
        self._cluster_name = ClusterNameCache(self._fetch_cluster_name)
        self._slots = asyncio.Semaphore(max_concurrent_queries)
        self._with_stage = with_stage
        self._queries_cluster_name = queries_cluster_name

    async def fetch_facts(
        self, node_ip: str, *, deadline_seconds: float, with_system: bool = True
    ) -> MachineFacts:
        """Query the facts of the machine at that address, SystemInformation only `with_system`.

        The deadline starts with the query, after the wait for a free slot, which is not the machine's fault.
        Raises MachineUnavailable.
        """
        _require_address(node_ip)
        async with self._slots:
            queried_at = self._clock()
            try:
                deadline = loop_time() + deadline_seconds
                return await self._fetch_facts(node_ip, queried_at, deadline, with_system=with_system)
            except MachineUnavailable as error:
                self._record_fault(node_ip, error.fault)
                raise

    async def _fetch_facts(
        self, node_ip: str, queried_at: datetime, deadline: float, *, with_system: bool
    ) -> MachineFacts:
        query = self._calls.query
        platform = asyncio.create_task(query(PLATFORM_METADATA, node_ip, deadline, read_platform))
        # There is no SMBIOS in container mode.
        system = with_system and asyncio.create_task(
            query(SYSTEM_INFORMATION, node_ip, deadline, read_system, absent=SystemInformation)
        )
        addresses = asyncio.create_task(query(ADDRESSES, node_ip, deadline, read_addresses))
        name = asyncio.create_task(query(NODENAME, node_ip, deadline, read_node_name, absent=str))
        cluster = asyncio.create_task(self._get_cluster_name(deadline))
        stage = self._with_stage and asyncio.create_task(self._fetch_stage(node_ip, deadline))
        further = tuple(task for task in (system, stage) if task)
        await _cancel_on_first_error(platform, addresses, name, cluster, *further)
        return MachineFacts(
            platform=platform.result(),
            system=system.result() if system else None,
            addresses=addresses.result(),
            node_name=name.result(),
            cluster_name=cluster.result(),
            queried_at=queried_at,
            node_ip=node_ip,
            stage=stage.result() if stage else "",
        )

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        """Query parts of the machine's inventory; a fault of one part does not affect the others."""
        async with self._slots:
            deadline = loop_time() + deadline_seconds
            answers = await asyncio.gather(*(self._fetch_part(node_ip, part, deadline) for part in parts))
        by_part = dict(zip(parts, answers, strict=True))
        return InventoryResponse(
            inventory=merge_inventories(answer for answer in answers if isinstance(answer, Inventory)),
            faults={part: answer for part, answer in by_part.items() if isinstance(answer, MachineFault)},
        )

    async def _fetch_part(self, node_ip: str, part: Part, deadline: float) -> Inventory | MachineFault:
        read = partial(read_part, part)
        try:
            return await self._calls.query(INVENTORY[part], node_ip, deadline, read, absent=lambda: read([]))
        except MachineUnavailable as unavailable:
            return unavailable.fault

    async def watch_machine(
        self, node_ip: str, *, read_deadline_seconds: float, open_seconds: float = OPEN_SECONDS
    ) -> AsyncGenerator[WatchSnapshot | None, None]:
        """Yield the machine's state when the watches are open, then None after each change.

        Changes may coalesce. It ends when a watch has ended or has been silent for `read_deadline_seconds`:
        query, then watch again. Callers that leave the loop early must close the generator
        (contextlib.aclosing). Raises MachineUnavailable.
        """
        _require_address(node_ip)
        watched = (*WATCHED_RESOURCES, MACHINE_STATUS) if self._with_stage else WATCHED_RESOURCES
        async with MachineWatch(node_ip, watched) as machine:
            yield await self._open_watch(machine, node_ip, open_seconds)
            while await machine.wait_for_change(read_deadline_seconds):
                yield None

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        """Query a control plane for the pod and service networks. Raises MachineUnavailable."""
        return await _run_in_task(
            self._calls.query(CONTROLLER_MANAGER, "", loop_time() + deadline_seconds, read_cluster_networks)
        )

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        """Query a control plane for the node names of all cluster members, which discovery reports.

        The result is empty if discovery is off. Raises MachineUnavailable.
        """
        return await _run_in_task(
            self._calls.query(MEMBERS, "", loop_time() + deadline_seconds, read_member_names)
        )

    def problem(self) -> str:
        """Return why Talos cannot be queried, now or soon, for readiness; "" without a problem."""
        return self._session.problem()

    def certificate_expires_at(self) -> datetime | None:
        """Return the expiry of the client certificate in use; None without one."""
        try:
            return self._session.credentials().not_after
        except MachineUnavailable:
            return None

    async def close(self) -> None:
        """Close every connection. Running queries and watches fail."""
        await self._cluster_name.close()
        await self._session.close()

    async def _open_watch(self, machine: MachineWatch, node_ip: str, open_seconds: float) -> WatchSnapshot:
        async with self._slots:
            deadline = loop_time() + open_seconds
            try:
                channel = await self._session.channel(node_ip, "watches", deadline=deadline)
                return await machine.open(channel, self._calls.build_headers(node_ip), deadline=deadline)
            except MachineUnavailable as error:
                self._record_fault(node_ip, error.fault)
                raise

    async def _fetch_stage(self, node_ip: str, deadline: float) -> str:
        """Return the stage, "" if it is unavailable, which must not fail the whole query."""
        try:
            return await self._calls.query(MACHINE_STATUS, node_ip, deadline, read_stage, absent=str)
        except MachineUnavailable:  # counted by TalosCalls
            return ""

    async def _get_cluster_name(self, deadline: float) -> str:
        """Return the cluster name. The reference uses only the talosconfig's, which is "" in a cluster."""
        credentials = self._session.credentials()
        if credentials.cluster_name or not self._queries_cluster_name:
            return credentials.cluster_name
        return await self._cluster_name.get(credentials.digest, deadline)

    async def _fetch_cluster_name(self, deadline: float) -> str:
        return await self._calls.query(CLUSTER_INFO, "", deadline, read_cluster_name, absent=str)

    def _record_fault(self, node_ip: str, fault: MachineFault) -> None:
        if FAULT_KINDS[fault.kind].is_silent and fault.step != CONNECT_STEP:
            self._session.endpoint_selector.use_next_endpoint(node_ip)


def _require_address(node_ip: str) -> None:
    try:
        ipaddress.ip_address(node_ip)
    except ValueError as error:
        message = f"{node_ip[:80]!r} is not an address"
        raise MachineUnavailable.because("bad_node_ip", "node IP", message) from error


async def _run_in_task(call: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own: a cancellation at the very deadline of a call may be lost in it."""
    task = asyncio.create_task(call)
    await _cancel_on_first_error(task)
    return task.result()


async def _cancel_on_first_error(*tasks: asyncio.Task[Any]) -> None:
    """Return when all are done; after the first error cancel the rest and raise it."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
