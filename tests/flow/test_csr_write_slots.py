"""csr judges a request once more when a write slot is free: the world may have changed while it waited."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from libs.common.cloud_config.document import parse_cloud_config
from libs.common.contract.machine import AddressStatus
from libs.common.observability import metrics
from services.csr.approval_writer import MAX_CONCURRENT_WRITES
from services.csr.service import CsrService
from tests.builders import make_facts, make_node
from tests.bus_actors import wait_until
from tests.csr_actors import CsrServiceFlow, make_serving_request

HONEST = make_facts()
MINE = AddressStatus(address="10.0.0.5/24", link="eth0", flags=128)


class Queue:
    """A csr whose write slots are all taken, and csr-1, which is judged valid and waits for a slot."""

    def __init__(self, flow: CsrServiceFlow, csr: CsrService) -> None:
        self.flow = flow
        self.csr = csr
        self._free = asyncio.Event()

    async def fill(self) -> None:
        for number in range(MAX_CONCURRENT_WRITES):
            name, ip = f"busy-{number}", f"10.0.1.{number}"
            self.flow.kube.stalled[f"csr-{name}"] = self._free
            await self.flow.join_and_file(f"csr-{name}", name, ip)
        await wait_until(lambda: len(self.flow.kube.patched) == MAX_CONCURRENT_WRITES, "every slot is taken")
        await self.flow.enrich(make_node(), HONEST)
        await self.flow.file_and_enrich(make_serving_request(), facts=HONEST, node_uid="uid-1")
        in_flight = metrics.HANDLING_IN_FLIGHT.labels("csr")
        await wait_until(lambda: in_flight._value.get() > MAX_CONCURRENT_WRITES, "csr-1 waits for a slot")

    async def heard(self) -> None:
        """Return once csr has received every event."""
        sequence = await self.flow.publish_node(make_node("last-1", uid="uid-last", ip=""))
        await wait_until(lambda: self.csr._flow.cache.sequence >= sequence, "it is heard")

    def free(self) -> None:
        self._free.set()


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[Queue]:
    file = parse_cloud_config(
        "ownership: {nodeSelector: [{matchExpressions: [{key: team, operator: NotIn, values: [b]}]}]}", "f"
    )
    async with CsrServiceFlow.open("memory", tmp_path) as flow, flow.run_csr(file=file) as csr:
        queue = Queue(flow, csr)
        await queue.fill()
        yield queue
        queue.free()


async def another_machine_answers_there(queue: Queue) -> None:
    theirs = make_facts(node_name="db-1", node_ip="10.0.0.5", addresses=(MINE,))
    await queue.flow.enrich(make_node("db-1", uid="uid-db", ip="10.0.0.5"), theirs)


async def the_node_is_foreign(queue: Queue) -> None:
    await queue.flow.publish_node(make_node(labels={"team": "b"}))


async def the_address_moves(queue: Queue) -> None:
    """Its own machine no longer has the address, and another Node's machine answers there."""
    await another_machine_answers_there(queue)
    without = make_facts(addresses=())
    await queue.flow.enrich_request(make_serving_request(), facts=without, node_uid="uid-1")


async def nothing(queue: Queue) -> None:
    """The verdict stands."""


# csr-1 attests 10.0.0.5 as the address at which its machine answers, or only as one that it has.
CHANGES: dict[str, tuple[Callable[[Queue], Awaitable[None]], str]] = {
    "another machine answers at the address": (another_machine_answers_there, "waiting"),
    "the Node is another controller's": (the_node_is_foreign, "not-ours"),
    "its address moves to another machine": (the_address_moves, "denied"),
    "nothing": (nothing, "approved"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_request_is_written_by_the_verdict_of_the_moment_at_which_a_slot_is_free(
    change: str, queue: Queue
):
    happen, outcome = CHANGES[change]
    await happen(queue)
    await queue.heard()
    queue.free()
    await queue.flow.wait_for_decision("csr-1", outcome)
    written = {"denied": "Denied", "approved": "Approved"}.get(outcome, "")
    assert queue.flow.kube.get_decision("csr-1") == written
    assert queue.flow.kube.patched.count("csr-1") == bool(written)
