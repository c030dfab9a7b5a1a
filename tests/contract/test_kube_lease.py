"""Leader election on a real and a simulated API server: what they accept, and what is a conflict."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Any

import pytest

from libs.common.kube.api import KubeApi
from libs.common.kube.errors import AlreadyExists, Conflict, NotFound
from libs.common.kube.lease import get_annotation, set_annotation, vacant_lease
from libs.common.service.leader_elector import LeaderElector, LeadershipLost
from libs.testbed.kubelets import KubeletFleet
from services.watcher.settings import WatcherSettings
from tests.contract.conftest import ApiServer
from tests.service_flow import make_dependencies

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


@pytest.fixture
async def name(request: pytest.FixtureRequest, admin: KubeletFleet) -> AsyncIterator[str]:
    made = f"lease-{abs(hash(request.node.name)) % 10**12}"
    yield made
    await admin.request("DELETE", f"{LEASES}/{made}")


Elect = Callable[[str], LeaderElector]


@pytest.fixture
def elect(api: KubeApi, name: str) -> Elect:
    """Make a candidate for the Lease."""

    def make(identity: str) -> LeaderElector:
        no_bus: Any = None
        return LeaderElector(
            api,
            WatcherSettings(lease_name=name, retry_period_seconds=0.1),
            make_dependencies(no_bus, identity=identity),
            set_gauge=lambda _: None,
        )

    return make


async def test_a_lease_is_created_renewed_released_and_acquired_by_the_next_candidate(
    elect: Elect, api: KubeApi, api_server: ApiServer, name: str
):
    first, second = elect("one"), elect("two")
    assert await first.acquire() == 0
    acquired = await api.get_lease("kube-system", name)
    mark = api_server.audit_mark()
    await first.confirm_leadership()
    counted = api_server.audit_counts(mark)
    ours = {k.verb: n for k, n in counted.items() if k.resource == "leases" and k.user == "admin"}
    assert ours == {"update": 1}
    renewed = await api.get_lease("kube-system", name)
    assert (acquired.holder, renewed.holder, renewed.spec.lease_duration_seconds) == ("one", "one", 15)
    assert renewed.spec.acquire_time == acquired.spec.acquire_time
    times = [datetime.fromisoformat(each.spec.renew_time or "") for each in (acquired, renewed)]
    assert times == sorted(set(times))
    waiting = asyncio.create_task(second.acquire())
    await first.release()
    assert await waiting == 1
    assert (await api.get_lease("kube-system", name)).holder == "two"


async def test_of_two_candidates_that_create_the_lease_one_leads(elect: Elect):
    tasks = [asyncio.create_task(elect(identity).acquire()) for identity in ("one", "two")]
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [0]
    for task in waiting:
        task.cancel()


async def test_a_leader_keeps_its_lease_when_another_client_writes_it_but_not_when_it_is_deleted(
    elect: Elect, api: KubeApi, admin: KubeletFleet, name: str
):
    leader = elect("one")
    await leader.acquire()
    lease = await api.get_lease("kube-system", name)
    await api.write_lease(set_annotation(lease.document, "a.b/c", "one"))
    await leader.confirm_leadership()
    renewed = await api.get_lease("kube-system", name)
    assert (renewed.holder, get_annotation(renewed, "a.b/c")) == ("one", "one")
    await admin.request("DELETE", f"{LEASES}/{name}")
    with pytest.raises(LeadershipLost):
        await leader.confirm_leadership()
    with pytest.raises(NotFound):
        await api.get_lease("kube-system", name)


async def test_only_the_version_that_was_read_is_replaced(api: KubeApi, admin: KubeletFleet, name: str):
    made = await api.write_lease(vacant_lease("kube-system", name).document)
    assert (made.holder, get_annotation(made, "a.b/c")) == ("", "")
    with pytest.raises(AlreadyExists):
        await api.write_lease(vacant_lease("kube-system", name).document)
    await api.write_lease(set_annotation(made.document, "a.b/c", "one"))
    with pytest.raises(Conflict):
        await api.write_lease(set_annotation(made.document, "a.b/c", "two"))
    assert get_annotation(await api.get_lease("kube-system", name), "a.b/c") == "one"
    await admin.request("DELETE", f"{LEASES}/{name}")
    with pytest.raises(Conflict):
        await api.write_lease(made.document)
