"""A world of cloud projects, machines and Nodes under a turned clock, around the cores of both services."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

import msgspec

from libs.clouds.instances import (
    CREDENTIAL_ANCHOR,
    Anchor,
    Credential,
    Deleted,
    Instance,
    NotFound,
    Unanswered,
)
from libs.common.contract.events import AnyInstanceEvent, AnyInstanceReport, InstanceExists, InstanceMetadata
from libs.common.contract.node import Node
from services.cloud.account_poller import AccountPoller
from services.cloud.core.instance_schedule import QueryIntervals
from services.cloud.core.judge_round import Query
from services.cloud.core.node_table import NodeTable
from services.cloud.report_publisher import REPUBLISH_QUIET_SECONDS
from services.lifecycle.core.decide import Delete, DeletionPolicy, ReplicaStatus, decide
from services.lifecycle.core.instance_record import plan_instance_record
from services.lifecycle.core.node_index import NodeIndex
from tests.builders import NOW, STREAM_ID
from tests.lifecycle_actors import make_answering, make_lost_node, make_ready_condition, make_unreachable

POLICY = DeletionPolicy()
ACCOUNTS = ("a", "b")
AnswerT = TypeVar("AnswerT")


@dataclass
class Server:
    """An instance; `project` changes if it moves, `is_reachable` if the network fails."""

    id: str
    project: str
    name: str
    uuid: str
    is_reachable: bool = True
    has_joined: bool = False  # its kubelet has written the Node
    has_moved: bool = False  # to another project
    hidden_until: float = 0.0  # minute until which the cloud lies that it does not exist


@dataclass
class CloudProcess:
    """One process of an account: what it asks, with which token, and what it publishes again."""

    world: "World"
    account: str
    token: str  # "" is rejected; others begin with the project that they open
    generation: int = 1
    loaded_at: datetime = NOW - timedelta(days=1)
    fails_until: float = 0.0  # minute, also of lists alone
    lists_fail_until: float = 0.0
    lists_are_empty_until: float = 0.0
    reports: dict[str, tuple[AnyInstanceReport, float]] = field(default_factory=dict)  # and when published

    def __post_init__(self) -> None:
        self.nodes = NodeTable(self.account, self.parse_provider_id)
        self.poller = AccountPoller(
            account=self.account,
            provider="hcloud",
            cloud=self,
            nodes=self.nodes,
            stream_id=lambda: STREAM_ID,
            why_paused=lambda: (),
            publish=self._publish,
            on_listed=self._ignore,
            monotonic=lambda: self.world.seconds,
            now=self.world.now,
            step_seconds=1.0,
            requests_per_minute=10_000,
            intervals=QueryIntervals(),
        )

    def load(self, token: str) -> None:
        """Another content of the credential file."""
        self.token, self.generation, self.loaded_at = token, self.generation + 1, self.world.now()

    async def step(self, nodes: Iterable[Node]) -> None:
        """A minute passes for this process."""
        self.nodes.clear()
        for node in nodes:
            self.nodes.upsert(node)
        await self.poller.step()
        await self.poller.step_round()
        for report, at in list(self.reports.values()):
            is_quiet = isinstance(report, InstanceExists) or getattr(report, "absent_from", None) is not None
            if self.world.seconds - at >= (REPUBLISH_QUIET_SECONDS if is_quiet else 50.0):
                await self._publish(report)

    async def _ignore(self, query: Query, by_id: Mapping[str, Instance]) -> None:
        """The metadata of instances are no subject of this world."""

    async def _publish(self, report: AnyInstanceEvent) -> None:
        assert not isinstance(report, InstanceMetadata)
        node = self.nodes.get(report.name)
        if node is None or (node.uid, node.provider_id) != (report.node_uid, report.provider_id):
            self.reports.pop(report.name, None)
            return
        self.reports[report.name] = report, self.world.seconds
        self.world.publish(report)

    # ---- libs.clouds.instances.Instances

    @property
    def rate_limit(self) -> None:
        """This cloud reports none."""

    @property
    def credential(self) -> Credential:
        return Credential(self.generation, self.loaded_at, self.token)

    def parse_provider_id(self, provider_id: str) -> str | None:
        return provider_id.removeprefix("hcloud://") or None

    def _answer(self, answer: AnswerT) -> AnswerT | Unanswered:
        self.world.seconds += 0.05
        if not self.token:
            return Unanswered("unauthorized", "HTTP 401")
        if self.fails_until > self.world.minute:
            return Unanswered("server_error", "HTTP 503")
        return answer

    def _servers(self) -> list[Server]:
        project = self.token.partition("-")[0]
        found = [each for each in self.world.servers.values() if each.project == project]
        return [each for each in found if each.hidden_until <= self.world.minute]

    async def list_instances(self) -> tuple[Instance, ...] | Unanswered:
        if self.lists_fail_until > self.world.minute:
            return Unanswered("malformed", "/servers: half a page")
        is_empty = self.lists_are_empty_until > self.world.minute
        return self._answer(() if is_empty else tuple(_describe(each) for each in self._servers()))

    async def get_instance(self, instance_id: str) -> Instance | Deleted | NotFound | Unanswered:
        found = [_describe(each) for each in self._servers() if each.id == instance_id]
        return self._answer(found[0] if found else NotFound())

    async def find_by_name(self, name: str) -> tuple[Instance, ...] | Unanswered:
        return self._answer(tuple(_describe(each) for each in self._servers() if each.name == name))

    async def find_anchor(self) -> Anchor | Unanswered | None:
        project = self.token.partition("-")[0]
        is_bare = project in self.world.projects_without_anchor
        return self._answer(Anchor(CREDENTIAL_ANCHOR, self.token) if is_bare else Anchor("network", project))

    async def get_anchor(self, anchor: Anchor) -> Anchor | NotFound | Unanswered:
        found = await self.find_anchor()
        return found if isinstance(found, Unanswered) or found == anchor else NotFound()

    async def close(self) -> None:
        pass


def _describe(server: Server) -> Instance:
    return Instance(id=server.id, name=server.name, is_shut_down=False)


@dataclass
class World:
    """Everything, at one minute."""

    random: Random
    seconds: float = 0.0  # the turned clock
    projects_without_anchor: set[str] = field(default_factory=set)
    servers: dict[str, Server] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)  # Node name -> id of the server that it runs on
    nodes: dict[str, Node] = field(default_factory=dict)
    clouds: list[CloudProcess] = field(default_factory=list)
    stream: dict[str, AnyInstanceReport] = field(default_factory=dict)
    published: list[AnyInstanceReport] = field(default_factory=list)
    index: NodeIndex = field(default_factory=NodeIndex)
    started_at: float = -3600.0  # of lifecycle, in seconds
    kubernetes_fails_until: float = 0.0  # minute
    metadata_lags_until: float = 0.0  # minute until which machines change, and metadata does not notice
    deleted: dict[str, float] = field(default_factory=dict)  # Node name -> minute
    wrong: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    created: int = 1000

    def __post_init__(self) -> None:
        self.clouds = [CloudProcess(self, account, account) for account in ACCOUNTS]

    def now(self) -> datetime:
        """UTC."""
        return NOW + timedelta(seconds=self.seconds)

    @property
    def minute(self) -> float:
        return self.seconds / 60

    # ---- what happens

    def create(self, name: str, project: str) -> Server:
        """Create a server of that name."""
        self.created += 1
        uuid = f"{self.created:08x}-7b9d-4e60-8f12-0a1b2c3d4e5f"
        server = Server(str(self.created), project, name, uuid)
        self.servers[server.id] = server
        self.machines[name] = server.id
        return server

    def join(self, name: str, project: str) -> None:
        """A server joins as a new Node."""
        server = self.create(name, project)
        self.add_node(name, f"uid-{server.id}", server)

    def add_node(self, name: str, uid: str, server: Server) -> None:
        """The kubelet registers."""
        self.nodes[name] = make_lost_node(
            name,
            uid=uid,
            provider_id=f"hcloud://{server.id}",
            system_uuid=server.uuid,
            conditions=(make_ready_condition("True"),),
        )

    def destroy(self, name: str) -> None:
        """The server is deleted in its cloud."""
        self.servers.pop(self.machines.pop(name, ""), None)

    def restart_lifecycle(self) -> None:
        """It starts again and replays the last report of each subject."""
        self.index, self.started_at = NodeIndex(), self.seconds
        for node in self.nodes.values():
            self.index.upsert_node(node)
        for report in self.stream.values():
            self.index.apply_instance_report(report, self.seconds)

    # ---- one minute

    async def step(self) -> None:
        """A minute passes: kubelets, Talos and clouds report, lifecycle records and deletes."""
        self.seconds = (self.seconds // 60 + 1) * 60
        is_up = self.kubernetes_fails_until <= self.minute
        for name in list(self.nodes) if is_up else ():
            self._observe(name)
        for cloud in self.clouds:
            await cloud.step(self.nodes.values())
        for name in list(self.nodes) if is_up else ():
            self._reconcile(name)

    def publish(self, report: AnyInstanceReport) -> None:
        """An account publishes a report, and lifecycle receives it."""
        self.stream[f"{report.account}.{report.name}"] = report
        self.published.append(report)
        self.index.apply_instance_report(report, self.seconds)

    def _machine(self, name: str) -> Server | None:
        server = self.servers.get(self.machines.get(name, ""))
        return server if server is not None and server.is_reachable else None

    def _observe(self, name: str) -> None:
        node, server = self.nodes[name], self._machine(name)
        if server is not None:
            server.has_joined = True
        ready = node.find_condition("Ready")
        assert ready is not None
        wanted = "True" if server is not None else "Unknown"
        if ready.status != wanted:
            node = _replace_status(node, conditions=(make_ready_condition(wanted, self.now()),))
        if server is not None and node.status.node_info.system_uuid != server.uuid:
            node_info = msgspec.structs.replace(node.status.node_info, system_uuid=server.uuid)
            node = _replace_status(node, node_info=node_info)
        self.nodes[name] = node
        self.index.upsert_node(node)
        if self.metadata_lags_until > self.minute:
            return
        if server is not None:
            report: Any = make_answering(node, provider_id=f"hcloud://{server.id}", queried_at=self.now())
        else:
            report = make_unreachable(node, attempt=int(self.minute))
        self.index.upsert_report(report, self.seconds)

    # ---- lifecycle

    def _reconcile(self, name: str) -> None:
        case = self.index.build_case(self.nodes[name], self.now(), self.seconds)
        change = plan_instance_record(case)
        if change is not None:
            node = case.node
            metadata = msgspec.structs.replace(
                node.metadata,
                labels=_merge(node.labels, change.changes.labels),
                annotations=_merge(node.annotations, change.changes.annotations),
            )
            self.nodes[name] = msgspec.structs.replace(node, metadata=metadata)
            self.index.upsert_node(self.nodes[name])
            case = self.index.build_case(self.nodes[name], self.now(), self.seconds)
        age = timedelta(seconds=self.seconds - self.started_at)
        replica = ReplicaStatus(uptime=age, leading_for=age)
        decision = decide(case, POLICY, replica)
        if not isinstance(decision, Delete):
            return
        hour = [n for n, at in self.deleted.items() if self.minute - at < 60]
        if len(hour) >= decision.limit.per_hour:
            return
        self.deleted[name] = self.minute
        server = self.servers.get(self.machines.get(name, ""))
        if server is not None and server.has_joined:
            self.wrong.append(f"minute {self.minute:g}: {name}: {decision.reason}")
        del self.nodes[name]
        self.index.remove_node(name)
        self.index.remove_report(name)


def _replace_status(node: Node, **fields: Any) -> Node:
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, **fields))


def _merge(current: Any, changes: Any) -> dict[str, str]:
    return {key: value for key, value in ({**current, **changes}).items() if value is not None}
