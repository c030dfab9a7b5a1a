"""What faults do to a nats-server, and to the three of an installation, whose stream lies on all of them."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusError, StreamFull
from libs.common.contract.events import Leading
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import subject_of
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import MAX_BYTES, make_event, publish_with_headroom, wait_until
from tests.chaos.nats_servers import NatsServers, NoLeader
from tests.integration.conftest import IMPATIENT, ConnectBus

# Some servers do not answer.
SILENT = pytest.mark.parametrize("timing", [IMPATIENT], ids=["impatient"])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsServers]:
    async with NatsServers.start(tmp_path / "nats", is_cluster=True) as started:
        yield started


async def connect(connect_bus: ConnectBus, cluster: NatsServers, service: str) -> NatsBus:
    keys = cluster.keys
    identity = {"nkey_seed_file": keys.seed_file(service), "tls_ca_file": keys.ca_file} if keys else {}
    return await connect_bus(
        service,
        servers=tuple(f"{cluster.scheme}://{host}:{cluster.port}" for host in cluster.hosts),
        stream_replicas=len(cluster.servers),
        **identity,
    )


async def wait_until_provisioned(watcher: NatsBus, *, max_bytes: int = MAX_BYTES) -> None:
    async def provision() -> bool:
        try:
            await watcher.provision(DURABLES, max_bytes=max_bytes)
        except BusError:
            return False  # the servers have not elected a leader yet
        return True

    await wait_until(provision, "the stream exists")


async def wait_until_published(metadata: NatsBus, name: str) -> None:
    async def publish() -> bool:
        try:
            await metadata.publish(make_event(name))
        except BusError:
            return False
        return True

    await wait_until(publish, f"{name} is published")


async def wait_for_leader(cluster: NatsServers, *, other_than: NatsServer | None = None) -> NatsServer:
    found: list[NatsServer] = []

    async def is_found() -> bool:
        try:
            found[:] = [await cluster.find_leader()]
        except NoLeader:
            return False
        return found[0] is not other_than

    await wait_until(is_found, "the stream has a leader")
    return found[0]


@SILENT
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
    paused.child.pause()
    await wait_until_published(metadata, "leader-paused")
    await wait_for_leader(cluster, other_than=paused)
    cluster.resume()

    leader = await wait_for_leader(cluster)
    wiped = next(server for server in cluster.servers if server is not leader)
    await wiped.wipe()
    await wait_until(lambda: any(wiped.store.rglob("*.blk")), "the follower has the stream")
    await wait_until_published(metadata, "follower-wiped")
    for name in ("leader-killed", "leader-paused", "follower-wiped"):
        last = await watcher.get_last(subject_of(make_event(name)))
        assert last is not None
        assert last.event == make_event(name)
    assert watcher.stream_id == created
    assert not [log for log in read_logs(cluster) if "Violation" in log]


async def test_a_full_replicated_stream_accepts_a_leading_while_the_headroom_is_open(
    cluster: NatsServers, connect_bus: ConnectBus
):
    watcher = await connect(connect_bus, cluster, "watcher")
    await wait_until_provisioned(watcher, max_bytes=100_000)
    metadata = await connect(connect_bus, cluster, "metadata")
    await wait_until_published(metadata, "first")
    for size in (10_000, 1):
        with suppress(StreamFull):
            for n in range(10_000):
                await metadata.publish(make_event(f"web-{size}-{n}", uid="u" * size))
    leading = Leading(stream_id=watcher.stream_id, epoch=1, holder="host-a" * 30)
    for _ in range(3):  # a replacement of the same size is refused, too
        await publish_with_headroom(leading, watcher, other=metadata)
    assert (await watcher.stats()).max_bytes == 100_000


def read_logs(cluster: NatsServers) -> list[str]:
    return [server.child.log.read_text() for server in cluster.servers]


async def is_rejected(metadata: NatsBus) -> bool:
    try:
        await metadata.publish(make_event("rejected", uid=token_hex(1000)))
    except BusError:
        return True
    return False


@SILENT
async def test_one_server_with_a_full_disk_accepts_nothing_until_it_is_restarted_with_room(
    connect_bus: ConnectBus, tmp_path: Path
):
    async with NatsServers.start(tmp_path / "full", is_cluster=False) as servers:
        watcher = await connect(connect_bus, servers, "watcher")
        await wait_until_provisioned(watcher)
        metadata = await connect(connect_bus, servers, "metadata")
        await wait_until_published(metadata, "before")
        servers.fill()
        await wait_until(lambda: is_rejected(metadata), "the disk is full")
        assert "no space left on device" in read_logs(servers)[0]
        servers.make_room()
        assert await is_rejected(metadata), "the server does not try again by itself"
        await servers.restart_unhealthy()
        await wait_until_published(metadata, "after")
        assert await watcher.get_last(subject_of(make_event("before"))) is not None
