"""A cluster that changes at random, two processes of its account, and a cloud with faults."""

import asyncio
import contextlib
import copy
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp
import msgspec

from libs.clouds.account_session import AccountOptions
from libs.common.bus.memory.bus import MemoryBus, MemoryServer
from libs.common.contract.instances import InstanceAnchor
from libs.common.contract.kube_service import USE_ANNOTATION, KubeService
from libs.common.contract.node import Node
from libs.common.contract.services import LEASE_NAMESPACE
from libs.common.kube.api import KubeApi
from libs.common.kube.load_kube_config import load_kube_config
from libs.common.service.service import Dependencies, run_together
from libs.testbed.clouds.api_server import SimApiServer as SimCloudServer
from libs.testbed.clouds.api_server import SimRequest
from libs.testbed.clouds.hcloud.server import SimHcloud, SimHcloudServer
from libs.testbed.clouds.http_faults import Answer, Fault
from libs.testbed.kubelets import KubeletFleet
from libs.testbed.sim_apiserver.server import SimApiServer
from services.cloud.account_leader import build_account_leader
from services.cloud.adapters import ADAPTERS
from services.cloud.balancer_controller import BalancerController, build_balancer_controller
from services.cloud.core.balancers.balancer_record import BalancerAccount, is_selected, read_balancer_record
from services.cloud.core.balancers.select_targets import EXCLUDE_LABEL, TargetRules
from services.cloud.core.balancers.target_nodes import TargetNodes
from services.cloud.settings import CloudSettings
from tests.builders import make_node
from tests.clocks import VirtualClock

TOKEN: Final = "a" * 64
ACCOUNT: Final = BalancerAccount(name="prod", load_balancer_class="example.com/lb")
NAMESPACE: Final = "default"
SERVICES: Final = f"/api/v1/namespaces/{NAMESPACE}/services"
SERVICE_LABEL: Final = "talos-ccm/service-uid"
CLUSTER_LABEL: Final = "talos-ccm/cluster"
ACCOUNT_LABEL: Final = "talos-ccm/account"
GROUP: Final = "example.com/group"  # which Nodes a Service has
PREFIX: Final = "load-balancer.hetzner.cloud/"
_MERGE: Final = "application/merge-patch+json"
# Requests of a write last 30 s, and take effect up to 60 s after that.
_LATEST_SECONDS: Final = 89.0
# How long a decision may be on its way: a Service that changes meanwhile meets the former decision.
_IN_FLIGHT_SECONDS: Final = 60.0

# (name, effect) of faults in the simulated API
_READ_FAULTS: Final = (
    *((name, "now") for name in ("drop", "cut_off", "proxy_bad_gateway", "service_error", "half_page")),
    *((name, "now") for name in ("hang", "lying_not_found", "proxy_not_found", "login_page")),
    ("rate_limited", "never"),
    ("unauthorized", "never"),
)
_WRITE_FAULTS: Final = (
    *(
        (name, effect)
        for effect in ("now", "never", "later")
        for name in ("drop", "hang", "proxy_bad_gateway", "service_error")
    ),
    ("cut_off", "now"),
    *(
        (name, "never")
        for name in ("conflict", "unavailable", "locked", "protected", "quota", "rate_limited", "forbidden")
    ),
)


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """How large a schedule is. Each round is 15 minutes with faults, and 10 without."""

    services: int = 8
    nodes: int = 8
    groups: int = 2
    rounds: int = 1
    pause_seconds: float = 20.0  # between two happenings, on average
    fault_rate: float = 0.12
    kill_rate: float = 0.01


class Process:
    """One process of the account: the controller and the adapter, as `CloudService` builds them."""

    def __init__(self, world: "RandomCluster", identity: str) -> None:
        self.identity = identity
        self.is_dead = False
        self._world = world
        self.kube = KubeApi(
            world.kube_config, user_agent=f"talos-ccm/{identity}", observe=self._observe, instance=identity
        )
        options = AccountOptions(
            credential=world.credential,
            user_agent=f"talos-ccm/{identity}",
            endpoint=world.endpoint,
            now=world.now,
        )
        self._clients = ADAPTERS[world.provider](options, {}, None)
        assert self._clients.balancers is not None
        parse = self._clients.instances.parse_provider_id
        rules = TargetRules(
            parse_provider_id=parse,
            needs_ipv4=self._clients.needs_ipv4,
            uses_addresses=self._clients.uses_addresses,
        )
        self.nodes = TargetNodes(rules)
        dependencies = Dependencies(
            bus=MemoryBus(MemoryServer()),
            kube=self.kube,
            monotonic=world.clock,
            now=world.now,
            random=Random(world.random.random()),
            identity=identity,
        )
        settings = CloudSettings(
            accounts=(f"{world.provider}/prod",),
            controllers=("service-lb-controller",),
            balancer_classes=("prod=example.com/lb",),
        )
        self.leader = build_account_leader(dependencies, settings)
        self.controller: BalancerController = build_balancer_controller(
            dependencies,
            settings,
            ACCOUNT,
            elector=self.leader.elector,
            cloud=self._clients.instances,
            balancers=self._clients.balancers,
            nodes=self.nodes,
            anchor=lambda: world.anchor,
            is_followed=lambda: True,
            are_services_known=lambda: True,
        )
        parts = (self.leader.run(self.controller), self.controller.run())
        self._task = asyncio.create_task(run_together(*parts))

    def _observe(self, verb: str, resource: str, status: int, seconds: float) -> None:
        """Kill the process right after the API server has confirmed a write."""
        if verb == "patch" and status == 200 and self._world.happens(self._world.kill_rate):
            self._world.kill(self, f"patch {resource}")

    def kill(self) -> None:
        """End it without another request: the Lease stays until it expires."""
        self.is_dead = True
        self.controller.elector.kube = None
        self._task.cancel()

    async def end(self) -> None:
        """End it in order, which releases the Lease; or what is left of a killed one."""
        self.is_dead = True
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._clients.close()
        await self.kube.close()


class RandomCluster:
    """Everything, and what must never happen in it; at Hetzner Cloud."""

    provider = "hcloud"
    prefix = "hcloud://"  # of providerIDs
    native_label = "hcloud-ccm/service-uid"
    id_key = "id"  # of a load balancer
    has_node_selectors = True
    node_selector = f"{PREFIX}node-selector"
    read_faults: tuple[tuple[str, str], ...] = _READ_FAULTS
    write_faults: tuple[tuple[str, str], ...] = _WRITE_FAULTS

    def __init__(self, seed: int, api_server: SimApiServer, admin: KubeletFleet, scale: Scale) -> None:
        self.scale = scale
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.cloud: SimCloudServer[Any]
        self.project: Any
        self.anchor: InstanceAnchor
        self.credential: str
        self._start_cloud()
        self.kube = api_server
        self.admin = admin
        self.kube_config = load_kube_config(api_server.kubeconfig(), {})
        self.processes: list[Process] = []
        self.nodes: dict[str, Node] = {}
        self.deleted_nodes: list[Node] = []
        self.foreign: dict[Any, Any] = {}
        self.prepared: set[Any] = set()  # they existed before their Services, and stay
        self.wrong: list[str] = []
        self.story: list[str] = []
        self.counts: Counter[str] = Counter()
        self.fault_rate = self.kill_rate = 0.0
        self.calm_since = 0.0
        self.doubles: dict[Any, float] = {}  # ids, and since when
        self.longest_double = 0.0
        self.touched: dict[str, float] = {}  # uid of a Service, and when an operator changed its ownership
        self._ever: set[str] = set()  # uids of Services
        self._number = 0
        self._versions: dict[str, str] = {}  # keys of Services, and what the stream has of them
        self._late: set[asyncio.TimerHandle] = set()
        self._ending: list[Process] = []
        self.cluster_uid = ""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, seed: int, folder: Path, scale: Scale) -> AsyncIterator["RandomCluster"]:
        """With both servers, foreign load balancers and two processes."""
        uids = Random(seed)

        def make_uid() -> str:
            return str(uuid.UUID(int=uids.getrandbits(128), version=4))

        async with (
            SimApiServer.start(folder, new_uid=make_uid) as api_server,
            KubeletFleet.start(api_server) as admin,
        ):
            world = cls(seed, api_server, admin, scale)
            async with SimCloudServer.start(world.cloud.cloud) as world.cloud:
                world.cloud.before_answer = world.before_answer
                world.cloud.after_answer = world.after_answer
                found = await admin.request("GET", f"/api/v1/namespaces/{LEASE_NAMESPACE}")
                world.cluster_uid = found.body["metadata"]["uid"]
                world.add_foreign()
                world.processes = [Process(world, f"host_{number}") for number in range(2)]
                background = [asyncio.create_task(each()) for each in (world.follow, world.watch)]
                try:
                    yield world
                finally:
                    for task in background:
                        task.cancel()
                    await asyncio.gather(*background, return_exceptions=True)
                    for process in (*world.processes, *world._ending):
                        await process.end()

    def _start_cloud(self) -> None:
        self.cloud = SimHcloudServer(SimHcloud(now=self.clock, rate_limit=1_000_000))
        self.project = self.cloud.cloud.add_project(TOKEN)
        self.anchor = InstanceAnchor(kind="network", id=str(self.project.add_network()))
        self.credential = TOKEN

    @property
    def endpoint(self) -> str:
        """That the account is configured with."""
        return self.cloud.endpoint

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.cloud.cloud.unix_time(), UTC)

    def happens(self, rate: float) -> bool:
        return self.random.random() < rate

    def tell(self, text: str) -> None:
        self.story.append(f"{self.clock() - 1000:.0f}: {text}")

    def blame(self, text: str) -> None:
        self.wrong.append(f"{self.clock() - 1000:.0f}: {text}")

    # ---- processes and what they hear

    def kill(self, process: Process, why: str) -> None:
        """End a process at once, and start another one within a minute."""
        if process.is_dead:
            return
        self.counts["crash"] += 1
        self.tell(f"{process.identity} crashes after {why}")
        process.kill()
        self._replace(process)

    def restart(self, process: Process) -> None:
        """End a process in order."""
        self.counts["restart"] += 1
        self.tell(f"{process.identity} ends")
        process.is_dead = True
        self._replace(process)

    def _replace(self, process: Process) -> None:
        self.processes.remove(process)
        self._ending.append(process)
        self._number += 1
        identity = f"host_{self._number + 1}"
        asyncio.get_running_loop().call_later(
            self.random.uniform(0, 60), lambda: self.processes.append(Process(self, identity))
        )

    async def follow(self) -> None:
        """Be the stream: some messages are late, and each minute there is everything."""
        resync_at = 0.0
        while True:
            await asyncio.sleep(self.random.uniform(0.5, 2.0))
            for process in self._ending:
                await process.end()
            self._ending.clear()
            is_resync = self.clock() >= resync_at
            if is_resync:
                resync_at = self.clock() + 60
            services = self.list_services()
            for process in self.processes:
                self._tell_of_services(process, services, is_resync=is_resync)
                self._tell_of_nodes(process, is_resync=is_resync)
            self._versions = {key: each.metadata.resource_version for key, each in services.items()}

    def _tell_of_services(
        self, process: Process, services: dict[str, KubeService], *, is_resync: bool
    ) -> None:
        for key, service in services.items():
            is_new = self._versions.get(key) != service.metadata.resource_version
            if is_resync or (is_new and self.happens(0.9)):
                process.controller.on_service(service)
        for key in self._versions.keys() - services.keys():
            process.controller.on_service_gone(key)

    def _tell_of_nodes(self, process: Process, *, is_resync: bool) -> None:
        has_changed = process.nodes.mark_complete()
        process.leader.on_snapshot()
        for node in self.nodes.values():
            if is_resync or self.happens(0.8):
                has_changed = process.nodes.upsert(node) or has_changed
        for node in self.deleted_nodes:
            if node.name not in self.nodes:
                has_changed = process.nodes.remove(node.name) or has_changed
        if has_changed:
            process.controller.on_nodes_changed()

    # ---- Kubernetes

    def list_services(self) -> dict[str, KubeService]:
        """By their keys."""
        stored = self.kube.api.store.table("services").list_namespace(NAMESPACE)
        services = (msgspec.json.decode(each.raw, type=KubeService) for each in stored)
        return {each.key: each for each in services}

    def find_service(self, uid: str) -> KubeService | None:
        return next((each for each in self.list_services().values() if each.uid == uid), None)

    async def write(self, method: str, name: str, body: Any = None) -> None:
        """An admin's request, again until it is no victim of a fault."""
        path = SERVICES if method == "POST" else f"{SERVICES}/{name}"
        content_type = _MERGE if method == "PATCH" else "application/json"
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                answer = await self.admin.request(method, path, body=body, content_type=content_type)
                if answer.status in (200, 201, 202, 404, 422) or (method == "POST" and answer.status == 409):
                    return
            await asyncio.sleep(0.1)

    async def create_service(self, name: str, group: int, *, is_prepared: bool = False) -> None:
        self._number += 1
        annotations = self.choose_annotations(group)
        if is_prepared:
            self.raise_quota()
            number = self.add_balancer(f"prepared-{self._number}", {"team": "edge"})
            self.prepared.add(number)
            annotations[USE_ANNOTATION] = str(number)
        body = {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "type": "LoadBalancer",
                "loadBalancerClass": ACCOUNT.load_balancer_class,
                "ports": [{"name": "http", "port": 80, "nodePort": 30000 + self._number % 2700}],
            },
        }
        await self.write("POST", name, body)
        self.counts["services created"] += 1

    def choose_annotations(self, group: int) -> dict[str, str]:
        """Of a Service whose Nodes are those of the group."""
        return {f"{PREFIX}location": "fsn1", self.node_selector: f"{GROUP}={group}"}

    def list_changes(self) -> tuple[tuple[str, str], ...]:
        """Annotations that a user may set."""
        return (
            (f"{PREFIX}algorithm-type", "least_connections"),
            (f"{PREFIX}algorithm-type", "round_robin"),
            (f"{PREFIX}type", "lb21"),
            (f"{PREFIX}health-check-interval", "7s"),
            (self.node_selector, f"{GROUP}={self.random.randrange(self.scale.groups)}"),
        )

    async def patch_service(self, name: str, **fields: Any) -> None:
        await self.write("PATCH", name, fields)

    def note_owner(self, service: KubeService) -> None:
        """An operator changes whose the Service is; decisions before that are on their way."""
        self.touched[service.uid] = self.clock()

    def _is_touched(self, uid: str) -> bool:
        return self.clock() - self.touched.get(uid, -1e9) < _IN_FLIGHT_SECONDS

    def is_wanted(self, service: KubeService) -> bool:
        return is_selected(service, ACCOUNT) and not service.metadata.deletion_timestamp

    # ---- Nodes

    def join(self, name: str, group: int) -> None:
        """A server joins."""
        self._number += 1
        server = self.add_machine(name)
        self.nodes[name] = make_node(
            name, uid=f"uid-{server}", provider_id=f"{self.prefix}{server}", labels={GROUP: str(group)}
        )

    def leave(self, name: str) -> None:
        """The Node is deleted, and its server."""
        node = self.nodes.pop(name)
        self.deleted_nodes.append(node)
        if self.happens(0.5):
            self.remove_machine(node.spec.provider_id.removeprefix(self.prefix))

    def exclude(self, name: str, *, is_excluded: bool) -> None:
        node = self.nodes[name]
        others = {key: value for key, value in node.labels.items() if key != EXCLUDE_LABEL}
        labels = others | ({EXCLUDE_LABEL: "true"} if is_excluded else {})
        metadata = msgspec.structs.replace(node.metadata, labels=labels)
        self.nodes[name] = msgspec.structs.replace(node, metadata=metadata)

    # ---- the cloud

    @property
    def balancers(self) -> dict[Any, Any]:
        balancers: dict[Any, Any] = self.project.tables["load_balancers"]
        return balancers

    def add_machine(self, name: str) -> str:
        address = f"198.51.{self._number // 250 % 250}.{self._number % 250}"
        return str(self.project.add_server(name, ipv4=address))

    def remove_machine(self, machine: str) -> None:
        self.project.remove("servers", int(machine))

    def add_balancer(self, name: str, labels: dict[str, str]) -> Any:
        return self.project.add_balancer(name, labels=labels)

    def slow_down(self) -> None:
        """Changes take longer, or as long as before."""
        self.project.actions.seconds = self.random.choice((0.0, 0.5, 3.0, 20.0, 45.0))

    def fail_change(self) -> None:
        """One of the next changes fails after it has begun."""
        commands = (
            "create_load_balancer",
            "add_target",
            "remove_target",
            "delete_load_balancer",
            "add_service",
        )
        self.project.actions.fail_next(self.random.choice(commands))

    def use_up_quota(self) -> None:
        self.project.quotas["load_balancers"] = len(self.balancers) + self.random.randrange(2)

    def raise_quota(self) -> None:
        self.project.quotas.clear()

    def stop_faults(self) -> None:
        """From now on each request succeeds, and at once."""
        self.raise_quota()
        self.project.actions.seconds = 0.0
        self.project.actions.fail_no_more()

    def protect(self, balancer: Any, *, is_protected: bool) -> None:
        balancer["protection"]["delete"] = is_protected

    def is_protected(self, balancer: Any) -> bool:
        return bool(balancer["protection"]["delete"])

    def has_failed(self, balancer: Any) -> bool:
        """Whether the cloud could not build it: another one follows."""
        return False

    def remove_balancer(self, balancer: Any) -> None:
        """Delete it in the console of the cloud."""
        self.project.remove("load_balancers", balancer["id"])

    def change_balancer(self, balancer: Any) -> None:
        """Change it in the console of the cloud."""
        balancer["algorithm"]["type"] = "least_connections"
        del balancer["targets"][:1]

    def list_parts(self) -> list[Any]:
        """What load balancers of ours have left, beside those that exist."""
        return []

    def is_creation(self, request: SimRequest) -> bool:
        return request.path.strip("/") == "load_balancers"

    def read_labels(self, request: SimRequest) -> dict[str, str]:
        """The tags in a request that creates or changes a load balancer."""
        labels: dict[str, str] = msgspec.json.decode(request.body).get("labels", {})
        return labels

    def find_target(self, request: SimRequest) -> tuple[Any, bool]:
        """The load balancer that a change is about, and whether it is about the whole of it."""
        kind, _, rest = request.path.strip("/").partition("/")
        number = rest.partition("/")[0] if kind == "load_balancers" else ""
        return self.balancers.get(int(number or 0)), True

    def is_listing(self, request: SimRequest) -> bool:
        return (request.method, request.path) == ("GET", "/load_balancers")

    def is_empty(self, balancer: Any) -> bool:
        """Whether it has neither targets nor labels of ours."""
        return balancer["labels"] in ({}, {"team": "edge"}) and not balancer["targets"]

    def add_foreign(self) -> None:
        """Load balancers of another cluster, of another controller, and of nobody."""
        uid = "7b1f6c4e-1111-2222-3333-444455556666"
        for name, labels in (
            ("other-cluster", self.build_labels(uid) | {CLUSTER_LABEL: "another"}),
            ("other-account", self.build_labels(uid) | {ACCOUNT_LABEL: "another"}),
            ("native", {self.native_label: uid}),
            ("both", self.build_labels(uid) | {self.native_label: uid}),
            ("half", {SERVICE_LABEL: uid}),
            ("bare", {}),
        ):
            number = self.add_balancer(name, labels)
            self.foreign[number] = copy.deepcopy(self.balancers[number])

    def build_labels(self, service_uid: str) -> dict[str, str]:
        """The tags of a load balancer of this account."""
        return {
            SERVICE_LABEL: service_uid,
            CLUSTER_LABEL: self.cluster_uid,
            ACCOUNT_LABEL: ACCOUNT.name,
        }

    def list_own(self, uid: str = "") -> list[Any]:
        """The load balancers with our tags, the oldest first."""
        return [
            each
            for number, each in sorted(self.balancers.items())
            if number not in self.foreign
            and each["labels"].get(CLUSTER_LABEL) == self.cluster_uid
            and uid in ("", each["labels"].get(SERVICE_LABEL))
        ]

    def before_answer(self, request: SimRequest) -> None:
        """Judge the request, and choose its fault."""
        self.counts["requests to the cloud"] += 1
        self._judge(request)
        if not self.happens(self.fault_rate):
            return
        faults = self.read_faults if request.method == "GET" else self.write_faults
        name, effect = self.random.choice(faults)
        if name in ("rate_limited", "unauthorized", "forbidden") and self.happens(0.9):
            return  # they stop the whole account for a minute
        self.counts[f"{'read' if request.method == 'GET' else 'write'} {name} {effect}"] += 1
        fault: Any = effect
        self.cloud.faults[:] = [Fault(name=name, count=1, effect=fault)]
        if effect == "later":
            delay = self.random.uniform(1, _LATEST_SECONDS)
            asyncio.get_running_loop().call_later(delay, self._release, request)

    def _release(self, request: SimRequest) -> None:
        """A request takes effect long after it was sent."""
        if request in self.cloud.held:
            self.cloud.held.remove(request)
            self._judge(request, is_late=True)
            self.tell(f"late: {request.method} {request.path}")
            self.cloud.cloud.answer(request)

    def after_answer(self, request: SimRequest, answer: Answer) -> None:
        """Kill the process that sent a write: nothing reads the answer."""
        if request.method == "GET" or not self.happens(self.kill_rate):
            return
        for process in list(self.processes):
            if request.headers.get("User-Agent") == f"talos-ccm/{process.identity}":
                self.kill(process, f"{request.method} {request.path}")

    # ---- what must never happen

    def _judge(self, request: SimRequest, *, is_late: bool = False) -> None:
        if request.method == "GET":
            return None
        if self.is_creation(request):
            return self._judge_create(self.read_labels(request))
        balancer, is_whole = self.find_target(request)
        if balancer is None:
            return None
        uid = balancer["labels"].get(SERVICE_LABEL, "")
        number = balancer[self.id_key]
        if number in self.prepared:
            return self._judge_prepared(request, is_whole=is_whole)
        if number in self.foreign or (uid not in self._ever and not is_late):
            last = [
                f"{each.method} {each.headers['User-Agent']}"
                for each in self.cloud.requests
                if f"/{number}" in each.path
            ]
            self.blame(f"{request.method} {request.path}: not ours: {balancer['labels']} after {last[-5:]}")
        if request.method != "DELETE" or is_late or not is_whole:
            return None
        service = self.find_service(uid)
        if service is None or not self.is_wanted(service) or self._is_touched(uid):
            return None
        if self.has_failed(balancer):
            return None
        record = read_balancer_record(service, self.now())
        if len(self.list_own(uid)) == 1 or (record is not None and record.id == str(number)):
            self.blame(f"{service.name} loses its load balancer {number}")
        return None

    def _judge_prepared(self, request: SimRequest, *, is_whole: bool) -> None:
        if request.method == "DELETE" and is_whole:
            self.blame(f"a prepared load balancer is deleted: {request.path}")
        if request.method == "PUT" and is_whole:
            self._ever.add(self.read_labels(request).get(SERVICE_LABEL, ""))

    def _judge_create(self, labels: dict[str, str]) -> None:
        uid = labels.get(SERVICE_LABEL, "")
        self._ever.add(uid)
        service = self.find_service(uid)
        if service is None or not service.has_finalizer:
            self.blame(f"a load balancer is created without a finalizer: {uid}")
        elif not self._is_touched(uid):
            record = read_balancer_record(service, self.now())
            if record is None or record.create_deadline is None:
                self.blame(f"a load balancer is created without a record: {service.name}")

    async def watch(self) -> None:
        """Look each 5 s for orphans and doubles, and whether foreign objects are as they were."""
        while True:
            await asyncio.sleep(5)
            self.look()

    def look(self) -> None:
        for number, document in self.foreign.items():
            if self.balancers.get(number) != document:
                self.blame(f"foreign load balancer {number} has changed")
        services = {each.uid: each for each in self.list_services().values()}
        parts = (each for each in self.list_parts() if each["labels"].get(CLUSTER_LABEL) == self.cluster_uid)
        for each in (*self.list_own(), *parts):
            if each["labels"][SERVICE_LABEL] not in services:
                self.blame(f"orphan: {each[self.id_key]} of {each['labels'][SERVICE_LABEL]}")
        self._look_for_doubles(services)

    def _look_for_doubles(self, services: dict[str, KubeService]) -> None:
        by_uid = Counter(each["labels"][SERVICE_LABEL] for each in self.list_own())
        present = set()
        for uid in (uid for uid, count in by_uid.items() if count > 1 and uid in services):
            record = read_balancer_record(services[uid], self.now())
            for each in self.list_own(uid):
                if record is None or record.id != str(each[self.id_key]):
                    present.add(each[self.id_key])
        self.doubles = {number: self.doubles.get(number, self.clock()) for number in present}
        for number, since in self.doubles.items():
            # Growing pauses after faults end within five minutes, and so does a Lease.
            age = self.clock() - max(since, self.calm_since + 400)
            if not self.fault_rate:
                self.longest_double = max(self.longest_double, age)
            if not self.fault_rate and age > 65:
                self.blame(f"double {number} is {age:.0f} s old")

    # ---- what must be true when everything has settled

    def list_differences(self) -> list[str]:
        """What is not as desired yet."""
        found: list[str] = []
        for service in self.list_services().values():
            found += [f"{service.name}: {text}" for text in self._compare(service)]
        return found

    def _compare(self, service: KubeService) -> list[str]:
        own = self.list_own(service.uid)
        status = {each.ip for each in service.status.load_balancer.ingress}
        if self.is_unprovable(service):
            return []
        if not self.is_wanted(service):
            checks = {
                "a load balancer is left": bool(own),
                "a finalizer is left": service.has_finalizer,
                "a status is left": bool(status),
            }
            return [text for text, is_wrong in checks.items() if is_wrong]
        is_invalid = self.is_invalid(service)
        if is_invalid and not own:
            return [] if service.status.conditions and not status else ["no condition"]
        if len(own) != 1:
            return [f"{len(own)} load balancers"]
        (balancer,) = own
        record = read_balancer_record(service, self.now())
        addresses, targets, ports = self.show(balancer)
        checks = {
            "another record": record is None or record.id != str(balancer[self.id_key]),
            "no finalizer": not service.has_finalizer,
            "another status": status != addresses,
            "other targets": targets != self._targets(service),
            "other ports": not is_invalid and ports != {each.port for each in service.spec.ports},
            f"conditions {service.status.conditions}": bool(service.status.conditions) != is_invalid,
        }
        return [text for text, is_wrong in checks.items() if is_wrong]

    def is_unprovable(self, service: KubeService) -> bool:
        """Whether an operator removed the record, and nothing else shows whose finalizer or status it is."""
        if service.uid not in self.touched or self.list_own(service.uid):
            return False
        is_unowned = service.spec.load_balancer_class is None or bool(service.status.load_balancer.ingress)
        return is_unowned and read_balancer_record(service, self.now()) is None

    def needs_operator(self, service: KubeService) -> bool:
        """Whether an operator has to remove the finalizer of a deleted Service."""
        return self.is_unprovable(service) and not any(
            each["labels"].get(SERVICE_LABEL) == service.uid for each in self.list_parts()
        )

    def is_invalid(self, service: KubeService) -> bool:
        """Whether it has a value that its cloud cannot enforce."""
        return bool(service.spec.load_balancer_source_ranges)

    def show(self, balancer: Any) -> tuple[set[str], set[str], set[int]]:
        """Its addresses, targets and ports."""
        net = balancer["public_net"]
        return (
            {net["ipv4"]["ip"], net["ipv6"]["ip"]},
            {str(each["server"]["id"]) for each in balancer["targets"]},
            {each["listen_port"] for each in balancer["services"]},
        )

    def _targets(self, service: KubeService) -> set[str]:
        return {
            node.spec.provider_id.removeprefix(self.prefix)
            for node in self.nodes.values()
            if self.is_selected_by(service, node) and EXCLUDE_LABEL not in node.labels
        }

    def is_selected_by(self, service: KubeService, node: Node) -> bool:
        """Whether the Service selects the Node."""
        group = service.metadata.annotations[self.node_selector].partition("=")[2]
        return node.labels.get(GROUP) == group

    async def wait_until(self, is_done: Callable[[], bool], minutes: float) -> bool:
        """Let time pass; whether it is done by then."""
        until = self.clock() + minutes * 60
        while not is_done():
            if self.clock() > until:
                return False
            await asyncio.sleep(5)
        return True
