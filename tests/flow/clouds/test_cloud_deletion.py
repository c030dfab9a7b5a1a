"""cloud and lifecycle together, from an instance that its cloud deletes to the Node that goes."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from libs.common.contract.instances import read_instance_record
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bus_actors import NATS, wait_until
from tests.bus_server import run_service
from tests.contract.clouds.accounts import CloudAccount, open_hcloud, open_openstack, open_thalassa
from tests.lifecycle_actors import LifecycleFlow, make_answering

STEP_MINUTES = 5.5
BY_CLOUD = "the cloud itself reports its deletion"


class Deletion(NamedTuple):
    """How an instance ends, and what proves it."""

    open_account: Callable[[], AbstractAsyncContextManager[Any]]
    delete: Callable[[Any, str], None]
    proof: str


FROM_HETZNER = Deletion(
    open_hcloud, lambda account, machine: account.remove_machine(machine), "finds anchor network/"
)
FROM_NOVA = Deletion(
    open_openstack, lambda account, machine: account.remove_machine(machine), "finds anchor network/"
)
OTHERS = {
    "nova reports the deletion": Deletion(
        open_openstack, lambda account, machine: account.delete_machine(machine), BY_CLOUD
    ),
    "nova has nothing more of it": FROM_NOVA,
    "thalassa reports the deletion": Deletion(
        open_thalassa, lambda account, machine: account.organisation.set_state(machine, "deleted"), BY_CLOUD
    ),
    "thalassa has nothing more of it": Deletion(
        open_thalassa, lambda account, machine: account.remove_machine(machine), "finds anchor vpc/"
    ),
}


@asynccontextmanager
async def run_cloud(flow: LifecycleFlow, account: CloudAccount, folder: Path) -> AsyncIterator[CloudService]:
    """The service of one account, which asks only in `look`."""
    settings = CloudSettings(
        accounts=(f"{account.provider}/prod",),
        credential_file=account.write_credential(folder),
        endpoint=account.endpoint,
        step_seconds=3600.0,
        requests_per_minute=10_000,
    )
    async with run_service(
        flow.buses, "cloud-prod", lambda parts: CloudService(parts, settings), kube=None, clock=flow.clock
    ) as service:
        yield service


async def look(flow: LifecycleFlow, service: CloudService, *, minutes: float = STEP_MINUTES) -> None:
    flow.clock.advance(60 * minutes)
    await flow.publish_leading()
    await service.poller.step()
    await service.poller.step_round()
    await service.reports.publish_due()


async def is_recorded(flow: LifecycleFlow, name: str) -> bool:
    node = await flow.get_node(name)
    return node is not None and read_instance_record(node) is not None


async def is_known_with_record(service: CloudService, name: str) -> bool:
    node = service.nodes.get(name)
    return node is not None and node.record is not None


async def add_recorded_nodes(
    flow: LifecycleFlow, service: CloudService, provider_ids: dict[str, str]
) -> None:
    """Nodes whose machines have been silent since the account has shown their instances alive."""
    for number, (name, provider_id) in enumerate(provider_ids.items()):
        uuid = f"{number:08x}-7b9d-4e60-8f12-0a1b2c3d4e5f"
        node = await flow.add_lost_node(name, provider_id=provider_id, uuid=uuid)
        await flow.publish(make_answering(node, stream_id=flow.stream_id, provider_id=provider_id))
    await wait_until(lambda: len(service.nodes) == len(provider_ids), "all Nodes are known")
    await look(flow, service, minutes=0.1)
    for name in provider_ids:
        await wait_until(partial(is_recorded, flow, name), f"the instance of {name} is recorded")
        node = await flow.observe_node(name)
        await wait_until(partial(is_known_with_record, service, name), "the record is known")
        await flow.publish_poll_result(node)


@pytest.mark.parametrize(
    ("kind", "count", "deletion"),
    [
        *[("memory", 1, FROM_HETZNER), ("memory", 30, FROM_HETZNER), (NATS, 2, FROM_HETZNER)],
        *[("memory", 1, deletion) for deletion in OTHERS.values()],
    ],
    ids=["one server", "a pool of 30", "two servers", *OTHERS],
)
async def test_a_pool_that_its_cloud_deletes_to_zero_takes_its_nodes_along(
    kind: str, count: int, deletion: Deletion, tmp_path: Path
):
    async with LifecycleFlow.open(kind, tmp_path) as flow, deletion.open_account() as account:
        account.add_anchor()
        machines = {f"web-{number}": account.add_machine(f"web-{number}") for number in range(count)}
        async with run_cloud(flow, account, tmp_path) as service:
            async with flow.run_lifecycle():
                provider_ids = {name: f"{account.prefix}{machine}" for name, machine in machines.items()}
                await add_recorded_nodes(flow, service, provider_ids)
                for machine in machines.values():
                    deletion.delete(account, machine)
                await look(flow, service)
                for name in machines:
                    await flow.wait_for_decision(name, "kept", "1 of 3")
            # another lifecycle collects all evidence again
            async with flow.run_lifecycle(identity="second"):
                for _ in range(3):
                    await look(flow, service)
                for name in machines:
                    await flow.wait_for_decision(name, "deleted", deletion.proof)
        for name in machines:
            assert await flow.get_node(name) is None


async def test_the_credential_of_another_region_proves_nothing(tmp_path: Path):
    async with (
        LifecycleFlow.open("memory", tmp_path) as flow,
        open_openstack("RegionOne", "south") as account,
    ):
        account.add_anchor()
        machine = account.add_machine("web-1")
        async with run_cloud(flow, account, tmp_path) as service, flow.run_lifecycle():
            await add_recorded_nodes(flow, service, {"web-1": f"{account.prefix}{machine}"})
            account.write_credential(tmp_path, region="south")
            for _ in range(4):
                await look(flow, service)
            await flow.wait_for_decision("web-1", "kept", "finds neither it nor the witness")
            assert await flow.get_node("web-1") is not None
