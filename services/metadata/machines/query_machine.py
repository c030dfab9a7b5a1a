"""Queries the machine of a Node, one address after the other. A hanging machine does not block others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.contract.machine import MachineFacts, MachineFault
from libs.talos.api import InventoryResponse, MachineUnavailable, Part
from services.metadata.core.dial_targets import add_answers, list_addresses_to_dial
from services.metadata.machines.talos_client import TalosClient

log = logging.getLogger(__name__)

_MAX_MESSAGE_CHARS: Final = 500  # characters of an error in a fault


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
    with_system: bool = True,
) -> QueryResult | QueryFailure:
    """Query the addresses in order and return the first result that `reject` accepts, with those parts.

    The facts also contain the answers at announced addresses that the machine does not list. If there is no
    result, return the first fault, with the messages of the others. Each query has its own deadline.

    A machine that `reject` rejects is queried again with SystemInformation: its systemUUID may identify it.
    """
    faults: list[MachineFault] = []
    rejected: list[MachineFacts] = []
    for index, address in enumerate(addresses):
        query = partial(query_address, talos, address, parts=parts, deadline_seconds=deadline_seconds)
        found = await query(with_system=with_system)
        # All facts again, not only the missing ones: another machine may have the address by now.
        if not with_system and _must_recognize(found, reject):
            found = await query(with_system=True)
        if isinstance(found, MachineFault):
            faults.append(found)
            continue
        fault = reject(found.facts)
        if fault is None:
            further = list_addresses_to_dial(found.facts, addresses[index + 1 :])
            answers = await query_each(talos, further, deadline_seconds=deadline_seconds, with_system=False)
            rejected += [facts for facts in answers.values() if isinstance(facts, MachineFacts)]
            return found._replace(facts=add_answers(found.facts, rejected))
        faults.append(fault)
        rejected.append(found.facts)
    return QueryFailure(_merge_faults(addresses, faults), tuple(rejected))


def _must_recognize(
    found: QueryResult | MachineFault, reject: Callable[[MachineFacts], MachineFault | None]
) -> bool:
    """Return whether the systemUUID may identify the machine, which has another node name."""
    if isinstance(found, MachineFault) or not found.facts.node_name:
        return False
    return reject(found.facts) is not None


async def query_each(
    talos: TalosClient, addresses: tuple[str, ...], *, deadline_seconds: float, with_system: bool
) -> dict[str, MachineFacts | MachineFault]:
    """Return the facts of the machine at each of these addresses, or a fault, which proves nothing."""
    query = partial(
        query_address, talos, parts=(), deadline_seconds=deadline_seconds, with_system=with_system
    )
    answers = await asyncio.gather(*map(query, addresses))
    facts = (found.facts if isinstance(found, QueryResult) else found for found in answers)
    return dict(zip(addresses, facts, strict=True))


async def query_address(
    talos: TalosClient,
    address: str,
    *,
    parts: Collection[Part],
    deadline_seconds: float,
    with_system: bool = True,
) -> QueryResult | MachineFault:
    """Return the facts of the machine at that address with those parts of its inventory, or a fault."""
    try:
        facts = talos.fetch_facts(address, deadline_seconds=deadline_seconds, with_system=with_system)
        if not parts:
            return QueryResult(await facts, InventoryResponse())
        inventory = talos.fetch_inventory(address, parts, deadline_seconds=deadline_seconds)
        return await _gather(facts, inventory)
    except MachineUnavailable as unavailable:
        return unavailable.fault
    except Exception as error:
        # A response is hostile input: one that breaks our parser must not end the Node's only task.
        log.exception("unexpected error, query failed", extra={"address": address})
        text = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE_CHARS]
        return MachineFault(kind="internal", step="look", message=text)


async def _gather(
    facts: Coroutine[Any, Any, MachineFacts], inventory: Coroutine[Any, Any, InventoryResponse]
) -> QueryResult:
    """Fetch facts and inventory concurrently. Raises MachineUnavailable, or any error of a defect."""
    task = asyncio.create_task(inventory)
    try:
        return QueryResult(await facts, await task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _merge_faults(addresses: tuple[str, ...], faults: list[MachineFault]) -> MachineFault:
    first, *rest = faults
    more = "".join(
        f"; and at {address}: {fault.message}"
        for address, fault in zip(addresses[1:], rest, strict=True)
        if fault.message != first.message
    )
    return msgspec.structs.replace(first, message=first.message + more)


_SLOW_SECONDS: Final = 1.0  # a query that takes longer gives its slot to others


class QuerySlots:
    """Limits how many machines are queried at once. It does not limit Talos calls.

    A poll or a dial back takes one slot, whatever number of Talos calls it makes. It releases the slot early
    if it is slow, so that hanging machines do not block healthy ones.
    """

    def __init__(self, places: int) -> None:
        self._semaphore = asyncio.Semaphore(places)

    @property
    def is_full(self) -> bool:
        """Whether the next poll or dial back must wait for a slot."""
        return self._semaphore.locked()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Hold a slot for a second at most. The body may take longer."""
        await self._semaphore.acquire()
        is_released = False

        def release() -> None:
            nonlocal is_released
            if not is_released:
                is_released = True
                self._semaphore.release()

        timer = asyncio.get_running_loop().call_later(_SLOW_SECONDS, release)
        try:
            yield
        finally:
            timer.cancel()
            release()
