"""What the simulated API server does beyond the real one: forget, and refuse what it lacks."""

from collections.abc import AsyncIterator

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import Invalid
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.sim_apiserver.object_store import HISTORY_LIMIT
from libs.testbed.sim_apiserver.server import SimApiServer


@pytest.fixture
async def joining(simulated: SimApiServer) -> AsyncIterator[KubeletFleet]:
    async with KubeletFleet.start(simulated) as running:
        yield running


@pytest.fixture
async def api(simulated: SimApiServer) -> AsyncIterator[KubeApi]:
    made = KubeApi(load_kube_config(simulated.kubeconfig(), {}), user_agent="test", deadline_seconds=60.0)
    yield made
    await made.close()


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
