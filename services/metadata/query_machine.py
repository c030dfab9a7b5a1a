"""Asks the machine behind a Node, one address after the other; one that hangs holds up nobody but itself."""

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
_HUNG_QUERIES_PER_SLOT: Final = (
    8  # a look gives its place back after a second and may hang on to its deadline
)


class TalosClient(Protocol):
    """Whom we ask: `talos_api.TalosApi`, or a scripted one."""

    async def fetch_facts(self, node_ip: str, *, deadline_seconds: float) -> MachineFacts:
        """All facts of the machine at that address. Raises MachineUnavailable."""

    async def fetch_inventory(
        self, node_ip: str, parts: Collection[Part], *, deadline_seconds: float
    ) -> InventoryResponse:
        """Those parts of the machine's inventory, and why others are not told."""

    def watch_machine(
        self, node_ip: str, *, read_deadline_seconds: float
    ) -> AsyncGenerator[WatchSnapshot | None, None]:
        """What the machine looks like once it is being watched, then None on each change.

        Raises MachineUnavailable.
        """

    async def list_member_names(self, *, deadline_seconds: float) -> frozenset[str]:
        """The node names of all members that discovery knows. Raises MachineUnavailable."""

    async def fetch_cluster_networks(self, *, deadline_seconds: float) -> MachineConfigNetworks:
        """The pod and service networks, as a control plane has them. Raises MachineUnavailable."""

    def problem(self) -> str:
        """Why no machine can be asked, or soon not any more; "" if all is well."""

    def certificate_expires_at(self) -> datetime | None:
        """When our certificate expires; None without one."""

    async def close(self) -> None:
        """Close every connection."""


def open_talos(dependencies: Dependencies, settings: MetadataSettings) -> TalosApi:
    """The Talos API as the settings say. Nothing is read or dialled before the first question."""
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
    """How many looks may begin at once. One that takes long gives its place back, or machines that hang
    would starve the healthy.
    """

    def __init__(self, places: int, *, slow_seconds: float = 1.0) -> None:
        self._places = asyncio.Semaphore(places)
        self._slow_seconds = slow_seconds

    @property
    def is_full(self) -> bool:
        """Whether someone would have to wait."""
        return self._places.locked()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """A place, for `slow_seconds` at most; what runs inside may take longer."""
        await self._places.acquire()
        returned = False

        def give_back() -> None:
            nonlocal returned
            if not returned:
                returned = True
                self._places.release()

        timer = asyncio.get_running_loop().call_later(self._slow_seconds, give_back)
        try:
            yield
        finally:
            timer.cancel()
            give_back()


class QueryResult(NamedTuple):
    """What one look gave."""

    facts: MachineFacts
    inventory: InventoryResponse


class QueryFailure(NamedTuple):
    """Why one look gave nothing, and who answered all the same."""

    fault: MachineFault
    rejected: tuple[MachineFacts, ...]  # of the machines that were not believed to be the one


async def query_in_turn(
    talos: TalosClient,
    addresses: tuple[str, ...],
    *,
    parts: Collection[Part],
    deadline_seconds: float,
    reject: Callable[[MachineFacts], MachineFault | None],
) -> QueryResult | MachineFault:
    """What the first machine says that answers and has nothing against it, with those parts of its inventory;
    else the first fault, which tells of the others too. Each address has the deadline for itself.
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
    """As `query_in_turn`, and who answered where the one was expected.

    The facts also tell who answers at the announced addresses that the machine does not list.
    """
    faults: list[MachineFault] = []
    others: list[MachineFacts] = []
    for index, address in enumerate(addresses):
        found = await query_address(talos, address, parts=parts, deadline_seconds=deadline_seconds)
        if isinstance(found, MachineFault):
            faults.append(found)
            continue
        fault = reject(found.facts)
        if fault is None:
            further = list_addresses_to_dial(found.facts, addresses[index + 1 :])
            answers = await _query_others(talos, further, deadline_seconds)
            return found._replace(facts=add_answers(found.facts, (*others, *answers)))
        faults.append(fault)
        others.append(found.facts)
    return QueryFailure(_merge_faults(addresses, faults), tuple(others))


async def _query_others(
    talos: TalosClient, addresses: tuple[str, ...], deadline_seconds: float
) -> list[MachineFacts]:
    """What the machines say that answer at these addresses; silence and errors say nothing."""
    asking = (query_address(talos, each, parts=(), deadline_seconds=deadline_seconds) for each in addresses)
    return [found.facts for found in await asyncio.gather(*asking) if isinstance(found, QueryResult)]


async def query_address(
    talos: TalosClient, address: str, *, parts: Collection[Part], deadline_seconds: float
) -> QueryResult | MachineFault:
    """What the machine at that address says, with those parts of its inventory."""
    try:
        return await _query(talos, address, parts, deadline_seconds)
    except MachineUnavailable as unavailable:
        return unavailable.fault
    except Exception as error:
        # Answers are hostile input: what breaks our reading of one must not end the Node's only task.
        log.exception("a look ended in a way nobody foresaw", extra={"address": address})
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
        return MachineFault(kind="internal", step="look", message=text)


async def _query(
    talos: TalosClient, address: str, parts: Collection[Part], deadline_seconds: float
) -> QueryResult:
    """Both at once. Raises MachineUnavailable, and whatever a defect leads to."""
    if not parts:
        return QueryResult(
            await talos.fetch_facts(address, deadline_seconds=deadline_seconds), InventoryResponse()
        )
    asking = asyncio.create_task(talos.fetch_inventory(address, parts, deadline_seconds=deadline_seconds))
    try:
        facts = await talos.fetch_facts(address, deadline_seconds=deadline_seconds)
        return QueryResult(facts, await asking)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


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
