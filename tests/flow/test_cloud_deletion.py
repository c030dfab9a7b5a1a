"""cloud and lifecycle together, from a server that its cloud deletes to the Node that goes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from libs.common.contract.instances import read_instance_record
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bus_actors import NATS, wait_until
from tests.bus_server import run_service
from tests.lifecycle_actors import LifecycleFlow, make_answering

TOKEN = "a" * 64
STEP_MINUTES = 5.5


@asynccontextmanager
async def run_cloud(flow: LifecycleFlow, endpoint: str, token: Path) -> AsyncIterator[CloudService]:
    """The service of one account, which asks only in `look`."""
    settings = CloudSettings(
        accounts=("hcloud/prod",), credential_file=token, endpoint=endpoint, step_seconds=3600.0,
        requests_per_minute=10_000,
    )  # fmt: skip
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


@pytest.mark.parametrize(("kind", "count"), [("memory", 1), ("memory", 30), (NATS, 2)])
async def test_a_pool_that_its_cloud_deletes_to_zero_takes_its_nodes_along(
    kind: str, count: int, tmp_path: Path
):
    token = tmp_path / "token"
    token.write_text(TOKEN)
    async with LifecycleFlow.open(kind, tmp_path) as flow, SimHcloudServer.start(SimHcloud()) as cloud:
        project = cloud.cloud.add_project(TOKEN)
        project.add_network()
        servers = {f"web-{number}": project.add_server(f"web-{number}") for number in range(count)}
        async with run_cloud(flow, cloud.endpoint, token) as service:
            async with flow.run_lifecycle():
                for number, (name, server) in enumerate(servers.items()):
                    uuid = f"{number:08x}-7b9d-4e60-8f12-0a1b2c3d4e5f"
                    node = await flow.add_lost_node(name, provider_id=f"hcloud://{server}", uuid=uuid)
                    await flow.publish(
                        make_answering(node, stream_id=flow.stream_id, provider_id=f"hcloud://{server}")
                    )
                await wait_until(lambda: len(service.nodes) == count, "all Nodes are known")
                await look(flow, service, minutes=0.1)
                await look(flow, service, minutes=0.1)  # more than twenty new Nodes wait for the list
                for name in servers:
                    await wait_until(partial(is_recorded, flow, name), f"the instance of {name} is recorded")
                    node = await flow.observe_node(name)
                    await wait_until(partial(is_known_with_record, service, name), "the record is known")
                    await flow.publish_poll_result(node)
                for server in servers.values():
                    project.remove("servers", server)
                await look(flow, service)
                for name in servers:
                    await flow.wait_for_decision(name, "kept", "1 of 3")
            # another lifecycle collects all evidence again
            async with flow.run_lifecycle(identity="second"):
                for _ in range(3):
                    await look(flow, service)
                for name in servers:
                    await flow.wait_for_decision(name, "deleted", "and finds anchor network/")
        for name in servers:
            assert await flow.get_node(name) is None
