"""A watcher that alone is cut off from NATS, and NATS that is down for everybody, on real servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.service.bus_reachability import STANDBY_REPORT_ANNOTATION
from libs.common.service.leader_elector import LeadershipLost
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.nats_server import NatsServer
from tests.bus_actors import run_during, wait_until
from tests.chaos.links import CUT, HEALTHY, FaultProxy
from tests.integration.conftest import ConnectBus
from tests.watcher_actors import WatcherFlow, make_watcher

LEASE = "watcher-cut-off"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE}"
LEASE_SECONDS = 7.0
# A busy machine delays a renewal by seconds. A leader that loses its Lease by that does not step down.
PATIENT: dict[str, Any] = {
    "lease_name": LEASE,
    "lease_duration_seconds": LEASE_SECONDS,
    "renew_deadline_seconds": 6.0,
}


@pytest.fixture
async def kube(control_plane: ControlPlane, kubelets: KubeletFleet) -> AsyncIterator[KubeApi]:
    made = KubeApi(load_kube_config(control_plane.kubeconfig(), {}), user_agent="talos-ccm/test")
    yield made
    await made.close()
    await kubelets.request("DELETE", PATH)


async def the_lease(kubelets: KubeletFleet) -> dict[str, Any]:
    answer = await kubelets.request("GET", PATH)
    assert answer.status == 200, answer
    lease: dict[str, Any] = answer.body
    return lease


async def test_a_leader_that_alone_is_cut_off_steps_down_for_a_standby_that_is_not(
    connect_bus: ConnectBus, nats_server: NatsServer, kube: KubeApi, kubelets: KubeletFleet
):
    flow = WatcherFlow()
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(FaultProxy.start(nats_server.port))
        await stack.enter_async_context(flow.follow(await connect_bus("flow")))
        cut_off = make_watcher(
            await connect_bus(servers=(f"nats://127.0.0.1:{line.port}",)),
            kube=kube,
            identity="cut-off",
            **PATIENT,
        )
        leading = asyncio.create_task(cut_off.run())
        await flow.wait_for(lambda f: f.snapshots(), "the first leads")
        standby = make_watcher(await connect_bus(), kube=kube, identity="standby", **PATIENT)
        await stack.enter_async_context(run_during(standby.run()))
        await wait_until(lambda: standby.problems() == (), "the standby is ready")
        line.set_state(CUT)
        seen: set[str] = set()

        def tell() -> bool:
            seen.update((*cut_off.problems(), *standby.problems()))
            return leading.done()

        await wait_until(tell, "it steps down")
        with pytest.raises(LeadershipLost, match="stepped down"):
            await leading
        await flow.wait_for(lambda f: f.leadings()[-1].holder == "standby", "the standby leads")
        await flow.wait_for(lambda f: f.snapshots()[-1].epoch > 1)
        assert any("NATS does not answer this leader" in problem for problem in seen)
        assert any("cut-off holds the Lease and has published nothing" in problem for problem in seen)
        await wait_until(lambda: standby.problems() == (), "ready again")
        again = make_watcher(
            await connect_bus(servers=(f"nats://127.0.0.1:{line.port}",)),
            kube=kube,
            identity="again",
            **PATIENT,
        )
        async with run_during(again.run()):
            await wait_until(lambda: any("does not acquire the Lease" in why for why in again.problems()))
            line.set_state(HEALTHY)
            await wait_until(lambda: again.problems() == (), "it stands by")
        assert (await the_lease(kubelets))["spec"]["holderIdentity"] == "standby"


async def test_the_lease_stays_while_nats_is_down_for_everybody(
    connect_bus: ConnectBus, nats_server: NatsServer, kube: KubeApi, kubelets: KubeletFleet
):
    flow = WatcherFlow()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(flow.follow(await connect_bus("flow")))
        leader = make_watcher(await connect_bus(), kube=kube, identity="leader", **PATIENT)
        running = await stack.enter_async_context(run_during(leader.run()))
        await flow.wait_for(lambda f: f.snapshots(), "it leads")
        standby = make_watcher(await connect_bus(), kube=kube, identity="standby", **PATIENT)
        await stack.enter_async_context(run_during(standby.run()))
        await wait_until(lambda: standby.problems() == (), "the standby is ready")
        before = (await the_lease(kubelets))["spec"]["leaseTransitions"]
        opened = len(flow.opened)
        await nats_server.kill()
        down = asyncio.get_running_loop().time()
        await wait_until(lambda: asyncio.get_running_loop().time() - down > 1.5 * LEASE_SECONDS)
        assert not running.done()
        await nats_server.restart()
        await flow.wait_for(lambda f: len(f.opened) > opened and f.leadings(), "it goes on")
        lease = await the_lease(kubelets)
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("leader", before)
        assert STANDBY_REPORT_ANNOTATION not in lease["metadata"].get("annotations", {})
