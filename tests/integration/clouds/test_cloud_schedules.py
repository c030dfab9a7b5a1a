"""Faults of clouds, attackers and outages at a real control plane: no Node goes whose server exists.

Each schedule has two Nodes that are not ready and whose machines are silent: one whose server exists, and one
whose server its cloud deletes during the fault. The first one stays, also in all later schedules. The second
one goes, at the latest after the fault.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import msgspec
import nats
import pytest

from libs.common.clocks import utc_now
from libs.common.contract.events import InstanceGone, decode
from libs.common.contract.instances import RECORD_ANNOTATION
from libs.common.contract.subjects import CLOUD_REPORTS, STREAM
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.machine_fleet import MachineFleet
from tests.bus_actors import run_during, wait_until
from tests.integration.clouds.cloud_cluster import NODES, CloudCluster, open_cluster

Fault = Callable[[CloudCluster, str], AbstractAsyncContextManager[None]]


# ---- faults, which last as long as their block


def answers(fault: str, path: str = ".*") -> Fault:
    """The API answers so to requests of that path."""

    @asynccontextmanager
    async def begin(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
        cluster.cloud.add_fault(fault, path)
        added = cluster.cloud.faults[-1]
        try:
            yield
        finally:
            cluster.cloud.faults.remove(added)

    return begin


def token_of(project: str) -> Fault:
    """The file of the account has the token of another project; "" = one that opens none."""

    @asynccontextmanager
    async def begin(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
        account = cluster.accounts["prod"]
        account.token_file.write_text(cluster.add_project(project).token if project else "f" * 64)
        try:
            yield
        finally:
            account.token_file.write_text(account.token)

    return begin


@asynccontextmanager
async def second_process(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    """A second process of the account has a token of another project."""
    file = cluster.add_project("second").token_file
    async with cluster.run_cloud(cluster.accounts["prod"], file):
        yield


def restart(*processes: str) -> Fault:
    @asynccontextmanager
    async def begin(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
        await cluster.restart(*processes)
        yield

    return begin


@asynccontextmanager
async def restart_clouds_afterwards(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    """A rate limit makes each account pause for at least a minute, which its next process does not know."""
    try:
        yield
    finally:
        for account in cluster.accounts.values():
            await cluster.restart_account(account)


@asynccontextmanager
async def no_api_server(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    await cluster.control_plane.apiserver.kill()
    await cluster.control_plane.restart_apiserver()
    yield


@asynccontextmanager
async def wiped_stream(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    client = await nats.connect(cluster.nats.url)
    await client.jetstream().delete_stream(STREAM)
    await client.close()
    yield


def moved_to(project: str, *, renamed: str = "") -> Fault:
    """The server is transferred to that project, and stays there."""

    @asynccontextmanager
    async def begin(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
        prod, server = cluster.accounts["prod"].project, cluster.servers[name]
        if renamed:
            prod.update_server(server, name=renamed)
        target = cluster.accounts.get(project) or cluster.add_project(project)
        prod.move_server(server, target.project)
        yield

    return begin


@asynccontextmanager
async def forged_record(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    """The kubelet gives its Node the record of the Node whose server is deleted."""
    other = await cluster.get_node(name.replace("stays", "goes"))
    assert other is not None
    annotations = {RECORD_ANNOTATION: other.annotations[RECORD_ANNOTATION]}
    await cluster.patch(f"{NODES}/{name}", {"metadata": {"annotations": annotations}}, as_node=name)
    yield


@asynccontextmanager
async def replayed_reports(cluster: CloudCluster, name: str) -> AsyncIterator[None]:
    """The cloud lies for two rounds about a renamed server; these reports are published again and again."""
    server, subject = cluster.servers[name], f"{CLOUD_REPORTS}.prod.instance.{name}"
    cluster.accounts["prod"].project.update_server(server, name=f"{name}-renamed")
    client = await nats.connect(cluster.nats.url)
    gone: list[InstanceGone] = []

    async def capture() -> None:
        subscription = await client.subscribe(subject)
        await client.flush()
        async with answers("lying_not_found", f"/servers/{server}")(cluster, name):
            async for message in subscription.messages:
                event = decode(message.data)
                gone.extend([event] if isinstance(event, InstanceGone) else [])
                if len(gone) == 2:
                    break

    async def replay() -> None:
        while True:
            for event in gone:
                await cluster.publish_as("prod", event)
            await asyncio.sleep(0.05)

    async with asyncio.timeout(HANG_SECONDS):
        await capture()
    await client.close()
    async with run_during(replay()):
        yield


# ---- what happens before the first schedule, while all machines answer


async def nothing(cluster: CloudCluster, name: str) -> None:
    pass


async def rebuilt(cluster: CloudCluster, name: str) -> None:
    """Another server has the name, and its kubelet the Node, with the immutable providerID of before."""
    project = cluster.accounts["prod"].project
    project.remove("servers", cluster.servers[name])
    await cluster.rebuild(name, project.add_server(name), "0f8e7d6c-5b4a-4392-a1b0-c9d8e7f60514")

    async def is_void() -> bool:
        return await cluster.get_record(name) is None

    await wait_until(is_void, f"the record of {name} is void")


async def recreated(cluster: CloudCluster, name: str) -> None:
    """The Node has another uid."""
    await cluster.recreate(name)


# ---- the table


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Faults that last at the same time."""

    name: str
    faults: tuple[Fault, ...]
    kept_for: str  # part of the reason why the Node stays during the faults
    before: Callable[[CloudCluster, str], Awaitable[None]] = nothing
    machine_answers: bool = False


SCHEDULES = (
    Schedule(
        name="wrong-token",
        faults=(token_of(""), restart("lifecycle", "metadata")),
        kept_for="unauthorized",
    ),
    Schedule(
        name="another-project",
        faults=(token_of("foreign"), answers("empty_list", "/servers")),
        kept_for="finds neither it nor the witness",
    ),
    Schedule(
        name="forbidden",
        faults=(answers("forbidden", "/servers/.*"), answers("half_page", "/servers")),
        kept_for="403",
    ),
    Schedule(
        name="proxy",
        faults=(answers("proxy_not_found"), no_api_server),
        kept_for="404",
    ),
    Schedule(
        name="rate-limit",
        faults=(answers("rate_limited"), restart_clouds_afterwards),
        kept_for="429",
    ),
    Schedule(
        name="server-error",
        faults=(answers("service_error", "/servers/.*"), answers("hang", "/servers")),
        kept_for="503",
    ),
    Schedule(
        name="lying",
        faults=(answers("lying_not_found", "/.*/.*"), answers("empty_list", "/.*")),
        kept_for="finds neither it nor the witness",
    ),
    Schedule(
        name="moved-to-account",
        faults=(moved_to("spare", renamed="moved"), second_process),
        kept_for="account spare has shown its instance alive",
    ),
    Schedule(
        name="moved-away",
        faults=(moved_to("nobodys"),),
        kept_for="its machine answers",
        machine_answers=True,
    ),
    Schedule(
        name="rebuilt",
        before=rebuilt,
        faults=(answers("duplicate", "/servers"),),
        kept_for="a record that an account has shown its instance alive",
    ),
    Schedule(
        name="recreated",
        before=recreated,
        faults=(forged_record,),
        kept_for="a record that an account has shown its instance alive",
    ),
    Schedule(
        name="replayed",
        faults=(replayed_reports, wiped_stream, restart("lifecycle", "watcher", "labeler")),
        kept_for="does not report its instance as gone: it exists",
    ),
)


@pytest.fixture(scope="module")
async def cluster(
    control_plane: ControlPlane,
    kubelets: KubeletFleet,
    machines: MachineFleet,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[CloudCluster]:
    """All Nodes have joined, and nearly all are lost from the start: each fault threatens them all."""
    run_dir = tmp_path_factory.mktemp("cloud-schedules")
    async with open_cluster(control_plane, kubelets, machines, run_dir) as running:
        await running.join(*(f"{each.name}-{end}" for each in SCHEDULES for end in ("stays", "goes")))
        for each in SCHEDULES:
            await each.before(running, f"{each.name}-stays")
        answering = [f"{each.name}-stays" for each in SCHEDULES if each.machine_answers]
        await running.set_not_ready(*answering)
        await running.silence(*(running.servers.keys() - answering))
        yield running


@pytest.mark.parametrize("schedule", SCHEDULES, ids=[each.name for each in SCHEDULES])
async def test_a_node_whose_server_exists_stays_and_one_whose_server_was_deleted_goes(
    schedule: Schedule, cluster: CloudCluster
):
    stays, goes = f"{schedule.name}-stays", f"{schedule.name}-goes"
    present, since = await cluster.list_names(), cluster.control_plane.audit_mark()
    assert {stays, goes} <= present
    async with AsyncExitStack() as faults:
        for fault in schedule.faults:
            await faults.enter_async_context(fault(cluster, stays))
        began = utc_now()
        cluster.accounts["prod"].project.remove("servers", cluster.servers[goes])
        await cluster.wait_until_kept(stays, schedule.kept_for)
        await cluster.stay(present - {goes}, about=stays, since=began)
    await cluster.wait_until_gone(goes)
    assert await cluster.list_names() == present - {goes}
    assert cluster.list_deletions(since) == [goes]
