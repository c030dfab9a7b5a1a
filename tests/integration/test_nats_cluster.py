"""Three servers, each with the bootstrap's configuration: one cluster, whose members prove who they are."""

import sysconfig
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusError, StreamFull
from libs.common.contract.events import EnrichedNodeGone, Leading
from libs.common.contract.services import DURABLES
from libs.common.contract.subjects import subject_of
from libs.testbed.child_process import ChildProcess
from libs.testbed.ports import allocate_port
from services.bootstrap.key_stores import DirectoryKeyStore
from services.bootstrap.resource_names import ResourceNames
from services.bootstrap.server_config import NatsServerConfig
from services.bootstrap.server_reconciler import ServerSpec, ensure_installation_keys, write_server_files
from tests.bus_actors import MAX_BYTES, make_event, publish_with_headroom, wait_until
from tests.integration.conftest import ConnectBus

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # one port for all, as in a StatefulSet
NAMES = ResourceNames(namespace="kube-system", prefix="ccm")
STORE_BYTES = 2**28
PROGRAM = Path(sysconfig.get_path("scripts")) / "nats-server"


class Cluster:
    """Servers whose keys and authority are in one folder, as they are in one namespace."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.keys = run_dir / "keys"
        self.servers: dict[str, ChildProcess] = {}
        self._route_port, self._client_port = allocate_port(), allocate_port()

    async def prepare(self, host: str, keys: Path) -> Path:
        """What the init container of one pod does; where it wrote."""
        out = self.run_dir / host
        server = NatsServerConfig(
            name=f"nats-{host}",
            listen_address=host,
            client_port=self._client_port,
            route_port=self._route_port,
            monitor_port=0,
            routes=HOSTS,
            files_dir=out,
            store_dir=out / "store",
            store_bytes=STORE_BYTES,
        )
        wanted = ServerSpec(
            server=server, tls_names=(*NAMES.list_hosts(), host), certificate_lifetime=timedelta(days=365)
        )
        now = datetime.now(UTC)
        write_server_files(
            out, wanted, await ensure_installation_keys(DirectoryKeyStore(keys), NAMES, now), now
        )
        return out

    async def start(self, host: str, *, keys: Path | None = None) -> None:
        """One more server, which says by its keys to which installation it belongs."""
        out = await self.prepare(host, keys or self.keys)
        self.servers[host] = ChildProcess.start("nats-server", [PROGRAM, "-c", "nats.conf"], out)

    def options(self, user: str, *hosts: str) -> dict[str, Any]:
        """The options of `connect_bus`."""
        return {
            "servers": tuple(f"tls://{host}:{self._client_port}" for host in hosts),
            "nkey_seed_file": self.keys / f"ccm-nats-{user}" / "seed.nk",
            "tls_ca_file": self.keys / "ca.crt",
        }

    def log(self, host: str) -> str:
        return self.servers[host].log.read_text()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path / "cluster")
    try:
        yield made
    finally:
        for child in made.servers.values():
            await child.kill()


async def test_the_stream_lies_on_all_three_however_large_it_may_be_and_one_may_be_lost(
    cluster: Cluster, connect_bus: ConnectBus
):
    for host in HOSTS:
        await cluster.start(host)
    watcher = await connect_bus("watcher", **cluster.options("watcher", *HOSTS), stream_replicas=3)

    async def provisioned() -> bool:
        try:
            await watcher.provision(DURABLES, max_bytes=STORE_BYTES * 9 // 10)
        except BusError:
            return False  # they have not chosen a leader yet
        return True

    await wait_until(provisioned, "\n".join(watcher.problems()), 60)
    metadata = await connect_bus("metadata", **cluster.options("metadata", *HOSTS[1:]))
    csr = await connect_bus("csr", **cluster.options("csr", *HOSTS[1:]))
    await says_and_hears(metadata, csr, make_event("before"))
    await cluster.servers[HOSTS[0]].kill()
    await says_and_hears(metadata, csr, make_event("after"))
    held = await csr.get_last(subject_of(make_event("before")))
    assert held is not None
    assert held.event == make_event("before")
    assert not [host for host in HOSTS if "Violation" in cluster.log(host)]


async def test_a_full_replicated_stream_accepts_a_leading_while_the_headroom_is_open(
    cluster: Cluster, connect_bus: ConnectBus
):
    for host in HOSTS:
        await cluster.start(host)
    watcher = await connect_bus("watcher", **cluster.options("watcher", *HOSTS), stream_replicas=3)
    metadata = await connect_bus("metadata", **cluster.options("metadata", *HOSTS))

    async def provisioned() -> bool:
        try:
            await watcher.provision(DURABLES, max_bytes=100_000)
            await metadata.publish(make_event("first"))
        except BusError:
            return False  # they have not chosen a leader yet
        return True

    await wait_until(provisioned, "\n".join(watcher.problems()), 60)
    for size in (10_000, 1):
        with suppress(StreamFull):
            for n in range(10_000):
                await metadata.publish(make_event(f"web-{size}-{n}", uid="u" * size))
    leading = Leading(stream_id=watcher.stream_id, epoch=1, holder="host-a" * 30)
    for _ in range(3):  # a replacement of the same size is refused, too
        await publish_with_headroom(leading, watcher, other=metadata)
    assert (await watcher.stats()).max_bytes == 100_000


async def says_and_hears(one: NatsBus, other: NatsBus, word: EnrichedNodeGone) -> None:
    """As often as it takes: who leads may have to be chosen first."""

    async def heard() -> bool:
        try:
            await one.publish(word)
            held = await other.get_last(subject_of(word))
        except BusError:
            return False
        return held is not None and held.event == word

    await wait_until(heard, f"{one.problems()} {other.problems()}", 60)


async def test_a_server_of_another_authority_is_no_member(
    cluster: Cluster, connect_bus: ConnectBus, tmp_path: Path
):
    await cluster.start(HOSTS[0])
    await cluster.start(HOSTS[1], keys=tmp_path / "another")
    await wait_until(lambda: "TLS route handshake error" in cluster.log(HOSTS[0]))
    await wait_until(lambda: "TLS route handshake error" in cluster.log(HOSTS[1]))
    assert "unknown authority" in cluster.log(HOSTS[0]) + cluster.log(HOSTS[1])
    watcher = await connect_bus("watcher", **cluster.options("watcher", HOSTS[0]))
    with pytest.raises(BusError):  # two of three would have a leader: it is alone
        await watcher.provision(DURABLES, max_bytes=MAX_BYTES)
