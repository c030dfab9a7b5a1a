"""Asks machines what they are, over the Talos API: the only way from this project to Talos."""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Callable, Collection
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from libs.common.contract.machine import CONNECT_STEP, Inventory, MachineFacts, MachineFault
from libs.talos.calls import Observe, TalosCalls, TraceHeaders
from libs.talos.cluster_name import ClusterNameCache
from libs.talos.credentials import CredentialStore
from libs.talos.inventory_reading import InventoryResponse, merge_inventories, read_part
from libs.talos.lifecycle_reading import read_member_names, read_stage
from libs.talos.machine_events import WatchSnapshot
from libs.talos.machine_reading import (
    MachineConfigNetworks,
    read_addresses,
    read_cluster_name,
    read_cluster_networks,
    read_node_name,
    read_platform,
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
from libs.talos.validation import InvalidResponse

__all__ = [
    "InventoryResponse",
    "MachineConfigNetworks",
    "MachineUnavailable",
    "Part",
    "TalosApi",
    "WatchSnapshot",
]

T = TypeVar("T")

MAX_CONCURRENT_QUERIES: Final = 32
CONNECT_SECONDS: Final = 3.0
OPEN_SECONDS: Final = 10.0


class TalosApi:
    """Looks at machines and watches them. Close it in the event loop that it was used in."""

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
        """`with_stage`: each look asks for the machine's stage too, and each watch tells of its changes.

        `queries_cluster_name`: a control plane names the cluster where the talosconfig does not.
        """
        self._clock = clock
        self._session = TalosSession(credentials, clock=clock, connect_seconds=connect_seconds)
        self._calls = TalosCalls(self._session, observe=observe, trace_headers=trace_headers)
        self._cluster_name = ClusterNameCache(self._fetch_cluster_name)
        self._slots = asyncio.Semaphore(max_concurrent_queries)
        self._with_stage = with_stage
        self._queries_cluster_name = queries_cluster_name

    async def fetch_facts(self, node_ip: str, *, deadline_seconds: float) -> MachineFacts:
        """Everything the machine at that address says of itself.

        The deadline begins when the look does: waiting for a free slot is not the machine's fault.
        Raises MachineUnavailable.
        """
        _require_address(node_ip)
        async with self._slots:
            looked_at = self._clock()
            try:
                return await self._fetch_facts(node_ip, looked_at, _now() + deadline_seconds)
            except MachineUnavailable as error:
                self._record_fault(node_ip, error.fault)
                raise

    async def _fetch_facts(self, node_ip: str, looked_at: datetime, deadline: float) -> MachineFacts:
        ask = self._calls.query
        platform = asyncio.create_task(ask(PLATFORM_METADATA, node_ip, deadline, _read_single(read_platform)))
        system = asyncio.create_task(
            # In container mode there is no SMBIOS.
            ask(SYSTEM_INFORMATION, node_ip, deadline, _read_single(read_system), absent=lambda: None)
        )
        addresses = asyncio.create_task(ask(ADDRESSES, node_ip, deadline, read_addresses))
        name = asyncio.create_task(ask(NODENAME, node_ip, deadline, _read_single(read_node_name), absent=str))
        cluster = asyncio.create_task(self._get_cluster_name(deadline))
        stage = asyncio.create_task(self._fetch_stage(node_ip, deadline))
        await _cancel_on_first_error(platform, system, addresses, name, cluster, stage)
        return MachineFacts(
            platform=platform.result(),
            system=system.result(),
            addresses=addresses.result(),
            node_name=name.result(),
            cluster_name=cluster.result(),
            queried_at=looked_at,
            node_ip=node_ip,
            stage=stage.result(),
        )

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        """Those parts of the machine's inventory. A part that is not told takes no other with it."""
        async with self._slots:
            deadline = _now() + deadline_seconds
            answers = await asyncio.gather(*(self._fetch_part(node_ip, part, deadline) for part in parts))
        told = dict(zip(parts, answers, strict=True))
        return InventoryResponse(
            inventory=merge_inventories(answer for answer in answers if isinstance(answer, Inventory)),
            faults={part: answer for part, answer in told.items() if isinstance(answer, MachineFault)},
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
        """What the machine looks like once the watches are open: from then on every change is told. Then None
        whenever something has changed (changes coalesce).

        Ends when a watch has ended or nothing was heard for that long: look, then watch again. Leaving the
        loop early, close the generator (contextlib.aclosing). Raises MachineUnavailable.
        """
        _require_address(node_ip)
        watched = (*WATCHED_RESOURCES, MACHINE_STATUS) if self._with_stage else WATCHED_RESOURCES
        async with MachineWatch(node_ip, watched) as machine:
            async with self._slots:
                try:
                    contents = await self._open_watch(machine, node_ip, _now() + open_seconds)
                except MachineUnavailable as error:
                    self._record_fault(node_ip, error.fault)
                    raise
            yield contents
            while await machine.wait_for_change(read_deadline_seconds):
                yield None

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        """The pod and service networks, from the control plane that is asked. Raises MachineUnavailable."""
        asking = asyncio.create_task(
            self._calls.query(
                CONTROLLER_MANAGER, "", _now() + deadline_seconds, _read_single(read_cluster_networks)
            )
        )
        await _cancel_on_first_error(asking)
        return asking.result()

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        """The node names of all members of the cluster, as discovery told the control plane that is asked.

        None at all where discovery is off. Raises MachineUnavailable.
        """
        return await self._calls.query(MEMBERS, "", _now() + deadline_seconds, read_member_names)

    def problem(self) -> str:
        """Why Talos cannot be asked, or soon not any more, for readiness; "" if all is well."""
        return self._session.problem()

    def certificate_expires_at(self) -> datetime | None:
        """When the client certificate in use expires; None without one."""
        try:
            return self._session.credentials().not_after
        except MachineUnavailable:
            return None

    async def close(self) -> None:
        """Close every connection. Looks and watches under way fail."""
        await self._cluster_name.close()
        await self._session.close()

    async def _open_watch(self, machine: MachineWatch, node_ip: str, deadline: float) -> WatchSnapshot:
        channel = await self._session.channel(node_ip, "watches", deadline=deadline)
        return await machine.open(channel, self._calls.build_headers(node_ip), deadline=deadline)

    async def _fetch_stage(self, node_ip: str, deadline: float) -> str:
        """A stage that is not told costs nobody the facts that there are."""
        if not self._with_stage:
            return ""
        try:
            return await self._calls.query(
                MACHINE_STATUS, node_ip, deadline, _read_single(read_stage), absent=str
            )
        except MachineUnavailable:  # counted where it was asked
            return ""

    async def _get_cluster_name(self, deadline: float) -> str:
        """The reference knows only the talosconfig's, which inside a cluster names none."""
        credentials = self._session.credentials()
        if credentials.cluster_name or not self._queries_cluster_name:
            return credentials.cluster_name
        return await self._cluster_name.get(credentials.digest, deadline)

    async def _fetch_cluster_name(self, deadline: float) -> str:
        return await self._calls.query(
            CLUSTER_INFO, "", deadline, _read_single(read_cluster_name), absent=str
        )

    def _record_fault(self, node_ip: str, fault: MachineFault) -> None:
        if fault.kind in {"refused", "timeout"} and fault.step != CONNECT_STEP:
            self._session.use_next_endpoint(node_ip)


def _require_address(node_ip: str) -> None:
    try:
        ipaddress.ip_address(node_ip)
    except ValueError as error:
        fault = MachineFault(
            kind="bad_node_ip", step="node IP", message=f"{node_ip[:80]!r} is not an address"
        )
        raise MachineUnavailable(fault) from error


def _read_single(read: Callable[[bytes], T]) -> Callable[[list[bytes]], T]:
    def read_only_one(answers: list[bytes]) -> T:
        if len(answers) != 1:
            raise InvalidResponse(f"{len(answers)} answers to one question")
        return read(answers[0])

    return read_only_one


async def _cancel_on_first_error(*tasks: asyncio.Task[Any]) -> None:
    """Return once all are done, or raise the error of the first of them that failed and cancel the rest."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _now() -> float:
    return asyncio.get_running_loop().time()
