"""A cluster with Services and Nodes, a simulated Hetzner Cloud, and the processes of watcher and account."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.events import (
    Leading,
    NodeGone,
    NodeObserved,
    ObservationOrder,
    ObservedKubeService,
)
from libs.common.contract.kube_service import KubeService
from libs.common.contract.subjects import LEADING
from libs.common.kube.api import KubeApi
from libs.common.kube.errors import NotFound
from libs.common.kube.load_kube_config import load_kube_config
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.hcloud.project import SimProject
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.service import CloudService
from services.cloud.settings import CloudSettings
from tests.bus_actors import run_during, wait_for_value, wait_until
from tests.clocks import ManualClock, RunningClock
from tests.service_flow import make_dependencies
from tests.watcher_actors import PATIENT, make_watcher

TOKEN = "a" * 64
CLASS = "example.com/lb"
NAMESPACE = "default"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"
LOCATION = {"load-balancer.hetzner.cloud/location": "fsn1"}
CONTROLLERS = ("cloud-node", "service-lb-controller")


class BalancerCluster:
    """Services by an admin, servers in the project, and Nodes with their providerIDs."""

    def __init__(
        self,
        api: KubeApi,
        admin: KubeletFleet,
        cloud: SimHcloudServer,
        folder: Path,
        open_client: Callable[..., KubeApi],
    ) -> None:
        self.api = api
        self.admin = admin
        self.cloud = cloud
        self.project: SimProject = cloud.cloud.add_project(TOKEN)
        self.project.add_network()
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN)
        self.bus_server = MemoryServer()
        self._node_port = 30080
        self._open_client = open_client
        self.service: CloudService

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        api_server: ControlPlane | SimApiServer,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
    ) -> AsyncIterator["BalancerCluster"]:
        """Without any process; `users` has those of the processes, by default an admin."""

        def open_client(process: str, kind: type[KubeApi] = KubeApi) -> KubeApi:
            kubeconfig = api_server.kubeconfig((users or {}).get(process, "admin"))
            config = load_kube_config(kubeconfig, {})
            return kind(config, user_agent="talos-ccm/test", instance="test")

        api = open_client("admin")
        async with (
            KubeletFleet.start(api_server) as admin,
            SimHcloudServer.start(SimHcloud(rate_limit=100_000)) as cloud,
        ):
            try:
                yield cls(api, admin, cloud, folder, open_client)
            finally:
                await api.close()

    # ---- processes

    @asynccontextmanager
    async def run_watcher(self, controllers: tuple[str, ...] = CONTROLLERS) -> AsyncIterator[None]:
        """A watcher that leads by its Lease, which no busy machine lets expire."""
        kube, bus = self._open_client("watcher"), MemoryBus(self.bus_server)
        watcher = make_watcher(bus, kube=kube, controllers=controllers, resync_seconds=60.0, **PATIENT)
        try:
            async with run_during(watcher.run()):
                await wait_until(lambda: watcher.problems() == (), "the watcher leads")
                yield
        finally:
            await kube.close()

    @asynccontextmanager
    async def run_account(
        self,
        name: str = "prod",
        *,
        clock: ManualClock | RunningClock | None = None,
        identity: str = "",
        client: type[KubeApi] = KubeApi,
        bus_server: MemoryServer | None = None,
        **settings: Any,
    ) -> AsyncIterator[CloudService]:
        """The process of the account; by default with the real time, and on the watcher's bus."""
        kube, bus = self._open_client(name, client), MemoryBus(bus_server or self.bus_server)
        chosen: dict[str, Any] = {
            "accounts": (f"hcloud/{name}",),
            "credential_file": self.token_file,
            "endpoint": self.cloud.endpoint,
            "step_seconds": 0.1,
            "requests_per_minute": 10_000,
            "controllers": CONTROLLERS,
            "balancer_classes": (f"{name}={CLASS}",),
            "retry_period_seconds": 0.2,
        }
        parts = make_dependencies(bus, kube=kube, clock=clock, identity=identity or f"host_{name}")
        service = CloudService(parts, CloudSettings(**(chosen | settings)))
        try:
            async with run_during(service.run()):
                if bus_server is None:
                    await wait_until(lambda: service.problems() == (), "the account is ready")
                yield service
        finally:
            await bus.close()
            await kube.close()

    # ---- the cluster

    async def create_service(
        self, name: str, *, annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        """Create a Service of the class."""
        self._node_port += 1
        ports = [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": self._node_port}]
        defaults = {"type": "LoadBalancer", "loadBalancerClass": CLASS, "ports": ports}
        body = {
            "metadata": {"name": name, "annotations": LOCATION | dict(annotations or {})},
            "spec": defaults | spec,
        }
        created = await self.admin.request("POST", SERVICES, body=body)
        assert created.status == 201, created

    async def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Set annotations of the Service."""
        await self.patch_service(name, {"metadata": {"annotations": dict(annotations)}})

    async def patch_service(self, name: str, body: dict[str, Any]) -> None:
        """Apply a merge patch."""
        content_type = "application/merge-patch+json"
        await self.admin.request("PATCH", f"{SERVICES}/{name}", body=body, content_type=content_type)

    async def delete_service(self, name: str) -> None:
        """Delete it; it stays while it has finalizers."""
        await self.admin.request("DELETE", f"{SERVICES}/{name}")

    async def find_service(self, name: str) -> KubeService | None:
        """The Service, None if there is none."""
        try:
            return await self.api.get_service(NAMESPACE, name)
        except NotFound:
            return None

    async def join(self, name: str) -> int:
        """Create a server and its Node; return the server's id."""
        number = len(self.project.tables["servers"]) + 1
        server_id = self.project.add_server(name, ipv4=f"192.0.2.{number}")
        body = {"metadata": {"name": name}, "spec": {"providerID": f"hcloud://{server_id}"}}
        created = await self.admin.request("POST", "/api/v1/nodes", body=body)
        assert created.status == 201, created
        return server_id

    # ---- what is there

    @property
    def balancers(self) -> list[dict[str, Any]]:
        """The load balancers of the project."""
        return list(self.project.tables["load_balancers"].values())

    async def forge(self, event: ObservedKubeService | NodeObserved | NodeGone) -> None:
        """Publish an event as whoever has the NATS key of the watcher."""
        bus = MemoryBus(self.bus_server)
        last = await bus.get_last(LEADING)
        assert last is not None
        assert isinstance(last.event, Leading)
        order = ObservationOrder(epoch=last.event.epoch, resource_version=10**9)
        await bus.publish(msgspec.structs.replace(event, stream_id=last.event.stream_id, order=order))
        await bus.close()

    def list_requests(self, since: int = 0) -> list[tuple[str, str]]:
        """Method and path of the requests about load balancers, after the first `since` requests."""
        requests = [(each.method, each.path) for each in self.cloud.requests[since:]]
        return [each for each in requests if each[1].startswith("/load_balancers")]

    def list_targets(self) -> set[int]:
        """The servers behind all load balancers."""
        return {each["server"]["id"] for balancer in self.balancers for each in balancer["targets"]}

    async def wait_for_address(self, name: str, seconds: float = HANG_SECONDS) -> KubeService:
        """The Service, once its status has an address."""
        return await wait_for_value(
            lambda: self.find_service(name),
            lambda service: service.status.load_balancer.ingress,
            f"{name} has an address",
            seconds,
        )

    async def wait_for_end(self, name: str, seconds: float = HANG_SECONDS) -> None:
        """Wait until neither the Service nor a load balancer is there."""
        await self.wait_until_gone(name, seconds)
        assert self.balancers == []

    async def wait_until_gone(self, name: str, seconds: float = HANG_SECONDS) -> None:
        """Wait until the Service is gone; its load balancer may stay."""

        async def is_gone() -> bool:
            return await self.find_service(name) is None

        await wait_until(is_gone, f"{name} is gone", seconds)

    async def wait_for_event(self, name: str, reason: str) -> None:
        """Wait until there is such an Event about the Service."""

        async def is_there() -> bool:
            return reason in await self.list_events(name)

        await wait_until(is_there, f"{reason} of {name}")

    async def list_events(self, name: str) -> list[str]:
        """The reasons of the Events about the Service, in order of their creation."""
        found = (await self.admin.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events")).body["items"]
        return [each["reason"] for each in found if each["involvedObject"]["name"] == name]


async def advance(service: CloudService, clock: ManualClock | RunningClock, seconds: float) -> None:
    """Advance in steps that the Lease outlives, and let all that is due be done."""
    assert service.leader is not None
    elector, balancers, routes = service.leader.elector, service.balancers, service.routes
    for _ in range(round(seconds / 10)):
        clock.advance(10)
        await wait_until(lambda: elector.leading_until > clock() + 55, "renewed")
        if routes is not None:
            routes.on_changed()  # its timers are of the loop
        if balancers is not None:
            await wait_until(lambda: balancers.is_idle, "nothing is due")


def has_finalizer(service: KubeService | None) -> bool:
    return service is not None and service.has_finalizer
