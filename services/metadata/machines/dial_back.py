"""Dials addresses that two Nodes claim. The Node whose machine answers there by its name has the address."""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Final

from services.metadata.core.contested_addresses import MAX_DIALLED
from services.metadata.machines.query_machine import QueryResult, QuerySlots, query_address
from services.metadata.machines.talos_client import TalosClient

log = logging.getLogger(__name__)

ANSWER_TTL_SECONDS: Final = 60.0
# Colluding Nodes can contest any address: their dials must not take all query slots.
MAX_CONCURRENT_DIALS: Final = 8
_MAX_CACHED: Final = 10_000  # answers; beyond it the oldest is dropped


@dataclass(eq=False)
class DialBackCache:
    """Caches the node name that answers at an address. It dials each address at most once a minute."""

    talos: TalosClient
    slots: QuerySlots
    _: KW_ONLY
    deadline_seconds: float
    monotonic: Callable[[], float]

    def __post_init__(self) -> None:
        self._dial_slots = asyncio.Semaphore(MAX_CONCURRENT_DIALS)
        self._answers: dict[str, tuple[float, asyncio.Task[str]]] = {}
        self._pending: dict[str, set[asyncio.Task[str]]] = {}  # node name -> its dials

    async def filter_answering(self, name: str, addresses: tuple[str, ...]) -> frozenset[str]:
        """Return those addresses at which the machine of that node name answers.

        Each Node has a limit of concurrent dials. Its further dials wait; those of other Nodes do not.
        """
        tasks = [await self._get_or_dial(name, address) for address in addresses]
        names = await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        return frozenset(address for address, found in zip(addresses, names, strict=True) if found == name)

    async def close(self) -> None:
        """Cancel all dials."""
        tasks = [task for _, task in self._answers.values()]
        tasks += [task for of_node in self._pending.values() for task in of_node]
        self._answers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _get_or_dial(self, name: str, address: str) -> "asyncio.Task[str]":
        while (task := self._get_fresh(address)) is None:
            others = {task for task in self._pending.get(name, ()) if not task.done()}
            if len(others) < MAX_DIALLED:
                return self._dial(name, address)
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        return task

    def _get_fresh(self, address: str) -> "asyncio.Task[str] | None":
        began, task = self._answers.get(address, (-math.inf, None))
        return task if self.monotonic() - began < ANSWER_TTL_SECONDS else None

    def _dial(self, name: str, address: str) -> "asyncio.Task[str]":
        task = asyncio.create_task(self._node_name_at(address), name=f"dial {address}")
        self._pending.setdefault(name, set()).add(task)
        task.add_done_callback(partial(self._on_dialled, name))
        self._answers.pop(address, None)
        self._answers[address] = (self.monotonic(), task)
        if len(self._answers) > _MAX_CACHED:
            self._drop_oldest()
        return task

    def _on_dialled(self, name: str, task: "asyncio.Task[str]") -> None:
        self._pending[name].discard(task)
        if not self._pending[name]:
            del self._pending[name]

    def _drop_oldest(self) -> None:
        address = next((one for one, (_, task) in self._answers.items() if task.done()), None)
        if address is not None:
            del self._answers[address]

    async def _node_name_at(self, address: str) -> str:
        """Return the node name that the machine at the address reports; "" if none answers."""
        async with self._dial_slots, self.slots.acquire():
            found = await query_address(
                self.talos, address, parts=(), deadline_seconds=self.deadline_seconds, with_system=False
            )
        if isinstance(found, QueryResult):
            return found.facts.node_name
        fields = {"address": address, "reason": found.message}
        log.debug("no machine answers at a contested address", extra=fields)
        return ""
