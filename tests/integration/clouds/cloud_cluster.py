"""A cluster on servers of two cloud accounts; cloud runs here, and the other services as processes."""

import contextlib
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from libs.common.bus.nats.bus import NatsBus
from libs.common.bus.protocol import BusError, NoStream
from libs.common.contract.events import AnyInstanceReport, Decided
from libs.common.contract.instances import InstanceRecord, read_instance_record
from libs.common.contract.node import Node
from libs.common.contract.services import (
    LABELER,
    LIFECYCLE,
    LIFECYCLE_LEASE_NAME,
    METADATA,
    WATCHER,
    expand_cloud,
)
from libs.common.contract.subjects import DECIDED
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet, SimKubelet
from libs.testbed.machine_fleet import MachineFleet, SimMachineFacts, make_machine
from libs.testbed.nats_server import NatsServer
from libs.testbed.service_permissions import get_user_name
from libs.testbed.service_processes import PATIENT_LEASE_FLAGS, ServiceProcesses
from services.cloud.core.instance_schedule import QueryIntervals
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bus_actors import run_during, wait_until
from tests.integration.conftest import QUICK
from tests.integration.service_cluster import run_services
from tests.service_flow import make_dependencies

NODES = "/api/v1/nodes"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LIFECYCLE_LEASE_NAME}"
MERGE = "application/merge-patch+json"
EVIDENCE = timedelta(seconds=1)
# As usual but for the time that it takes: minutes are fractions of a second.
SHORT = (
    "--lifecycle-not-ready-time=1s",
    f"--lifecycle-evidence-time={EVIDENCE.total_seconds():g}s",
    "--lifecycle-start-grace=1s",
)
WATCHES_AT_ONCE = (
    "--talos-watches-opened-after=0s",
    "--talos-watches-opened-per-second=1000",
    "--talos-probe-period=300ms",
)
INTERVALS = QueryIntervals(list=1.0, round=0.5, anchor=1.0)


@dataclass(eq=False)
class Account:
    """A project, its credential file, and the service that reads it."""

    name: str
    project: SimProject
    token: str
    token_file: Path
    service: CloudService | None = None
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)  # the running service

    async def stop(self) -> None:
        """End the service, if it runs."""
        await self.stack.aclose()
        self.stack = AsyncExitStack()

    def has_reported_since(self, name: str, since: datetime) -> bool:
        """Whether the account has asked for the instance of that Node, and published a report."""
        known = self.service.poller.schedule.by_name.get(name) if self.service is not None else None
        return known is not None and known.report is not None and known.report.asked_at > since


@dataclass(eq=False, kw_only=True)
class CloudCluster:
    """Nodes on servers, and what happens to them."""

    control_plane: ControlPlane
    kubelets: KubeletFleet
    machines: MachineFleet
    nats: NatsServer
    cloud: SimHcloudServer
    run_dir: Path
    bus: NatsBus
    services: ServiceProcesses
    accounts: dict[str, Account] = field(default_factory=dict)
    servers: dict[str, int] = field(default_factory=dict)  # by the name of the Node

    def add_project(self, name: str) -> Account:
        """Create a project with a network, and a token for it in a file."""
        token = sha256(name.encode()).hexdigest()
        project = self.cloud.cloud.add_project(token)
        project.add_network()
        file = self.run_dir / f"token-{name}"
        file.write_text(token)
        return Account(name, project, token, file)

    async def start_account(self, account: Account) -> None:
        """Run the service of the account, until it is restarted or the cluster ends."""
        account.service = await account.stack.enter_async_context(self.run_cloud(account, account.token_file))

    @asynccontextmanager
    async def run_cloud(self, account: Account, token_file: Path) -> AsyncIterator[CloudService]:
        """A service of the account during the block, as its process runs it but for the intervals."""
        settings = CloudSettings(
            accounts=(f"hcloud/{account.name}",),
            credential_file=token_file,
            endpoint=self.cloud.endpoint,
            step_seconds=0.1,
            intervals=INTERVALS,
            requests_per_minute=100_000,
            deadline_seconds=0.3,
        )
        bus = await NatsBus.connect(
            (self.nats.url,), service=expand_cloud(account.name).service, timing=QUICK
        )
        try:
            service = CloudService(make_dependencies(bus), settings)
            async with run_during(service.run()):
                yield service
        finally:
            await bus.close()

    async def restart_account(self, account: Account) -> None:
        """End the service of the account and start another one."""
        await account.stop()
        await self.start_account(account)

    async def restart(self, *processes: str) -> None:
        """End processes as Kubernetes does, and start them again."""
        for name in processes:
            await self.services.children[name].stop(30)
            self.services.restart(name)

    async def publish_as(self, account: str, report: AnyInstanceReport) -> None:
        """Publish a report as an attacker does with the NATS key of the account; one may be lost."""
        service = self.accounts[account].service
        assert service is not None
        current = msgspec.structs.replace(report, stream_id=service.poller.stream_id())
        with contextlib.suppress(BusError):
            await self.bus.publish(current)

    # ---- Nodes

    async def join(self, *names: str) -> None:
        """Servers of the first account with these names join, and lifecycle has their record."""
        account = next(iter(self.accounts.values()))
        joining = [self._make_machine(name, account.project.add_server(name)) for name in names]
        await self.machines.put_machines(*joining)
        await self.kubelets.join_all(map(SimKubelet.of_machine, joining))
        for name in names:
            await self.wait_until_recorded(name)

    def _make_machine(self, name: str, server: int, **facts: Any) -> SimMachineFacts:
        self.servers[name] = server
        number = list(self.servers).index(name) + 1
        machine = make_machine(name, f"10.246.0.{number}", platform="hcloud", **facts)
        assert machine.platform is not None
        platform = msgspec.structs.replace(
            machine.platform, instance_id=str(server), provider_id=f"hcloud://{server}"
        )
        return msgspec.structs.replace(machine, platform=platform)

    async def rebuild(self, name: str, server: int, uuid: str) -> None:
        """Another server, with another system UUID, runs under the Node's name."""
        await self.machines.put_machines(self._make_machine(name, server, uuid=uuid))
        status = {"status": {"nodeInfo": {"systemUUID": uuid}}}
        await self.patch(f"{NODES}/{name}/status", status, as_node=name)

    async def recreate(self, name: str) -> None:
        """An operator deletes the Node, and the same kubelet registers again."""
        await self.kubelets.delete_node(name)
        await self.kubelets.join(SimKubelet.of_machine(self.machines.get_machine(name)))
        await self.wait_until_recorded(name)

    async def set_not_ready(self, *names: str) -> None:
        """Their kubelets have been silent for a minute."""
        for name in names:
            await self.kubelets.set_unreachable(name, ago=timedelta(minutes=1))

    async def silence(self, *names: str) -> None:
        """Neither machine nor kubelet answers, and lifecycle knows it."""
        await self.machines.delete_machines(*names)
        await self.set_not_ready(*names)
        for name in names:
            await self.wait_until_kept(name, "silence and errors prove nothing")

    async def patch(self, path: str, body: Any, *, as_node: str | None = None) -> None:
        """Patch an object."""
        await self.kubelets.send("PATCH", path, body=body, as_node=as_node, content_type=MERGE)

    async def get_node(self, name: str) -> Node | None:
        """The Node in Kubernetes, None if there is none."""
        found = await self.kubelets.request("GET", f"{NODES}/{name}")
        return msgspec.convert(found.body, Node) if found.status == HTTPStatus.OK else None

    async def get_record(self, name: str) -> InstanceRecord | None:
        """The valid record of that Node."""
        node = await self.get_node(name)
        return read_instance_record(node) if node is not None else None

    async def list_names(self) -> set[str]:
        """The names of all Nodes."""
        listed = await self.kubelets.send("GET", NODES)
        return {node["metadata"]["name"] for node in listed["items"]}

    def list_deletions(self, since: int) -> list[str]:
        """Return the Nodes that lifecycle deleted since a mark of the audit log."""
        writes = self.control_plane.list_node_writes(since)
        user = get_user_name(LIFECYCLE)
        return [each.about for each in writes if (each.user, each.verb, each.code) == (user, "delete", 200)]

    # ---- waits

    async def wait_until_recorded(self, name: str) -> None:
        """lifecycle has recorded that the account has the instance of that Node."""

        async def is_recorded() -> bool:
            return await self.get_record(name) is not None

        await wait_until(is_recorded, f"the instance of {name} is recorded")

    async def wait_until_gone(self, name: str) -> None:
        """There is no such Node any more."""

        async def is_gone() -> bool:
            return await self.get_node(name) is None

        await wait_until(is_gone, f"{name} is deleted: {await self.get_reason(name)}")

    async def get_reason(self, name: str) -> str:
        """What lifecycle has decided last about that Node, with its reason."""
        try:
            message = await self.bus.get_last(f"{DECIDED}.{LIFECYCLE.service}.node.{name}")
        except NoStream:
            return ""
        decided = message.event if message is not None else None
        return f"{decided.outcome}: {decided.reason}" if isinstance(decided, Decided) else ""

    async def wait_until_kept(self, name: str, reason: str) -> None:
        """lifecycle keeps that Node for that reason, and not only at first."""
        last = ""

        async def is_kept() -> bool:
            nonlocal last
            last = await self.get_reason(name)
            return last.startswith("kept") and reason in last

        try:
            await wait_until(is_kept)
        except AssertionError:
            raise AssertionError(f"{name} is not kept because of {reason!r}, but {last!r}") from None

    async def stay(self, names: Collection[str], about: str, since: datetime) -> None:
        """These Nodes are there until each account has reported on `about` for longer than evidence takes."""
        enough = since + 1.25 * EVIDENCE

        async def is_enough() -> bool:
            gone = set(names) - await self.list_names()
            assert not gone, f"{gone} are deleted"
            return all(each.has_reported_since(about, enough) for each in self.accounts.values())

        await wait_until(is_enough, f"each account reports on {about}")


@asynccontextmanager
async def open_cluster(
    control_plane: ControlPlane, kubelets: KubeletFleet, machines: MachineFleet, run_dir: Path
) -> AsyncIterator[CloudCluster]:
    """The services with the accounts "prod" and "spare", without Nodes of theirs."""
    await kubelets.request("DELETE", LEASE)  # with the deletions of the last hour
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServer.start(run_dir / "nats"))
        cloud = await stack.enter_async_context(SimHcloudServer.start(SimHcloud(rate_limit=10**9)))
        bus = await NatsBus.connect((nats.url,), service="test", timing=QUICK)
        stack.push_async_callback(bus.close)
        running = run_services(
            run_dir / "services",
            control_plane,
            kubelets,
            machines,
            nats_url=nats.url,
            wirings=(WATCHER, METADATA, LABELER, LIFECYCLE),
            flags=["--controllers=cloud-node,cloud-node-lifecycle"],
            own_flags={**PATIENT_LEASE_FLAGS, "lifecycle": SHORT, "metadata": WATCHES_AT_ONCE},
        )
        cluster = CloudCluster(
            control_plane=control_plane,
            kubelets=kubelets,
            machines=machines,
            nats=nats,
            cloud=cloud,
            run_dir=run_dir,
            bus=bus,
            services=await stack.enter_async_context(running),
        )
        stack.push_async_callback(_remove_nodes, cluster)
        for name in ("prod", "spare"):
            account = cluster.accounts[name] = cluster.add_project(name)
            await cluster.start_account(account)
            stack.push_async_callback(account.stop)
        yield cluster


async def _remove_nodes(cluster: CloudCluster) -> None:
    for name in cluster.servers:
        await cluster.kubelets.delete_node(name)
