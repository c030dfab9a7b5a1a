"""Watchers on the real control plane and nats-server: one leads, another takes over, late words lose."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.bus.ordered_publisher import OrderedPublisher, PublishOutcome
from libs.common.contract.events import NodeGone
from libs.common.contract.node import Node
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.service.leader_elector import LeadershipLost
from libs.testbed.child_process import ChildProcess
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.nats_server import NatsServer
from libs.testbed.ports import allocate_port
from services.watcher.service import WatcherService
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import ConnectBus
from tests.watcher_actors import QUICK, WATCHED_RESOURCES, WatcherFlow, make_watcher

ROOT = Path(__file__).parents[2]
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
# A Lease that outlasts whatever the test does to the API server.
PATIENT: dict[str, Any] = {"lease_duration_seconds": 40.0, "renew_deadline_seconds": 30.0}
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
            await self.bus(), kube=self.kube, identity=identity, lease_name=self.lease, **settings
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
        f"--leader-elect-lease-duration={QUICK['lease_duration_seconds']:g}s",
        f"--leader-elect-renew-deadline={QUICK['renew_deadline_seconds']:g}s",
        f"--leader-elect-retry-period={QUICK['retry_period_seconds']:g}s",
        f"--secure-port={allocate_port()}",
    ]
    command = [sys.executable, "-m", "services.watcher", *flags]
    child = ChildProcess.start("watcher", command, run_dir, env={"PYTHONPATH": str(ROOT)})
    try:
        yield child
    finally:
        await child.kill()


async def change(kubelets: KubeletFleet, path: str, body: dict[str, Any]) -> None:
    answer = await kubelets.request("PATCH", path, body=body, content_type="application/merge-patch+json")
    assert answer.status == 200


async def annotate(kubelets: KubeletFleet, name: str, **annotations: str) -> None:
    await change(kubelets, f"/api/v1/nodes/{name}", {"metadata": {"annotations": annotations}})


async def test_a_killed_leader_is_replaced_within_the_lease_duration_and_the_dead_nodes_are_said(
    tmp_path: Path, world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    async with a_watcher_process(tmp_path, world) as first:
        await flow.wait_for(lambda f: f.snapshots(), "the first leads", 30)
        assert set(joined) <= flow.existing()
        old = flow.uid(joined[1])
        standby = await world.watcher("standby")
        async with run_during(standby.run()):
            await wait_until(lambda: standby.problems() == (), "a standby is ready")
            await first.kill()
            await kubelets.delete_node(joined[0])
            await kubelets.delete_node(joined[1])
            await kubelets.join(SimKubelet(name=joined[1], ips=("10.99.0.99",)))
            await flow.wait_for(lambda f: len(f.snapshots()) == 2, "the standby has taken over")
            assert isinstance(flow.last(joined[0]), NodeGone)
            assert flow.uid(joined[1]) not in {"", old}
            assert {flow.epoch(name) for name in joined} == {flow.leadings()[-1].epoch}
            assert flow.leadings()[-1].holder == "standby"
            await wait_until(lambda: standby.problems() == (), "ready")


async def test_a_frozen_leader_that_thaws_after_it_was_replaced_ends_and_changes_nothing(
    tmp_path: Path, world: World, flow: WatcherFlow, joined: list[str]
):
    async with a_watcher_process(tmp_path, world) as frozen:
        await flow.wait_for(lambda f: f.snapshots(), "the first leads", 30)
        async with run_during((await world.watcher("standby")).run()):
            frozen.pause()
            await flow.wait_for(lambda f: len(f.snapshots()) == 2, "the standby has taken over")
            epoch = flow.leadings()[-1].epoch
            frozen.resume()
            async with asyncio.timeout(30):
                assert await frozen.wait() == 1
            assert "the Lease is lost" in frozen.log.read_text()
            renewed = len(flow.leadings())
            await flow.wait_for(lambda f: len(f.leadings()) > renewed)
            assert (flow.leadings()[-1].holder, flow.leadings()[-1].epoch) == ("standby", epoch)
            assert {flow.epoch(name) for name in joined} == {epoch}


async def test_a_leader_that_stops_releases_its_lease_and_the_next_one_leads_at_once(
    world: World, flow: WatcherFlow, joined: list[str]
):
    first = await world.watcher("first", **PATIENT)
    second = await world.watcher("second", **PATIENT)
    async with AsyncExitStack() as stack:
        async with run_during(first.run()):
            await flow.wait_for(lambda f: f.snapshots())
            await stack.enter_async_context(run_during(second.run()))
        await flow.wait_for(lambda f: f.leadings()[-1].holder == "second", seconds=10)
        await flow.wait_for(lambda f: len(f.snapshots()) == 2 and set(joined) <= f.existing())


async def test_a_leader_that_cannot_renew_ends_before_another_one_may_begin(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet
):
    running = asyncio.create_task((await world.watcher()).run())
    await flow.wait_for(lambda f: f.snapshots())
    world.control_plane.apiserver.pause()
    try:
        async with asyncio.timeout(QUICK["lease_duration_seconds"]):
            with pytest.raises(LeadershipLost, match="not renewed in time"):
                await running
    finally:
        world.control_plane.apiserver.resume()
        await wait_until(lambda: _serves(kubelets), "the API server serves")


async def _serves(kubelets: KubeletFleet) -> bool:
    return (await kubelets.request("GET", "/readyz")).status == 200


async def test_the_late_word_of_a_replaced_leader_is_refused_and_loses(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    name = joined[3]
    first_bus = await world.bus()
    late = OrderedPublisher(first_bus)
    async with run_during((await world.watcher("first")).run()):
        await flow.wait_for(lambda f: f.snapshots())
    stale = flow.observed(name)
    late.record_sequence(flow.subject_of(name), flow.sequence_of(name))
    await annotate(kubelets, name, later="yes")
    async with run_during((await world.watcher("second")).run()):
        await flow.wait_for(lambda f: len(f.snapshots()) == 2)
        assert await late.publish(stale) is PublishOutcome.SUPERSEDED
        message = await first_bus.get_last(flow.subject_of(name))
        assert message is not None
        assert message.event == flow.observed(name)
        assert flow.observed(name).node.annotations["later"] == "yes"


async def test_a_leader_whom_the_stream_contradicts_asks_the_lease_and_goes_on_above(
    world: World, flow: WatcherFlow, joined: list[str]
):
    watcher = await world.watcher("holder")
    async with run_during(watcher.run()):
        await flow.wait_for(lambda f: f.snapshots())
        pretended = msgspec.structs.replace(flow.leadings()[-1], epoch=41, holder="pretender")
        await (await world.bus()).publish(pretended)
        await flow.wait_for(lambda f: f.leadings()[-1].epoch == 42, "the holder speaks above the pretender")
        await flow.wait_for(lambda f: {f.epoch(name) for name in joined} == {42})
        await wait_until(lambda: watcher.problems() == (), "ready again")


async def test_a_leader_whose_lease_another_one_holds_ends(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet
):
    running = asyncio.create_task((await world.watcher()).run())
    await flow.wait_for(lambda f: f.snapshots())
    await change(kubelets, f"{LEASES}/{world.lease}", {"spec": {"holderIdentity": "thief"}})
    async with asyncio.timeout(5):
        with pytest.raises(LeadershipLost, match="thief"):
            await running


async def test_heartbeats_of_kubelets_publish_nothing_and_news_do(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    async with run_during((await world.watcher()).run()):
        await flow.wait_for(lambda f: f.snapshots() and set(joined) <= f.existing())
        await flow.wait_for(lambda f: _is_settled(f.observed(joined[0]).node), "left alone by the manager")
        said = len(flow.list_node_events(joined[0]))
        for _ in range(5):
            await kubelets.heartbeat(joined[0])
        await annotate(kubelets, joined[1], marker="after the heartbeats")
        await flow.wait_for(lambda f: "marker" in f.observed(joined[1]).node.annotations)
        assert len(flow.list_node_events(joined[0])) == said


def _is_settled(node: Node) -> bool:
    """Whether kube-controller-manager has done what we read of all that it does to a node that joins."""
    return all(taint.key != "node.kubernetes.io/not-ready" for taint in node.spec.taints)


async def test_an_apiserver_that_restarts_costs_nothing_but_time(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    async with run_during((await world.watcher(**PATIENT)).run()):
        await flow.wait_for(lambda f: f.snapshots() and set(joined) <= f.existing())
        await world.control_plane.apiserver.kill()
        await world.control_plane.restart_apiserver()
        await annotate(kubelets, joined[2], marker="after the restart")
        await kubelets.delete_node(joined[4])
        await flow.wait_for(lambda f: "marker" in f.observed(joined[2]).node.annotations, seconds=40)
        await flow.wait_for(lambda f: isinstance(f.last(joined[4]), NodeGone), seconds=40)
        assert flow.leadings()[-1].epoch == flow.leadings()[0].epoch


async def test_a_wiped_nats_server_is_filled_again_from_the_cluster(
    world: World, flow: WatcherFlow, kubelets: KubeletFleet, joined: list[str]
):
    watcher = await world.watcher()
    async with run_during(watcher.run()):
        await flow.wait_for(lambda f: f.snapshots() and set(joined) <= f.existing())
        before = flow.snapshots()[-1].stream_id
        await world.nats.wipe()
        await kubelets.delete_node(joined[5])
        await flow.wait_for(lambda f: f.opened[-1].stream_id != before and f.snapshots(), "a snapshot", 30)
        await flow.wait_for(lambda f: set(joined) - f.existing() == {joined[5]})
        await wait_until(lambda: watcher.problems() == (), "ready again")


async def test_observing_only_writes_nothing_to_kubernetes(
    world: World, flow: WatcherFlow, joined: list[str]
):
    user = f"observer-{next(_numbers)}"
    config = load_kube_config(world.control_plane.kubeconfig(user, ("system:masters",)), {})
    kube = KubeApi(config, user_agent="talos-ccm/test")
    mark = world.control_plane.audit_mark()
    async with run_during(make_watcher(await world.bus(), kube=kube, observe_only=True).run()):
        await flow.wait_for(lambda f: f.snapshots() and set(joined) <= f.existing())
        await flow.wait_for(lambda f: len(f.leadings()) > 2, "the leader publishes heartbeats")
    await kube.close()
    asked = {(r.verb, r.resource) for r in world.control_plane.audit_counts(mark) if r.user == user}
    assert asked == {(v, r) for v in ("list", "watch") for r in WATCHED_RESOURCES}
