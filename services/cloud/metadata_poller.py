"""Asks the cloud for the instances that machines name, so that the labeler can complete their metadata."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from libs.clouds.instances import Deleted, Instance, NotFound, Unanswered
from services.cloud.account_poller import AccountPoller
from services.cloud.core.judge_round import Query
from services.cloud.core.named_machines import NamedMachine, NamedMachines, build_metadata

_MAX_BY_ID: Final = 20  # in one step


@dataclass(eq=False, kw_only=True)
class MetadataPoller:
    """Asks by exact id, with the requests of the account's poller."""

    poller: AccountPoller
    machines: NamedMachines
    network: str  # the private network in which machines are reached; "" if it is none

    def __post_init__(self) -> None:
        self._unlisted: set[str] = set()  # names of Nodes that waited for the last list, which lacked them

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.sleep(self.poller.step_seconds)
            await self.step()

    async def step(self) -> None:
        """Ask for the instances that are due."""
        if self.poller.why_paused():
            return
        due = self.machines.select_due(self.poller.monotonic())
        if self.poller.schedule.is_list_cheaper(sum(each.name not in self._unlisted for each in due)):
            await self.poller.list_all()
        for machine in self.machines.select_due(self.poller.monotonic())[:_MAX_BY_ID]:
            before = self.poller.cloud.credential
            query, found = await self.poller.ask(self.poller.cloud.get_instance(machine.instance_id))
            if query.credential != before:
                return  # the next step asks with the new credential
            await self._report(machine, query, found)

    async def on_listed(self, query: Query, by_id: Mapping[str, Instance]) -> None:
        """Report the instances of a complete list. One that is absent is asked for by its id."""
        for machine in self.machines.list_named(frozenset(by_id)):
            await self._report(machine, query, by_id[machine.instance_id])
        self._unlisted = {each.name for each in self.machines.select_due(self.poller.monotonic())}

    async def _report(
        self, machine: NamedMachine, query: Query, found: Instance | Deleted | NotFound | Unanswered
    ) -> None:
        event = build_metadata(
            machine,
            found,
            query,
            account=self.poller.account,
            stream_id=self.poller.stream_id(),
            network=self.network,
        )
        if self.machines.is_current(event) and self.machines.record(machine, event, self.poller.monotonic()):
            await self.poller.publish(event)
