"""The cluster that changes at random, with an account at Octavia and Neutron themselves."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec

from libs.clouds.balancers import Owner
from libs.clouds.openstack.balancers.ownership import build_description, read_description
from libs.clouds.openstack.responses import PROJECT
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import KubeService
from libs.common.contract.node import NodeAddress
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.http_faults import Answer, MakeResponse, replace_answer
from libs.testbed.clouds.openstack.server import SimOpenStack
from libs.testbed.clouds.openstack_services.services import (
    BALANCERS,
    BalancerProject,
    OpenStackServices,
    RealOpenStack,
)
from tests.contract.clouds.accounts import CLOUD_CONF, SECRET
from tests.model.clouds.balancer_cluster import (
    ACCOUNT,
    CLUSTER_LABEL,
    GROUP,
    SERVICE_LABEL,
    RandomCluster,
)
from tests.real.openstack.client import PREFIX
from tests.real.openstack.cluster import SECTION

_USER: Final = "prod"
_REGION: Final = "RegionOne"
_ADDRESSES: Final = "floatingips"


def _reject(status: int, text: str) -> MakeResponse:
    """Return the fault that answers in Octavia's form."""
    fault = {"faultcode": "Client", "faultstring": text, "debuginfo": None}
    return replace_answer(Answer(status=status, document=fault))


class FaultyOpenStack(RealOpenStack):
    """Octavia and Neutron, before which requests fail in Octavia's own forms."""

    writes = 0
    faults: Mapping[str, MakeResponse] = {
        **SimOpenStack.faults,
        "conflict": _reject(409, "Load Balancer of this is immutable and cannot be updated."),
        "unavailable": _reject(503, "The service is unavailable"),
        "too_many": _reject(429, "Too many requests"),
        "no_quota": _reject(403, "Quota has been met for resources: Load Balancer"),
    }

    def answer(self, request: SimRequest) -> Answer:
        """Return the answer of the service, and count what may have changed something."""
        answer = super().answer(request)
        self.writes += request.method != "GET"
        return answer


class OpenStackRandomCluster(RandomCluster):
    """The time of the cluster jumps, and that of Octavia does not: a schedule is not the same each time."""

    services: ClassVar[OpenStackServices]
    provider = "openstack"
    prefix = "openstack:///"
    native_label = "kube_service_kubernetes_default_web"
    node_selector = f"{PREFIX}node-selector"
    endpoint = ""  # the credential has it
    read_faults = (
        *((name, "now") for name in ("drop", "cut_off", "proxy_bad_gateway", "unavailable", "hang")),
        *((name, "now") for name in ("proxy_not_found", "login_page")),
        ("too_many", "never"),
        ("unauthorized", "never"),
    )
    write_faults = (
        *(
            (name, effect)
            for effect in ("now", "never", "later")
            for name in ("drop", "hang", "proxy_bad_gateway", "unavailable")
        ),
        *((name, "never") for name in ("conflict", "no_quota", "too_many", "forbidden")),
    )

    @classmethod
    def of(cls, services: OpenStackServices) -> type["OpenStackRandomCluster"]:
        """Return the class of clusters whose account is at these services."""
        return type(cls.__name__, (cls,), {"services": services})

    def _start_cloud(self) -> None:
        self._began_at = datetime.now(UTC)  # Octavia's clock tells when a load balancer was created
        cloud = FaultyOpenStack(self.services)
        self.cloud = SimApiServer(cloud)
        self.project = BalancerProject(self.services, cloud.state.add_project(_USER))
        cloud.state.passwords = {(_USER, SECRET): self.project.id}
        self.anchor = InstanceAnchor(kind=PROJECT, id=f"{self.project.id}@{_REGION}")
        self._servers: dict[str, str] = {}  # by address
        self._troubles: list[asyncio.TimerHandle] = []
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._listed_at: tuple[int, float] | None = None

    @property
    def credential(self) -> str:  # type: ignore[override]  # it names the endpoint
        """The credential file."""
        place = {"subnet": self.project.subnet, "external": self.project.external}
        login = {"endpoint": self.cloud.endpoint, "user": _USER, "secret": SECRET, "region": _REGION}
        return CLOUD_CONF.format(**login) + SECTION.format(**place)

    def now(self) -> datetime:
        return self._began_at + timedelta(seconds=self.clock() - 1000)

    def choose_annotations(self, group: int) -> dict[str, str]:
        return {self.node_selector: f"{GROUP}={group}"}

    def list_changes(self) -> tuple[tuple[str, str], ...]:
        return (
            (f"{PREFIX}lb-method", "LEAST_CONNECTIONS"),
            (f"{PREFIX}connection-limit", "7"),
            (f"{PREFIX}proxy-protocol", self.random.choice(("true", "false"))),
            (f"{PREFIX}health-monitor-delay", "9"),
            (self.node_selector, f"{GROUP}={self.random.randrange(self.scale.groups)}"),
        )

    def is_invalid(self, service: KubeService) -> bool:
        """Octavia enforces source ranges."""
        return False

    def join(self, name: str, group: int) -> None:
        """Octavia knows a target by its address."""
        super().join(name, group)
        node, number = self.nodes[name], len(self._servers)
        address = f"10.1.{number // 250}.{number % 250 + 1}"
        self._servers[address] = node.spec.provider_id.removeprefix(self.prefix)
        addresses = (NodeAddress(type="InternalIP", address=address),)
        status = msgspec.structs.replace(node.status, addresses=addresses)
        self.nodes[name] = msgspec.structs.replace(node, status=status)

    # ---- the cloud

    def _list(self, path: str) -> list[dict[str, Any]]:
        """Objects of the project, by the last answer while nothing can have changed."""
        is_pending = any(_is_pending(each) for each in self._lists.get("loadbalancers", ()))
        key = (self.cloud.cloud.writes, self.clock() if is_pending else 0.0)
        if key != self._listed_at:
            self._lists, self._listed_at = {}, key
        if path not in self._lists:
            self._lists[path] = self.project.list_parts(path)
        return self._lists[path]

    def _send(self, method: str, path: str, *, is_admin: bool = False, **document: Any) -> Answer:
        """A request of another client, or of the cloud's operator."""
        self._listed_at = None
        body = msgspec.json.encode(document) if document else None
        project = "" if is_admin else self.project.id
        return self.services.request("load-balancer", method, BALANCERS + path, body, project=project)

    @property
    def balancers(self) -> dict[Any, Any]:
        return {each["id"]: _describe(each) for each in self._list("loadbalancers")}

    def list_own(self, uid: str = "") -> list[Any]:
        return [each for each in super().list_own(uid) if not each["is_ending"]]

    def add_machine(self, name: str) -> str:
        server: str = self.project.sim.add_server(name)
        return server

    def remove_machine(self, machine: str) -> None:
        self.project.sim.delete_server(machine)

    def add_balancer(self, name: str, labels: dict[str, str]) -> Any:
        self._end_troubles()
        tags = [f"{key}={value}" for key, value in labels.items()]
        body = {"name": name, "vip_subnet_id": self.project.subnet, "tags": tags}
        created = self._send("POST", "/loadbalancers", loadbalancer=body)
        number: str = created.document["loadbalancer"]["id"]
        self._wait_for_octavia()
        return number

    def _wait_for_octavia(self) -> None:
        while any(map(_is_pending, self.project.list_parts("loadbalancers"))):
            pass  # each answer takes time
        self._listed_at = None

    def _trouble(self, what: str, seconds: float) -> None:
        file = self.services.folder / what
        file.touch()
        self._troubles.append(asyncio.get_running_loop().call_later(seconds, file.unlink, True))

    def _end_troubles(self) -> None:
        for each in self._troubles:
            each.cancel()
        self._troubles.clear()
        for what in ("hold", "fail"):
            (self.services.folder / what).unlink(missing_ok=True)

    def slow_down(self) -> None:
        """Changes stay PENDING."""
        self._trouble("hold", self.random.uniform(1, 60))

    def fail_change(self) -> None:
        """Changes end with ERROR."""
        self._trouble("fail", self.random.uniform(1, 20))

    def _set_quota(self, count: int) -> None:
        path = f"/quotas/{self.project.id}"
        answer = self._send("PUT", path, is_admin=True, quota={"load_balancer": count})
        assert answer.status == 202, answer

    def use_up_quota(self) -> None:
        self._set_quota(len(self.balancers) + self.random.randrange(2))

    def raise_quota(self) -> None:
        self._set_quota(-1)

    def stop_faults(self) -> None:
        self.raise_quota()
        self._end_troubles()
        self._wait_for_octavia()
        for each in self._list("loadbalancers"):
            if each["provisioning_status"] == "ERROR":
                self._send("PUT", f"/loadbalancers/{each['id']}/failover", is_admin=True)
        self._wait_for_octavia()

    def protect(self, balancer: Any, *, is_protected: bool) -> None:
        """Octavia knows no protection."""

    def is_protected(self, balancer: Any) -> bool:
        return False

    def has_failed(self, balancer: Any) -> bool:
        return bool(balancer["has_failed"])

    def remove_balancer(self, balancer: Any) -> None:
        self._send("DELETE", f"/loadbalancers/{balancer['id']}?cascade=true")

    def change_balancer(self, balancer: Any) -> None:
        for pool in self._list("pools"):
            if _is_at(pool, balancer["id"]) and pool["members"]:
                self._send("DELETE", f"/pools/{pool['id']}/members/{pool['members'][0]['id']}")
                return

    def list_parts(self) -> list[Any]:
        """Floating addresses with our tags."""
        owned = ((each, read_description(each["description"])) for each in self._list(_ADDRESSES))
        return [
            each | {"labels": {CLUSTER_LABEL: of.owner.cluster_uid, SERVICE_LABEL: of.owner.service_uid}}
            for each, of in owned
            if of is not None and of.owner.cluster_uid == self.cluster_uid
        ]

    def add_foreign(self) -> None:
        super().add_foreign()
        owner = Owner(cluster_uid="another", service_uid="of another", account=ACCOUNT.name)
        self.services.create(
            "network",
            f"/v2.0/{_ADDRESSES}",
            project=self.project.id,
            floating_network_id=self.project.external,
            description=build_description(owner),
        )
        self._listed_at = None
        [self._foreign_address] = self._list(_ADDRESSES)

    # ---- requests

    def before_answer(self, request: SimRequest) -> None:
        """A login is in a thread, where time does not jump."""
        if "/v2.0/" in request.path:
            super().before_answer(request)

    def is_creation(self, request: SimRequest) -> bool:
        return request.path.endswith("/lbaas/loadbalancers")

    def read_labels(self, request: SimRequest) -> dict[str, str]:
        return _read_labels(msgspec.json.decode(request.body)["loadbalancer"])

    def is_listing(self, request: SimRequest) -> bool:
        """One listing of ours takes five requests."""
        kinds = ("loadbalancers", "listeners", "pools", "healthmonitors", _ADDRESSES)
        return "/v2.0/" not in request.path or request.path.endswith(kinds)

    def find_target(self, request: SimRequest) -> tuple[Any, bool]:
        kind, *rest = request.path.partition("/v2.0/")[2].removeprefix("lbaas/").split("/")
        body = msgspec.json.decode(request.body)[kind.removesuffix("s")] if request.method == "POST" else {}
        part: Any = next((each for each in self._list(kind) if rest and each["id"] == rest[0]), body)
        if kind == "healthmonitors":
            pool = part["pools"][0]["id"] if "pools" in part else part.get("pool_id")
            part = next((each for each in self._list("pools") if each["id"] == pool), {})
        balancers = self.balancers
        if kind == _ADDRESSES:
            port = part.get("port_id")
            return next((each for each in balancers.values() if port and each["port"] == port), None), False
        if kind == "loadbalancers":
            return balancers.get(part.get("id")), True
        at = part["loadbalancers"][0]["id"] if part.get("loadbalancers") else part.get("loadbalancer_id")
        return balancers.get(at), False

    # ---- what must be true

    def show(self, balancer: Any) -> tuple[set[str], set[str], set[int]]:
        addresses = {
            each["floating_ip_address"]
            for each in self._list(_ADDRESSES)
            if each["port_id"] == balancer["port"]
        }
        pools = [each for each in self._list("pools") if _is_at(each, balancer["id"])]
        members = [{each["address"] for each in self._list(f"pools/{pool['id']}/members")} for pool in pools]
        is_same = members and all(each == members[0] for each in members)
        targets = {self._servers[each] for each in members[0]} if is_same else {"different"}
        listeners = (each for each in self._list("listeners") if _is_at(each, balancer["id"]))
        return addresses, targets, {each["protocol_port"] for each in listeners}

    def is_empty(self, balancer: Any) -> bool:
        is_used = any(each["port_id"] == balancer["port"] for each in self._list(_ADDRESSES))
        return balancer["labels"] in ({}, {"team": "edge"}) and not balancer["listeners"] and not is_used

    def look(self) -> None:
        super().look()
        if self._foreign_address not in self._list(_ADDRESSES):
            self.blame("the floating address of another cluster has changed")


def _is_pending(balancer: Mapping[str, Any]) -> bool:
    return bool(balancer["provisioning_status"].startswith("PENDING"))


def _is_at(part: Mapping[str, Any], balancer_id: str) -> bool:
    return any(each["id"] == balancer_id for each in part["loadbalancers"])


def _read_labels(balancer: Mapping[str, Any]) -> dict[str, str]:
    labels = {}
    for tag in balancer.get("tags", ()):
        key, _, value = tag.partition("=")
        labels[key] = value
    return labels


def _describe(balancer: Mapping[str, Any]) -> dict[str, Any]:
    """The load balancer, without what changes by itself."""
    return {
        "id": balancer["id"],
        "name": balancer["name"],
        "port": balancer["vip_port_id"],
        "labels": _read_labels(balancer),
        "listeners": balancer["listeners"],
        "pools": balancer["pools"],
        "is_ending": balancer["provisioning_status"] == "PENDING_DELETE",
        "has_failed": balancer["provisioning_status"] == "ERROR",
    }
