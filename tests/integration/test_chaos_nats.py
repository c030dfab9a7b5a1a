"""What the faults of NATS do to a cluster of three servers with keys: a stream outlives each of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chaos.nats_servers import NatsServers, NoLeader
from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusError
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import subject_of
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import MAX_BYTES, make_event, wait_until
from tests.integration.conftest import ConnectBus

ELECTION_SECONDS = 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsServers]:
    async with NatsServers.start(tmp_path / "nats", is_cluster=True) as started:
        yield started


async def connect(connect_bus: ConnectBus, cluster: NatsServers, service: str) -> NatsBus:
    assert cluster.keys is not None
    return await connect_bus(
        service,
        servers=tuple(f"tls://{host}:{cluster.port}" for host in cluster.hosts),
        nkey_seed_file=cluster.keys.seed_file(service),
        tls_ca_file=cluster.keys.ca_file,
        stream_replicas=3,
    )


async def wait_until_provisioned(watcher: NatsBus) -> None:
    async def provision() -> bool:
        try:
            await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
        except BusError:
            return False  # the servers have not elected a leader yet
        return True

    await wait_until(provision, "the stream exists", ELECTION_SECONDS)


async def wait_until_published(metadata: NatsBus, name: str) -> None:
    async def publish() -> bool:
        try:
            await metadata.publish(make_event(name))
        except BusError:
            return False
        return True

    await wait_until(publish, f"{name} is published", ELECTION_SECONDS)


async def wait_for_leader(cluster: NatsServers, *, other_than: NatsServer | None = None) -> NatsServer:
    found: list[NatsServer] = []

    async def is_found() -> bool:
        try:
            found[:] = [await cluster.find_leader()]
        except NoLeader:
            return False
        return found[0] is not other_than

    await wait_until(is_found, "the stream has a leader", ELECTION_SECONDS)
    return found[0]


async def test_a_killed_or_paused_leader_is_replaced_and_a_wiped_follower_gets_the_stream_again(
    cluster: NatsServers, connect_bus: ConnectBus
):
    watcher = await connect(connect_bus, cluster, "watcher")
    with pytest.raises(NoLeader):
        await cluster.find_leader()
    await wait_until_provisioned(watcher)
    metadata = await connect(connect_bus, cluster, "metadata")
    created = watcher.stream_id

    killed = await wait_for_leader(cluster)
    await killed.kill()
    await wait_until_published(metadata, "leader-killed")
    await wait_for_leader(cluster, other_than=killed)
    await cluster.restart()
    assert all(server.child.is_running for server in cluster.servers)

    paused = await wait_for_leader(cluster)
    paused.pause()
    await wait_until_published(metadata, "leader-paused")
    await wait_for_leader(cluster, other_than=paused)
    cluster.resume()

    leader = await wait_for_leader(cluster)
    wiped = next(server for server in cluster.servers if server is not leader)
    await wiped.wipe()
    await wait_until(lambda: any(wiped.store.rglob("*.blk")), "the follower has the stream", ELECTION_SECONDS)
    await wait_until_published(metadata, "follower-wiped")
    for name in ("leader-killed", "leader-paused", "follower-wiped"):
        last = await watcher.get_last(subject_of(make_event(name)))
        assert last is not None
        assert last.event == make_event(name)
    assert watcher.stream_id == created


async def test_servers_that_all_lose_their_data_start_without_the_stream(
    cluster: NatsServers, connect_bus: ConnectBus
):
    watcher = await connect(connect_bus, cluster, "watcher")
    await wait_until_provisioned(watcher)
    created = watcher.stream_id
    await cluster.wipe()
    await wait_until_provisioned(watcher)
    assert watcher.stream_id != created
