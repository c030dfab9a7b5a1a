"""Our client of load balancers of OpenStack, in a project of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from libs.clouds.account_session import AccountOptions
from libs.clouds.balancers import (
    Balancer,
    BalancerRequest,
    Balancers,
    Owner,
    ParsedRequest,
    Port,
    Target,
    WriteSuccess,
)
from libs.clouds.instances import Unanswered
from libs.clouds.openstack.balancers.desired import DesiredBalancer
from libs.clouds.openstack.balancers.octavia_balancers import OctaviaBalancers
from libs.clouds.openstack.balancers.plan import Change
from libs.clouds.openstack.openstack_api import OpenStackApi
from libs.testbed.child_process import HANG_SECONDS
from libs.testbed.clouds.api_server import SimApiServer
from libs.testbed.clouds.openstack_services.services import BalancerProject, RealOpenStack
from tests.contract.clouds.accounts import SECRET, OpenStackAccount

OWNER = Owner(
    cluster_uid="5c1a7b4e-0000-4000-8000-000000000001",
    service_uid="5c1a7b4e-0000-4000-8000-000000000002",
    account="prod",
)
TAGS = [
    f"talos-ccm/cluster={OWNER.cluster_uid}",
    f"talos-ccm/service-uid={OWNER.service_uid}",
    "talos-ccm/account=prod",
]
PREFIX = "loadbalancer.openstack.org/"
INTERNAL = {"service.beta.kubernetes.io/openstack-internal-load-balancer": "true"}
TARGETS = (Target(address="10.0.0.11"), Target(address="10.0.0.12"))


class OctaviaClient:
    """Our client, and what its tests do again and again."""

    def __init__(
        self, server: SimApiServer[RealOpenStack], project: BalancerProject, file: Path, **options: Any
    ) -> None:
        self.server, self.project = server, project
        self.api = OpenStackApi(
            AccountOptions(
                credential=file,
                user_agent="talos-ccm/test",
                requests_per_minute=10_000,
                deadline_seconds=HANG_SECONDS,
            )
        )
        keys = {"subnet-id": project.subnet, "floating-network-id": project.external}
        defaults: dict[str, Any] = {
            "requests_per_minute": 10_000,
            "write_deadline_seconds": HANG_SECONDS,
            "first_poll_seconds": 0.1,  # a poll takes as much CPU time as the change
        }
        self.ours = OctaviaBalancers(self.api, keys, **(defaults | options))
        self._conforms: Balancers[DesiredBalancer, Change] = self.ours

    @classmethod
    @asynccontextmanager
    async def open(
        cls, server: SimApiServer[RealOpenStack], folder: Path, *, user: str = "web", **options: Any
    ) -> AsyncIterator["OctaviaClient"]:
        account = OpenStackAccount(server, user=user)  # type: ignore[arg-type]  # the same cloud, with more
        file = account.write_credential(folder, SECRET)
        client = cls(server, BalancerProject(server.cloud.services, account.project), file, **options)
        try:
            yield client
        finally:
            await client.ours.close()
            await client.api.close()

    def parse(self, ports: tuple[Port, ...] = (), **fields: Any) -> ParsedRequest[DesiredBalancer]:
        defaults: dict[str, Any] = {"annotations": {}, "ports": ports or (make_port(80),)}
        request = BalancerRequest(
            namespace="default", name="web", uid=OWNER.service_uid, **(defaults | fields)
        )
        return self.ours.read_request(request)

    async def desired(self, *ports: Port, **fields: Any) -> DesiredBalancer:
        parsed = await self.ours.resolve_names(self.parse(ports, **fields))
        assert not isinstance(parsed, Unanswered), parsed
        assert parsed.invalid == ()
        return parsed.desired

    async def create(self, desired: DesiredBalancer, *targets: Target) -> str:
        result = await self.ours.create_balancer(desired, targets, OWNER)
        assert isinstance(result, WriteSuccess), result
        return result.balancer_id

    async def get(self, balancer_id: str) -> Balancer:
        found = await self.ours.get_balancer(balancer_id)
        assert isinstance(found, Balancer), found
        return found

    async def list_all(self) -> tuple[Balancer, ...]:
        found = await self.ours.list_balancers(OWNER.cluster_uid, reads_parts=True)
        assert not isinstance(found, Unanswered), found
        return found

    async def converge(self, balancer_id: str, desired: DesiredBalancer, *targets: Target) -> list[str]:
        """Make changes until nothing differs; return their methods and kinds of objects."""
        changes: list[str] = []
        while planned := self.ours.plan_changes(desired, targets, await self.get(balancer_id)):
            assert len(changes) < 50, changes[-5:]
            result = await self.ours.change_balancer(balancer_id, planned[0])
            assert isinstance(result, WriteSuccess), (planned[0], result)
            changes.append(describe(planned[0]))
        return changes


def make_port(port: int, protocol: str = "TCP") -> Port:
    """A port with the NodePort 30000 above it."""
    return Port(name=f"port-{port}", protocol=protocol, port=port, node_port=30000 + port)


def annotate(**annotations: str) -> dict[str, str]:
    """Annotations of this cloud by their fields."""
    return {PREFIX + name.replace("_", "-"): text for name, text in annotations.items()}


def describe(change: Change) -> str:
    """Method and kind of object, such as "POST pools"."""
    parts = change.path.removeprefix("/lbaas").strip("/").split("/")
    return f"{change.method} {parts[2] if len(parts) > 2 else parts[0]}"
