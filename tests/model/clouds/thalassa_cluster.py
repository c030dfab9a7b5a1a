"""The cluster that changes at random, with an account at a simulated Thalassa Cloud."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from libs.clouds.thalassa.balancers.annotations import PREFIX
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import KubeService
from libs.common.contract.node import Node
from libs.testbed.clouds.api_server import SimApiServer, SimRequest
from libs.testbed.clouds.thalassa.objects import make_balancer
from libs.testbed.clouds.thalassa.server import SimThalassa
from tests.builders import NOW
from tests.model.clouds.balancer_cluster import SERVICE_LABEL, RandomCluster

_TOKEN: Final = "the-token-of-web"
_CONFIG: Final = "organisation: acme\nvpcIdentity: {vpc}\ncloudCredentials: {{personalAccessToken: {token}}}"
_BALANCERS: Final = "loadbalancers"
_GROUPS: Final = "loadbalancer-target-groups"
_RANGE: Final = "192.0.2.0/24"


class ThalassaCluster(RandomCluster):
    """All Nodes are targets of all Services."""

    provider = "thalassa"
    prefix = "thalassacloud://"
    native_label = "k8s.thalassa.cloud/kubernetes-service-uid"
    id_key = "identity"
    has_node_selectors = False
    read_faults = (
        *((name, "now") for name in ("drop", "cut_off", "proxy_bad_gateway", "service_error", "hang")),
        *((name, "now") for name in ("lying_not_found", "proxy_not_found", "login_page", "duplicate")),
        ("rate_limited", "never"),
        ("unauthorized", "never"),
    )
    write_faults = (
        *(
            (name, effect)
            for effect in ("now", "never", "later")
            for name in ("drop", "hang", "proxy_bad_gateway", "service_error")
        ),
        *((name, "never") for name in ("conflict", "quota", "rate_limited", "forbidden")),
    )

    def _start_cloud(self) -> None:
        cloud = SimThalassa(now=self.clock)
        self.cloud = SimApiServer(cloud)
        self.project = cloud.add_organisation("acme", _TOKEN)
        vpc = self.project.add_vpc("net")
        self.vpc = self.project.tables["vpcs"][vpc]
        self.anchor = InstanceAnchor(kind="vpc", id=f"{vpc}@acme")
        self.credential = _CONFIG.format(vpc=vpc, token=_TOKEN)

    def now(self) -> datetime:
        return NOW.astimezone(UTC) + timedelta(seconds=self.clock() - 1000)

    def choose_annotations(self, group: int) -> dict[str, str]:
        return {}

    def list_changes(self) -> tuple[tuple[str, str], ...]:
        return (
            (f"{PREFIX}loadbalancing-policy", "MAGLEV"),
            (f"{PREFIX}loadbalancing-policy", "RANDOM"),
            (f"{PREFIX}max-connections", "7"),
            (f"{PREFIX}acl-allowed-sources", _RANGE),
            (f"{PREFIX}enable-proxy-protocol", "true"),
        )

    # ---- the cloud

    @property
    def balancers(self) -> dict[Any, Any]:
        balancers: dict[Any, Any] = self.project.tables[_BALANCERS]
        return balancers

    def add_machine(self, name: str) -> str:
        machine: str = self.project.add_machine(name, vpc=self.vpc["identity"])
        return machine

    def remove_machine(self, machine: str) -> None:
        self.project.remove("machines", machine)

    def add_balancer(self, name: str, labels: dict[str, str]) -> Any:
        identity = self.project.next_identity("lb")
        parts: dict[str, Any] = {"_listeners": [], "_is_internal": False, "securityGroups": []}
        balancer = make_balancer(identity, name, self.vpc, self.vpc["subnets"][0], **parts)
        address = {"status": "ready", "externalIpAddresses": ["198.51.100.1"]}
        self.balancers[identity] = balancer | address | {"labels": labels, "deleteProtection": False}
        return identity

    def slow_down(self) -> None:
        self.project.balancers.build_seconds = self.random.choice((0.0, 3.0, 20.0, 100.0))
        self.project.balancers.delete_seconds = self.random.choice((0.0, 3.0, 20.0, 100.0))

    def fail_change(self) -> None:
        """A state that the client does not know."""
        if self.balancers:
            balancer = self.balancers[self.random.choice(sorted(self.balancers.keys() - self.foreign.keys()))]
            if balancer["status"] == "ready":
                balancer["status"] = "degraded"

    def use_up_quota(self) -> None:
        self.project.balancers.quota = len(self.balancers) + self.random.randrange(2)

    def raise_quota(self) -> None:
        self.project.balancers.quota = 1000

    def stop_faults(self) -> None:
        self.raise_quota()
        self.project.balancers.build_seconds = self.project.balancers.delete_seconds = 0.0
        for balancer in self.balancers.values():
            if balancer["status"] == "degraded":
                balancer["status"] = "ready"

    def protect(self, balancer: Any, *, is_protected: bool) -> None:
        balancer["deleteProtection"] = is_protected

    def is_protected(self, balancer: Any) -> bool:
        return bool(balancer["deleteProtection"])

    def remove_balancer(self, balancer: Any) -> None:
        self.project.remove(_BALANCERS, balancer["identity"])

    def change_balancer(self, balancer: Any) -> None:
        if balancer["_listeners"]:
            listener = self.random.choice(balancer["_listeners"])
            listener["maxConnections"] = 1
            self.project.tables[_GROUPS][listener["targetGroup"]]["_attachments"] = []

    def list_parts(self) -> list[Any]:
        return list(self.project.tables[_GROUPS].values())

    def is_creation(self, request: SimRequest) -> bool:
        return request.path == f"/v1/{_BALANCERS}"

    def find_target(self, request: SimRequest) -> tuple[Any, bool]:
        _, _, kind, *rest = request.path.split("/")
        if kind == _GROUPS and (uid := request.query.get(f"matchLabels[{SERVICE_LABEL}]")):
            return next(iter(self.list_own(uid)), None), False
        if not rest or kind not in (_BALANCERS, _GROUPS):
            return None, False
        return self.project.tables[kind].get(rest[0]), kind == _BALANCERS and len(rest) == 1

    def is_listing(self, request: SimRequest) -> bool:
        names = [name for name in request.query if name.startswith("matchLabels")]
        return request.path == f"/v1/{_BALANCERS}" or (request.path == f"/v1/{_GROUPS}" and len(names) == 1)

    def is_empty(self, balancer: Any) -> bool:
        return balancer["labels"] in ({}, {"team": "edge"}) and not balancer["_listeners"]

    def list_own(self, uid: str = "") -> list[Any]:
        return [each for each in super().list_own(uid) if each["status"] != "deleting"]

    # ---- what must be true

    def is_invalid(self, service: KubeService) -> bool:
        """An ACL and source ranges exclude one another."""
        has_acl = f"{PREFIX}acl-allowed-sources" in service.metadata.annotations
        return has_acl and bool(service.spec.load_balancer_source_ranges)

    def show(self, balancer: Any) -> tuple[set[str], set[str], set[int]]:
        attached = [
            {each["virtualMachineInstance"]["identity"] for each in self._list_attachments(listener)}
            for listener in balancer["_listeners"]
        ]
        targets = attached[0] if attached and all(each == attached[0] for each in attached) else {"different"}
        ports = {each["port"] for each in balancer["_listeners"]}
        return set(balancer["externalIpAddresses"]), targets, ports

    def _list_attachments(self, listener: Any) -> list[Any]:
        attachments: list[Any] = self.project.tables[_GROUPS][listener["targetGroup"]]["_attachments"]
        return attachments

    def is_selected_by(self, service: KubeService, node: Node) -> bool:
        machine = node.spec.provider_id.removeprefix(self.prefix)
        return machine in self.project.tables["machines"]

    def look(self) -> None:
        super().look()
        services = self.list_services()
        for balancer in self.list_own():
            self._look_at_sources(balancer, services.values())

    def _look_at_sources(self, balancer: Any, services: Any) -> None:
        """An ACL is never removed from the annotations here, so a port that has one keeps it."""
        for listener in balancer["_listeners"]:
            closed = balancer.setdefault("_closed", set())
            if listener["allowedSources"]:
                closed.add(listener["identity"])
            elif listener["identity"] in closed and self._keeps_acl(balancer, services):
                self.blame(f"port {listener['port']} of {balancer['identity']} was restricted and is open")

    def _keeps_acl(self, balancer: Any, services: Any) -> bool:
        uid = balancer["labels"].get(SERVICE_LABEL)
        found = next((each for each in services if each.uid == uid), None)
        return found is not None and f"{PREFIX}acl-allowed-sources" in found.metadata.annotations
