"""Buses with quick timing on a real nats-server, an operator beside them, and our processes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import nats
import pytest
from nats.js import JetStreamContext

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from tests.bootstrap_actors import BootstrapInstallation, install_bootstrap
from tests.bus_actors import close_at_end, provisioned
from tests.integration.service_cluster import ServiceCluster, open_separate, open_simulated
from tests.kube_loopback import LoopbackServer

ConnectBus = Callable[..., Awaitable[NatsBus]]
StartServices = Callable[..., Awaitable[ServiceProcesses]]

# For tests in which the server freezes. A busy machine makes a server look frozen, too.
IMPATIENT = Timeouts(
    connect=1.0,
    probe_every=0.3,
    probe_deadline=1.0,
    retry_cap=0.3,
    publish_deadline=3.0,
    pull_expires=1.2,
    pull_heartbeat=0.5,
    pull_silence=1.5,
    consumer_retry_cap=0.2,
    follow_retry_cap=0.3,
    follower_kept=5.0,
    finish_handlers=5.0,
)
# Soon back after an outage. A busy machine, which answers late, is none.
QUICK = msgspec.structs.replace(
    IMPATIENT,
    connect=30.0,
    probe_deadline=30.0,
    publish_deadline=60.0,
    pull_silence=5.0,
    follower_kept=30.0,
    finish_handlers=30.0,
)


@pytest.fixture(scope="session", autouse=True)
def only_forked_services(forked_services: None) -> None:
    """Hundreds of processes of services are forked. Those of test_process and of the demo are no forks."""


@pytest.fixture
def timing() -> Timeouts:
    """The timeouts of `connect_bus`; a module of frozen servers overrides it."""
    return QUICK


@pytest.fixture
async def connect_bus(nats_server: NatsServer, timing: Timeouts) -> AsyncIterator[ConnectBus]:
    """`await connect_bus("labeler")`: a bus of that service with quick timing; closed at the end."""
    async with AsyncExitStack() as stack:

        async def connect(
            *,
            service: str,
            servers: tuple[str, ...] = (),
            timing: Timeouts = timing,
            **options: object,
        ) -> NatsBus:
            return await NatsBus.connect(
                servers or (nats_server.url,),
                service=service,
                timing=timing,
                **options,  # type: ignore[arg-type]  # what connect takes
            )

        yield close_at_end(stack, connect)


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    """An API server that answers as a test says."""
    async with LoopbackServer.start() as running:
        yield running


@pytest.fixture
async def nats_bus(connect_bus: ConnectBus) -> NatsBus:
    """The watcher's bus, provisioned."""
    return await provisioned(await connect_bus("watcher"))


@pytest.fixture
async def start_services(
    tmp_path: Path,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    machines: MachineFleet,
    nats_server: NatsServer,
) -> AsyncIterator[StartServices]:
    """`await start_services(all_in_one=True)`: our processes, ready; stopped at the end."""
    async with AsyncExitStack() as stack:
        cluster = ServiceCluster(
            stack=stack, server=control_plane, kubelets=kubelets, machines=machines, run_dir=tmp_path
        )
        yield partial(cluster.serve, nats_url=nats_server.url)


@pytest.fixture
async def simulated_cluster(tmp_path: Path, machines: MachineFleet) -> AsyncIterator[ServiceCluster]:
    """A simulated API server and kubelets; a test starts our services on them."""
    async with open_simulated(tmp_path, machines) as cluster:
        yield cluster


@pytest.fixture
async def separate_cluster(tmp_path: Path) -> AsyncIterator[ServiceCluster]:
    """A simulated API server with kubelets and machines of its own."""
    async with open_separate(tmp_path) as cluster:
        yield cluster


@pytest.fixture
async def nats_as_installed(tmp_path: Path) -> AsyncIterator[BootstrapInstallation]:
    """A nats-server with the configuration and the keys of the bootstrap."""
    async with install_bootstrap(tmp_path / "as-installed") as made:
        yield made


@asynccontextmanager
async def operating(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """An operator with a plain client and all permissions."""
    client = await nats.connect(server.url, allow_reconnect=False, error_cb=_say_nothing)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def put_raw(server: NatsServer, subject: str, payload: bytes) -> None:
    """Store bytes that are no event."""
    async with operating(server) as operator:
        await operator.publish(subject, payload)


async def _say_nothing(_: Exception) -> None:
    """Ignore errors: the operator's connection may be cut together with the others."""
