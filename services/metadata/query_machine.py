"""Queries the machine of a Node, one address after the other. A hanging machine does not block others."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from libs.common.contract.machine import MachineFacts, MachineFault
from libs.common.observability import metrics, telemetry
from libs.common.service.service import Dependencies
from libs.talos.api import (
    InventoryResponse,
    MachineConfigNetworks,
    MachineUnavailable,
    Part,
    TalosApi,
    WatchSnapshot,
)
from libs.talos.credentials import CredentialStore
from libs.talos.talosconfig import list_candidate_files
from services.metadata.announced_addresses import add_answers, list_addresses_to_dial
from services.metadata.settings import MetadataSettings

log = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS: Final = 500  # characters of an error in a fault
_HUNG_QUERIES_PER_SLOT: Final = 8  # a query releases its slot after a second, but may run to its deadline


class TalosClient(Protocol):
    """The Talos API client: `talos_api.TalosApi`, or a fake."""

    async def fetch_facts(self, node_ip: str, *, deadline_seconds: float) -> MachineFacts:
        """Return all facts of the machine at that address. Raises MachineUnavailable."""

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        """Return those parts of the machine's inventory, and a fault for each part that failed."""

    def watch_machine(
        self, node_ip: str, *, read_deadline_seconds: float
    ) -> AsyncGenerator[WatchSnapshot | None, None]:
        """Yield a snapshot once the watches are open, then None on each change.

        Raises MachineUnavailable.
        """

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        """Return the node names of all members that discovery lists. Raises MachineUnavailable."""

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        """Return the pod and service networks from a control plane. Raises MachineUnavailable."""

    def problem(self) -> str:
        """Return why no machine can be queried, now or soon; "" if there is no problem."""

    def certificate_expires_at(self) -> datetime | None:
        """Return when our client certificate expires; None without one."""

    async def close(self) -> None:
        """Close every connection."""


def open_talos(dependencies: Dependencies, settings: MetadataSettings) -> TalosApi:
    """Return a Talos API client by the settings. It reads and dials nothing before the first query."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where there is none
    paths = (settings.talosconfig,) if settings.talosconfig else list_candidate_files({}, home)
    return TalosApi(
        CredentialStore(paths, endpoints=settings.talos_endpoints),
        clock=dependencies.now,
        observe=_count_request,
        trace_headers=telemetry.outgoing_headers,
        max_concurrent_queries=settings.max_concurrent_queries * _HUNG_QUERIES_PER_SLOT,
        with_stage=settings.serves_lifecycle,
        queries_cluster_name=settings.cluster_name_fallbacks,
    )


class QuerySlots:
    """Limits how many queries start at once. A slow query releases its slot, so that hanging machines do not
    block healthy ones.
    """

    def __init__(self, places: int, *, slow_seconds: float = 1.0) -> None:
        self._semaphore = asyncio.Semaphore(places)
        self._slow_seconds = slow_seconds

    @property
    def is_full(self) -> bool:
        """Whether the next query must wait for a slot."""
        return self._semaphore.locked()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold a slot for `slow_seconds` at most. The body may take longer."""
        await self._semaphore.acquire()
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._semaphore.release()

        timer = asyncio.get_running_loop().call_later(self._slow_seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()


class QueryResult(NamedTuple):
    """The result of one successful query."""

    facts: MachineFacts
    inventory: InventoryResponse


class QueryFailure(NamedTuple):
    """The fault of a failed query, and the facts of machines that answered but were rejected."""

    fault: MachineFault
    rejected: tuple[MachineFacts, ...]  # facts of machines that are not the Node's


async def query_in_turn(
    talos: TalosClient,
    addresses: tuple[str, ...],
    *,
    parts: Collection[Part],
    deadline_seconds: float,
    reject: Callable[[MachineFacts], MachineFault | None],
) -> QueryResult | MachineFault:
    """Query the addresses in order and return the first result that `reject` accepts, with those parts.

    If there is none, return the first fault, with the messages of the others. Each address has its own
    deadline.
    """
    found = await query_in_turn_with_rejected(
        talos, addresses, parts=parts, deadline_seconds=deadline_seconds, reject=reject
    )
    return found.fault if isinstance(found, QueryFailure) else found


async def query_in_turn_with_rejected(
    talos: TalosClient,
    addresses: tuple[str, ...],
    *,
    parts: Collection[Part],
    deadline_seconds: float,
    reject: Callable[[MachineFacts], MachineFault | None],
) -> QueryResult | QueryFailure:
    """Query as `query_in_turn` does, but also return the facts of the rejected machines.

    The facts also contain the answers at announced addresses that the machine does not list.
    """
    faults: list[MachineFault] = []
    rejected: list[MachineFacts] = []
    for index, address in enumerate(addresses):
        found = await query_address(talos, address, parts=parts, deadline_seconds=deadline_seconds)
        if isinstance(found, MachineFault):
            faults.append(found)
            continue
        fault = reject(found.facts)
        if fault is None:
            further = list_addresses_to_dial(found.facts, addresses[index + 1 :])
            answers = await _query_others(talos, further, deadline_seconds)
            return found._replace(facts=add_answers(found.facts, (*rejected, *answers)))
        faults.append(fault)
        rejected.append(found.facts)
    return QueryFailure(_merge_faults(addresses, faults), tuple(rejected))


async def _query_others(
    talos: TalosClient, addresses: tuple[str, ...], deadline_seconds: float
) -> list[MachineFacts]:
    """Return the facts of the machines that answer at these addresses. Errors and timeouts prove nothing."""
    queries = (query_address(talos, each, parts=(), deadline_seconds=deadline_seconds) for each in addresses)
    return [found.facts for found in await asyncio.gather(*queries) if isinstance(found, QueryResult)]


async def query_address(
    talos: TalosClient, address: str, *, parts: Collection[Part], deadline_seconds: float
) -> QueryResult | MachineFault:
    """Return the facts of the machine at that address with those parts of its inventory, or a fault."""
    try:
        return await _query(talos, address, parts, deadline_seconds)
    except MachineUnavailable as unavailable:
        return unavailable.fault
    except Exception as error:
        # A response is hostile input: one that breaks our parser must not end the Node's only task.
        log.exception("a look ended in a way nobody foresaw", extra={"address": address})
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
        return MachineFault(kind="internal", step="look", message=text)


async def _query(
    talos: TalosClient, address: str, parts: Collection[Part], deadline_seconds: float
) -> QueryResult:
    """Fetch facts and inventory concurrently. Raises MachineUnavailable, or any error of a defect."""
    if not parts:
        return QueryResult(
            await talos.fetch_facts(address, deadline_seconds=deadline_seconds), InventoryResponse()
        )
    inventory = asyncio.create_task(talos.fetch_inventory(address, parts, deadline_seconds=deadline_seconds))
    try:
        facts = await talos.fetch_facts(address, deadline_seconds=deadline_seconds)
        return QueryResult(facts, await inventory)
    finally:
        inventory.cancel()
        await asyncio.gather(inventory, return_exceptions=True)


def _merge_faults(addresses: tuple[str, ...], faults: list[MachineFault]) -> MachineFault:
    first, *rest = faults
    more = "".join(
        f"; and at {address}: {fault.message}"
        for address, fault in zip(addresses[1:], rest, strict=True)
        if fault.message != first.message
    )
    return msgspec.structs.replace(first, message=first.message + more)


def _count_request(request: str, seconds: float, failed: bool) -> None:
    metrics.TALOS_REQUEST_DURATION.labels(request).observe(seconds, telemetry.exemplar())
    if failed:
        metrics.TALOS_REQUEST_ERRORS.labels(request).inc()
