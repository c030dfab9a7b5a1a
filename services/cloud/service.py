"""cloud: follows Nodes, and publishes what the cloud of one account says of their instances."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

import msgspec

from libs.clouds.account_session import AccountOptions
from libs.clouds.instances import Instance, Outcome
from libs.common.bus.flow import Flow
from libs.common.bus.protocol import Message
from libs.common.contract import events
from libs.common.contract.services import CLOUD, expand_cloud
from libs.common.contract.subjects import (
    ENRICHED_NODE,
    NETWORKS,
    OBSERVED_NODE,
    OBSERVED_SERVICE,
    SNAPSHOT,
    is_csr_subject,
    is_service_subject,
)
from libs.common.observability import metrics
from libs.common.service.leader_elector import LeaderElector
from libs.common.service.pulse_publisher import LeadingService
from libs.common.service.service import Dependencies, ServiceDefinition, run_together
from libs.common.settings.read_settings import ParsedSettings, SettingsError
from services.cloud.account_leader import AccountLeader, build_account_leader
from services.cloud.account_poller import AccountPoller
from services.cloud.adapters import ADAPTERS, CloudClients
from services.cloud.balancer_controller import BalancerController, build_balancer_controller
from services.cloud.core.balancers.select_targets import TargetRules
from services.cloud.core.balancers.target_nodes import TargetNodes
from services.cloud.core.judge_round import Query
from services.cloud.core.named_machines import NamedMachines
from services.cloud.core.node_table import NodeTable
from services.cloud.metadata_poller import MetadataPoller
from services.cloud.report_publisher import ReportPublisher
from services.cloud.route_controller import RouteController, build_route_controller
from services.cloud.settings import CloudSettings

_CHANGES_ROUTES: Final = (
    events.NodeObserved,
    events.NodeGone,
    events.SnapshotComplete,
    events.ClusterNetworksObserved,
)
# What the leader does not do while the last message about an object is invalid: the object may exist.
_HELD_BACK: Final = {
    OBSERVED_NODE: "no target is removed and no route is changed",
    OBSERVED_SERVICE: "no load balancer without a Service is reported",
}


class CloudService:
    """One account: it holds the credential.

    Without load balancers and routes, it has no right in Kubernetes.
    """

    def __init__(self, dependencies: Dependencies, settings: CloudSettings) -> None:
        """`settings` has one account."""
        account = settings.account.name
        self.spec = expand_cloud(account, *settings.account_controllers)
        self._clients = build_cloud(settings, dependencies.now)
        cloud = self._clients.instances
        supplies = settings.metadata_account
        self._supplies_metadata = supplies is not None
        self.nodes = NodeTable(account, cloud.parse_provider_id)
        self.target_nodes = TargetNodes(
            TargetRules(
                parse_provider_id=cloud.parse_provider_id,
                needs_ipv4=self._clients.needs_ipv4,
                uses_addresses=self._clients.uses_addresses,
                address_prefixes=self._clients.address_prefixes,
            )
        )
        self._flow = Flow(
            parts=dependencies,
            service=self.spec.service,
            max_silence_seconds=0.0,
            observe_only=True,  # it writes nothing to Kubernetes, and so needs no leader
            apply=self._apply_event,
            consequence="Nodes may be missing",
            exclude=self._is_excluded,
            on_expired=self._on_expired,
            on_stream_replaced=self._on_stream_replaced,
        )
        self.reports = ReportPublisher(
            bus=dependencies.bus,
            stream_id=lambda: self._flow.cache.stream_id,
            monotonic=dependencies.monotonic,
            step_seconds=settings.step_seconds,
            why_paused=self._flow.list_pause_reasons,
            is_known=self._is_known,
            build_account_report=self._build_account_report,
        )
        self.poller = AccountPoller(
            account=account,
            provider=settings.account.provider,
            cloud=cloud,
            nodes=self.nodes,
            stream_id=lambda: self._flow.cache.stream_id,
            why_paused=self._flow.list_pause_reasons,
            publish=self.reports.publish,
            on_listed=self._on_listed,
            monotonic=dependencies.monotonic,
            now=dependencies.now,
            step_seconds=settings.step_seconds,
            requests_per_minute=settings.requests_per_minute,
            needs_anchor=settings.balancers is not None,
            intervals=settings.intervals,
        )
        self.leader: AccountLeader | None = None
        self.balancers: BalancerController | None = None
        self.routes: RouteController | None = None
        if settings.account_controllers:
            self.leader = build_account_leader(dependencies, settings)
            self._build_controllers(dependencies, settings, self.leader.elector)
        self.metadata = MetadataPoller(
            poller=self.poller,
            machines=NamedMachines(settings.account.provider, cloud.parse_provider_id),
            network=supplies.network if supplies is not None else "",
        )

    def _build_controllers(
        self, dependencies: Dependencies, settings: CloudSettings, elector: LeaderElector
    ) -> None:
        if settings.balancers is not None and self._clients.balancers is not None:
            self.balancers = build_balancer_controller(
                dependencies,
                settings,
                settings.balancers.account,
                elector=elector,
                cloud=self._clients.instances,
                balancers=self._clients.balancers,
                nodes=self.target_nodes,
                anchor=lambda: self.poller.anchor,
                is_followed=self._is_followed,
                are_services_known=self._are_services_known,
            )
        if settings.routes is not None and self._clients.routes is not None:
            self.routes = build_route_controller(
                dependencies,
                settings.account.name,
                elector=elector,
                clients=(self._clients.instances, self._clients.routes),
                nodes=self.target_nodes,
                is_followed=self._is_followed,
                pod_networks=lambda: settings.find_pod_networks(
                    settings.account.name, self._flow.cache.get_event(NETWORKS)
                ),
                is_dry_run=settings.routes.is_dry_run,
            )

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            parts = [self._flow.run(), self.poller.run(), self.metadata.run(), self.reports.run()]
            if self.leader is not None:
                controllers = [each for each in (self.balancers, self.routes) if each is not None]
                parts += [self.leader.run(*controllers), *(each.run() for each in controllers)]
            await run_together(*parts)
        finally:
            await self._clients.close()

    @property
    def is_leading(self) -> bool | None:
        """Whether this process has the Lease of the account; None: it writes nothing, and needs none."""
        return self.leader.elector.leading_since() is not None if self.leader is not None else None

    def problems(self) -> tuple[str, ...]:
        """Return why nothing is reported now."""
        parts = (self.poller, self.reports, self.leader, self.balancers, self.routes)
        problems = (problem for part in parts if part is not None for problem in part.problems())
        unreadable = (
            f"the last message of {prefix}.{min(names)} is unreadable or fenced, so {consequence}"
            for prefix, consequence in _HELD_BACK.items()
            if self.is_leading and (names := self._flow.cache.list_unknown(prefix))
        )
        return (*self._flow.list_pause_reasons(), *problems, *unreadable)

    def _apply_event(self, event: object) -> None:
        match event:
            case events.NodeObserved(node=node):
                self.nodes.upsert(node)
            case events.NodeGone(name=name):
                self.nodes.remove(name)
            case _:
                self.metadata.machines.apply(event)
        if self.leader is not None:
            self._apply_to_controllers(self.leader, event)

    def _apply_to_controllers(self, leader: AccountLeader, event: object) -> None:
        has_changed = False
        match event:
            case events.NodeObserved(node=node):
                has_changed = self.target_nodes.upsert(node)
            case events.NodeGone(name=name):
                has_changed = self.target_nodes.remove(name)
            case events.SnapshotComplete():
                has_changed = self.target_nodes.mark_complete()
                leader.on_snapshot()
            case events.KubeServiceObserved(service=service) if self.balancers is not None:
                self.balancers.on_service(service)
            case events.KubeServiceGone() if self.balancers is not None:
                self.balancers.on_service_gone(event.key)
        if has_changed and self.balancers is not None:
            self.balancers.on_nodes_changed()
        if self.routes is not None and isinstance(event, _CHANGES_ROUTES):
            self.routes.on_changed()

    def _on_expired(self, message: Message) -> None:
        if isinstance(message.event, events.NodeObserved):
            self.target_nodes.mark_expired(message.event.node.uid)

    def _is_followed(self) -> bool:
        """Whether no Node is missing: a newer watcher may publish what this version cannot read."""
        return not self._flow.list_pause_reasons() and not self._flow.cache.list_unknown(OBSERVED_NODE)

    def _are_services_known(self) -> bool:
        snapshot = self._flow.cache.get_event(SNAPSHOT)
        is_listed = isinstance(snapshot, events.SnapshotComplete) and snapshot.services is not None
        is_known = not self._flow.cache.list_unknown(OBSERVED_SERVICE)
        return is_listed and is_known and not self._flow.list_pause_reasons()

    async def _on_listed(self, query: Query, by_id: Mapping[str, Instance]) -> None:
        if self.routes is not None:
            self.routes.on_listed(by_id.values(), query)
        await self.metadata.on_listed(query, by_id)

    def _is_excluded(self, subject: str) -> bool:
        is_unused = subject.startswith(f"{ENRICHED_NODE}.") and not self._supplies_metadata
        has_no_balancers = self.balancers is None and is_service_subject(subject)
        return is_csr_subject(subject) or has_no_balancers or is_unused

    def _is_known(self, report: events.AnyInstanceEvent) -> bool:
        if isinstance(report, events.InstanceMetadata):
            return self.metadata.machines.is_current(report)
        node = self.nodes.get(report.name)
        return node is not None and (node.uid, node.provider_id) == (report.node_uid, report.provider_id)

    def _build_account_report(self) -> events.AccountReport:
        return self.poller.build_report()

    def _on_stream_replaced(self) -> None:
        self.nodes.clear()
        self.target_nodes.clear()
        if self.balancers is not None:
            self.balancers.clear()
        self.metadata.machines.clear()
        self.reports.start_stream()


def build_cloud(settings: CloudSettings, now: Callable[[], datetime]) -> CloudClients:
    """Return the clients of the only account. Raises SettingsError for an unusable endpoint or option."""
    account = settings.account

    def observe(outcome: Outcome, seconds: float) -> None:
        metrics.CLOUD_REQUESTS.labels(account.name, outcome).inc()
        metrics.CLOUD_REQUEST_DURATION.labels(account.name).observe(seconds)

    options = AccountOptions(
        credential=account.credential,
        user_agent=f"talos-ccm/{version('talos-ccm')}",
        endpoint=account.endpoint,
        anchor=account.anchor,
        requests_per_minute=settings.requests_per_minute,
        deadline_seconds=settings.deadline_seconds,
        observe=observe,
        now=now,
    )
    try:
        balancers, routes = settings.balancers, settings.routes
        return ADAPTERS[account.provider](
            options,
            None if balancers is None else balancers.options,
            None if routes is None else routes.network,
        )
    except ValueError as error:
        raise SettingsError(f"cloud account {account.name}: {error}") from error


def _build(parts: Dependencies, settings: CloudSettings) -> LeadingService:
    return CloudService(parts, settings)


def expand_definition(settings: CloudSettings) -> tuple[ServiceDefinition[CloudSettings], ...]:
    """Return the service of each account."""

    def define(account: str) -> ServiceDefinition[CloudSettings]:
        own = msgspec.structs.replace(settings, accounts=(account,))
        return ServiceDefinition(
            spec=expand_cloud(own.account.name, *own.account_controllers),
            settings=CloudSettings,
            build=lambda parts, settings: _build(parts, own),
        )

    return tuple(map(define, settings.accounts))


def require_one_account(runs: Sequence[ServiceDefinition[Any]], parsed: ParsedSettings) -> tuple[str, ...]:
    """Return why a process of this service alone cannot run: the NATS key belongs to one account."""
    count = len(parsed.get(CloudSettings).accounts)
    if count == 1:
        return ()
    problem = "names several accounts: each needs a process of its own" if count else "is not set"
    return (f"--cloud-account {problem}; `python -m services` runs all accounts in one process",)


CLOUD_DEFINITION = ServiceDefinition(
    spec=CLOUD, settings=CloudSettings, build=_build, expand=expand_definition
)
