"""What the simulated API server does beyond the real one: misbehave as told, forget, refuse what it lacks."""

import time
from collections.abc import AsyncIterator

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Gone, Invalid, TooManyRequests, Unreachable
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.kube.watch_events import ListSnapshot
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.sim_apiserver.faults import (
    EmptyClose,
    ExpiredFault,
    HalfOpenFault,
    SlowFault,
    TooManyRequestsFault,
)
from libs.testbed.sim_apiserver.object_store import HISTORY_LIMIT
from libs.testbed.sim_apiserver.server import SimApiServer
from tests.bus_actors import wait_until
from tests.kube_follower import follow_nodes


@pytest.fixture
async def joining(simulated: SimApiServer) -> AsyncIterator[KubeletFleet]:
    async with KubeletFleet.start(simulated) as running:
        yield running


@pytest.fixture
async def api(simulated: SimApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(load_kube_config(simulated.kubeconfig(), {}), user_agent="test", deadline_seconds=1.5)
    yield made
    await made.close()


@pytest.fixture
async def patient(simulated: SimApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(load_kube_config(simulated.kubeconfig(), {}), user_agent="test", deadline_seconds=30)
    yield made
    await made.close()


# ---- faults


async def test_a_storm_of_410_makes_a_reflector_list_again_until_it_is_over(
    simulated: SimApiServer, api: KubeApi, joining: KubeletFleet
):
    simulated.faults.inject(ExpiredFault(), verb="watch", times=2)
    async with follow_nodes(api) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 3, "listed three times", 20)
        await joining.join(SimKubelet(name="after"))
        await wait_until(lambda: "after" in follower.nodes, "watched again", 10)
    assert [type(trouble) for trouble in follower.errors] == [Gone, Gone]


async def test_a_half_open_watch_says_nothing_and_is_replaced(
    simulated: SimApiServer, api: KubeApi, joining: KubeletFleet
):
    simulated.faults.inject(HalfOpenFault(), verb="watch", times=1)
    async with follow_nodes(api, watch_seconds=(1, 1), silence_seconds=0.5) as (follower, _):
        await wait_until(lambda: follower.count(ListSnapshot) == 1)
        await joining.join(SimKubelet(name="unheard"))
        await wait_until(lambda: "unheard" in follower.nodes, "told by the next watch", 10)
    assert "no end of the watch in time" in str(follower.errors[0])


async def test_a_watch_that_ends_empty_goes_on_with_the_next_one(
    simulated: SimApiServer, api: KubeApi, joining: KubeletFleet
):
    simulated.faults.inject(EmptyClose(), verb="watch", times=1)
    async with follow_nodes(api) as (follower, _):
        await joining.join(SimKubelet(name="late"))
        await wait_until(lambda: "late" in follower.nodes, "told by the next watch", 10)
    assert follower.count(ListSnapshot) == 1


async def test_a_server_that_asks_to_wait_is_waited_for(
    simulated: SimApiServer, patient: KubeApi, api: KubeApi, joining: KubeletFleet
):
    await joining.join(SimKubelet(name="busy"))
    simulated.faults.inject(
        TooManyRequestsFault(retry_after_seconds=1), verb="get", resource="nodes", times=1
    )
    started = time.monotonic()
    assert (await patient.get_node("busy")).name == "busy"
    assert time.monotonic() - started >= 1.0
    simulated.faults.inject(TooManyRequestsFault(retry_after_seconds=1), verb="get")
    with pytest.raises((TooManyRequests, Unreachable)):
        await api.get_node("busy")


async def test_a_slow_a_silent_and_a_closed_connection_strike_only_what_they_are_meant_for(
    simulated: SimApiServer, api: KubeApi, joining: KubeletFleet
):
    await joining.join(SimKubelet(name="struck"))
    simulated.faults.inject(SlowFault(0.3), verb="get", resource="nodes", times=1)
    started = time.monotonic()
    await api.get_node("struck")
    assert time.monotonic() - started >= 0.3
    simulated.faults.inject(EmptyClose(), verb="patch", resource="nodes")
    with pytest.raises(Unreachable, match="the server closed the connection without an answer"):
        await api.patch_node("struck", [])
    simulated.faults.inject(HalfOpenFault(), verb="get")
    with pytest.raises(Unreachable, match="no answer within"):
        await api.get_node("struck")
    simulated.faults.clear()
    await api.patch_node("struck", [])


# ---- history


async def test_a_long_history_loses_its_beginning(simulated: SimApiServer, joining: KubeletFleet):
    await joining.join(SimKubelet(name="n1"))
    table = simulated.api.store.table("nodes")
    change = table.list_changes(0)[-1]
    for _ in range(HISTORY_LIMIT):
        table.append_change(change)
    watch = await joining.request("GET", "/api/v1/nodes?watch=1&resourceVersion=1")
    assert (watch.body["type"], watch.body["object"]["reason"]) == ("ERROR", "Expired")


async def test_what_is_not_simulated_is_refused_aloud_and_is_no_fence(
    simulated: SimApiServer, api: KubeApi, joining: KubeletFleet
):
    await joining.join(SimKubelet(name="odd"))
    with pytest.raises(Invalid, match="not simulated"):
        await api.patch_node("odd", [{"op": "copy", "from": "/metadata/labels", "path": "/metadata/a"}])
