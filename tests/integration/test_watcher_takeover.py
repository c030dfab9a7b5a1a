"""Watchers on the real control plane and nats-server: one leads, another takes over, late words lose."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from libs.common.bus.protocol import BusHooks
from libs.common.contract.events import NodeGone
from libs.common.contract.subjects import OBSERVED_CSR
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.child_process import HANG_SECONDS, ChildProcess
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from services.watcher.service import WatcherService
from tests.builders import make_request
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import ConnectBus
from tests.watcher_actors import ScriptedRequests, WatcherFlow, follow_watcher, make_watcher

ROOT = Path(__file__).parents[2]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
# A takeover waits for the end of the Lease. A busy machine delays a renewal by seconds.
LEASE = {"lease_duration_seconds": 10.0, "renew_deadline_seconds": 8.0, "retry_period_seconds": 0.25}
_numbers = itertools.count(1)


@pytest.fixture
async def lease(kubelets: KubeletFleet) -> AsyncIterator[str]:
    """The name of a Lease of one's own."""
    name = f"watcher-test-{next(_numbers)}"
    yield name
    await kubelets.request("DELETE", f"{LEASES}/{name}")


@pytest.fixture
async def joined(kubelets: KubeletFleet) -> AsyncIterator[list[str]]:
    """Twelve nodes; those that are left at the end are deleted."""
    number = next(_numbers)
    names = [f"watched-{number}-{i}.example" for i in range(12)]
    await kubelets.join_all(SimKubelet(name=name, ips=(f"10.99.{number}.1",)) for name in names)
    yield names
    for name in names:
        await kubelets.request("DELETE", f"/api/v1/nodes/{name}")


@dataclass(frozen=True, kw_only=True)
class World:
    """The servers of one test, and what every watcher of it shares."""

    control_plane: ControlPlane
    nats: NatsServer
    bus: ConnectBus
    kube: KubeApi
    lease: str

    async def watcher(self, identity: str = "first", **settings: Any) -> WatcherService:
        return make_watcher(
            await self.bus(),
            kube=self.kube,
            identity=identity,
            lease_name=self.lease,
            **(LEASE | settings),
        )


@pytest.fixture
async def world(
    control_plane: ControlPlane, nats_server: NatsServer, connect_bus: ConnectBus, lease: str
) -> AsyncIterator[World]:
    kube = KubeApi(load_kube_config(control_plane.kubeconfig(), {}), user_agent="talos-ccm/test")
    yield World(control_plane=control_plane, nats=nats_server, bus=connect_bus, kube=kube, lease=lease)
    await kube.close()


@pytest.fixture
async def flow(connect_bus: ConnectBus) -> AsyncIterator[WatcherFlow]:
    """A follower that starts before the first event."""
    async with WatcherFlow().follow(await connect_bus("flow")) as followed:
        yield followed


@asynccontextmanager
async def a_watcher_process(run_dir: Path, world: World) -> AsyncIterator[ChildProcess]:
    """`python -m services.watcher` with the quick timing of the other watchers here."""
    flags = [
        f"--kubeconfig={world.control_plane.kubeconfig()}",
        f"--nats-url={world.nats.url}",
        f"--leader-elect-resource-name={world.lease}",
        f"--leader-elect-lease-duration={LEASE['lease_duration_seconds']:g}s",
        f"--leader-elect-renew-deadline={LEASE['renew_deadline_seconds']:g}s",
        f"--leader-elect-retry-period={LEASE['retry_period_seconds']:g}s",
        f"--secure-port={allocate_port()}",
    ]
    command = [sys.executable, "-m", "services.watcher", *flags]
    child = ChildProcess.start("watcher", command, run_dir, env={"PYTHONPATH": str(ROOT)})
    try:
        yield child
    finally:
        await child.kill()


async def test_a_frozen_leader_is_replaced_and_thaws_to_change_nothing_and_the_dead_nodes_are_said(
    tmp_path: Path, world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    async with a_watcher_process(tmp_path, world) as frozen:
        await flow.wait_for(lambda f: f.snapshots(), "the first leads")
        assert set(joined) <= flow.existing()
        old = flow.uid(joined[1])
        standby = await world.watcher("standby")
        async with run_during(standby.run()):
            await wait_until(lambda: standby.problems() == (), "a standby is ready")
            frozen.pause()
            await kubelets.delete_node(joined[0])
            await kubelets.delete_node(joined[1])
            await kubelets.join(SimKubelet(name=joined[1], ips=("10.99.0.99",)))
            await flow.wait_for(lambda f: len(f.snapshots()) == 2, "the standby has taken over")
            epoch = flow.leadings()[-1].epoch
            assert isinstance(flow.last(joined[0]), NodeGone)
            assert flow.uid(joined[1]) not in {"", old}
            await wait_until(lambda: standby.problems() == (), "ready")
            frozen.resume()
            async with asyncio.timeout(HANG_SECONDS):
                assert await frozen.wait() == 1
            assert "the Lease is lost" in frozen.log.read_text()
            renewed = len(flow.leadings())
            await flow.wait_for(lambda f: len(f.leadings()) > renewed)
            assert (flow.leadings()[-1].holder, flow.leadings()[-1].epoch) == ("standby", epoch)
            assert {flow.epoch(name) for name in joined} == {epoch}


async def test_a_request_whose_name_no_subject_can_bear_does_not_cost_the_connection_to_nats(
    connect_bus: ConnectBus,
):
    # NATS ends the connection at 4096 characters; the API server takes 300 000, and control characters
    named = [
        make_request(name, uid=f"uid-{name[:2]}", node="evil") for name in ("x" * 5000, "a\x1b[31m", "a\x00b")
    ]
    script = ScriptedRequests(*named, make_request("good", uid="uid-good"))
    lost: list[str] = []
    bus = await connect_bus("watcher", hooks=BusHooks(disconnected=lost.append))
    async with follow_watcher(bus=bus, requests=script.source) as (_, flow):
        assert flow.existing(OBSERVED_CSR) == {"good"}
    assert lost == []
