"""Buses on a real nats-server that notice trouble within a second, an operator beside them; our processes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.nats.connection_supervisor import Timeouts
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_processes import ServiceProcesses
from tests.bus_actors import MAX_BYTES, NODES

ConnectBus = Callable[..., Awaitable[NatsBus]]
StartServices = Callable[..., Awaitable[ServiceProcesses]]

QUICK = Timeouts(
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


@pytest.fixture
async def connect_bus(nats_server: NatsServer) -> AsyncIterator[ConnectBus]:
    """`await connect_bus("labeler")`: a bus of that service with quick timing; closed at the end."""
    async with AsyncExitStack() as stack:

        async def connect(
            service: str = "watcher",
            *,
            servers: tuple[str, ...] = (),
            timing: Timeouts = QUICK,
            **options: object,
        ) -> NatsBus:
            bus = await NatsBus.connect(
                servers or (nats_server.url,),
                service=service,
                timing=timing,
                **options,  # type: ignore[arg-type]  # what connect takes
            )
            stack.push_async_callback(bus.close)
            return bus

        yield connect


@pytest.fixture
async def nats_bus(connect_bus: ConnectBus) -> NatsBus:
    """The watcher's bus, provisioned."""
    bus = await connect_bus("watcher")
    await bus.provision((NODES,), max_bytes=MAX_BYTES)
    return bus


@pytest.fixture
async def start_services(
    tmp_path: Path,
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    machines: MachineFleet,
    nats_server: NatsServer,
) -> AsyncIterator[StartServices]:
    """`await start_services(all_in_one=True)`: our processes, ready; ended at the end."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> ServiceProcesses:
            services = await stack.enter_async_context(
                ServiceProcesses.start(
                    tmp_path / "services",
                    control_plane,
                    kubelets,
                    nats_url=nats_server.url,
                    talosconfig=machines.write_talosconfig(),
                    **options,
                )
            )
            await services.wait_until_ready()
            return services

        yield start


@asynccontextmanager
async def operating(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    """An operator with the plain client, who may do everything."""
    client = await nats.connect(server.url, allow_reconnect=False, error_cb=_say_nothing)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def put_raw(server: NatsServer, subject: str, payload: bytes) -> None:
    """Store bytes that are nobody's event."""
    async with operating(server) as operator:
        await operator.publish(subject, payload)


async def read_raw(server: NatsServer, subject: str) -> Msg:
    """A message with all its headers."""
    client = await nats.connect(server.url)
    try:
        return await client.request(f"$JS.API.DIRECT.GET.TALOSCCM.{subject}")
    finally:
        await client.close()


async def _say_nothing(_: Exception) -> None:
    """The operator's connection may be cut together with everyone's."""
