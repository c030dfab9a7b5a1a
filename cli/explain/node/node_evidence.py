"""The evidence about a Node: Kubernetes objects, its machine, and the last messages of the services. Pure."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from cli.cluster.kube_events import KubeEvent
from cli.cluster.kube_objects import CertificateSigningRequest, find_newest
from cli.cluster.machine_events import MachineReport, make_unreachable
from cli.cluster.snapshot import ClusterSnapshot
from cli.cluster.unavailable import Unavailable, list_known
from cli.inside.flow_snapshot import FlowObject, FlowUnavailable, ObjectMessages
from cli.render.compiled_config import CompiledConfig
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.contract.events import (
    Decided,
    InstanceMetadata,
    NodeEnriched,
    NodeObserved,
    NodeUnreachable,
)
from libs.common.contract.instances import get_provider
from libs.common.contract.machine import FAULT_KINDS, ForeignMachine, MachineFault
from libs.common.contract.node import Node
from libs.common.contract.services import ServiceSpec
from services.labeler.core.instance_metadata import complete_facts
from services.labeler.core.plan.plan import ClusterConfig

_FRESH: Final = timedelta(minutes=15)  # metadata polls every five minutes


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered about one Node."""

    node: Node
    snapshot: ClusterSnapshot
    node_events: tuple[KubeEvent, ...] | Unavailable = ()  # about this Node, newest first
    report: MachineReport | None = None  # that metadata would publish now; None: its machine was not queried
    not_queried_reason: str = ""  # why it was not queried
    is_query_skipped: bool = False  # the caller disabled the query, or metadata does not query it either
    inconclusive_reason: str = ""  # why other answers prove no replacement
    other_reports: tuple[NodeEnriched, ...] = ()  # about other Nodes whose machines were queried and answered
    config_file: CompiledConfig | None = None  # the --cloud-config file
    file_mistakes: str = ""  # mistakes in the file of the chart's ConfigMap
    is_from_bus: bool = False  # `report` is metadata's last message
    own_fault: MachineFault | None = None  # of the caller's query, where metadata's report counts

    @property
    def at(self) -> datetime:
        """Return the time of the snapshot."""
        return self.snapshot.at

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return all Nodes, including this one."""
        return list_known(self.snapshot.nodes)

    @property
    def request(self) -> CertificateSigningRequest | None:
        """Return the kubelet's newest request for a serving certificate."""
        return find_newest(
            one for one in list_known(self.snapshot.requests) if one.node_name == self.node.name
        )

    def find_event(self, *reasons: str) -> KubeEvent | None:
        """Return the newest Event about the Node with one of these reasons."""
        return next((each for each in list_known(self.node_events) if each.reason in reasons), None)

    @property
    def unavailable_parts(self) -> tuple[str, ...]:
        """Return the parts that could not be read, with the reason."""
        found = list(self.snapshot.unavailable_parts)
        if isinstance(self.node_events, Unavailable):
            found.append(f"Events of the Node: {self.node_events.reason}")
        if self.own_fault is not None:
            found.append(f"its machine, queried by this command: {describe_fault(self.own_fault)}")
        return tuple(found)

    @property
    def messages_problem(self) -> str:
        """Return why the last messages of the services could not be read."""
        flow = self.snapshot.flow
        if isinstance(flow, FlowUnavailable):
            return flow.reason
        return "" if flow.stream else "NATS has no stream TALOSCCM; the leading watcher creates it"

    @property
    def messages(self) -> ObjectMessages:
        """Return the last messages of the services about the Node."""
        flow = self.snapshot.flow_snapshot
        found = flow.find_object("node", self.node.name) if flow else None
        return found or ObjectMessages(object=FlowObject("node", self.node.name))

    @property
    def observed(self) -> NodeObserved | None:
        """Return the last event of the watcher about this Node, matched by UID."""
        events = self.messages.list_events(NodeObserved)
        return next((each for each in events if each.node.uid == self.node.uid), None)

    @property
    def machine_event(self) -> NodeEnriched | NodeUnreachable | None:
        """Return the last event of metadata about this Node's machine, matched by UID."""
        messages = self.messages
        events: tuple[NodeEnriched | NodeUnreachable, ...] = (
            *messages.list_events(NodeEnriched),
            *messages.list_events(NodeUnreachable),
        )
        return next((each for each in events if each.node.uid == self.node.uid), None)

    def find_decision(self, service: ServiceSpec) -> Decided | None:
        """Return the last decision of a service about this Node, matched by UID."""
        about = (service.service, self.node.uid)
        return next(
            (each for each in self.messages.list_events(Decided) if (each.service, each.uid) == about), None
        )

    @property
    def config(self) -> ClusterConfig:
        """Return the settings that apply to every Node, as the labeler uses them."""
        return self.config_file.config if self.config_file else ClusterConfig()

    @property
    def ownership(self) -> OwnershipConfig:
        """Return the ownership section of the file."""
        return self.config_file.document.ownership if self.config_file else OwnershipConfig()

    @property
    def fault(self) -> MachineFault | None:
        """Return why its machine does not answer; None if it answers, or was not queried."""
        return self.report.fault if isinstance(self.report, NodeUnreachable) else None


def report_fault(
    evidence: NodeEvidence, fault: MachineFault, foreign: tuple[ForeignMachine, ...] = ()
) -> NodeEvidence:
    """Return the evidence after a query that failed; `foreign` are machines that answered instead."""
    event = evidence.machine_event
    before = event.last_known if isinstance(event, NodeUnreachable) else event.facts if event else None
    report = make_unreachable(evidence.node, fault, evidence.at, last_known=before, foreign_machines=foreign)
    return msgspec.structs.replace(evidence, report=report)


def choose_report(evidence: NodeEvidence) -> NodeEvidence:
    """Return the evidence with the report to trust.

    A machine is not reported as failed because the caller lacks access, or cannot reach a control plane, as
    on a laptop. In that case the last message of metadata counts, if there is one.
    """
    report = evidence.report
    if report is None:
        return fall_back_to_bus(evidence)
    if not isinstance(report, NodeUnreachable):
        return evidence
    fault, kind = report.fault, FAULT_KINDS[report.fault.kind]
    if kind.depends_on_client:
        return fall_back_to_bus(
            msgspec.structs.replace(evidence, report=None, not_queried_reason=describe_fault(fault))
        )
    if kind.is_silent and not report.foreign_machines and _is_reachable_by_metadata(evidence):
        return fall_back_to_bus(msgspec.structs.replace(evidence, report=None, own_fault=fault))
    return evidence


def fall_back_to_bus(evidence: NodeEvidence) -> NodeEvidence:
    """Use the last message of metadata about the machine, if there is one."""
    event = evidence.machine_event
    if event is None:
        return evidence
    report = msgspec.structs.replace(event, node=evidence.node)
    return msgspec.structs.replace(evidence, report=report, is_from_bus=True)


def complete_by_accounts(evidence: NodeEvidence) -> NodeEvidence:
    """Return the evidence with what cloud accounts supply of the machine, as the labeler adds it.

    The facts of metadata decide: the labeler knows no others.
    """
    report, event = evidence.report, evidence.machine_event
    messages = {each.account: each for each in evidence.messages.list_events(InstanceMetadata)}
    if not messages or not isinstance(event, NodeEnriched) or not isinstance(report, NodeEnriched):
        return evidence
    of_node = msgspec.structs.replace(event, node=evidence.node)
    accounts = {account: get_provider(each.provider_id) for account, each in messages.items()}
    completed = complete_facts(of_node, accounts, messages, lambda provider_id: frozenset())
    if completed.supplement is None:
        return evidence
    platform, supplement = completed.platform, completed.supplement
    facts = msgspec.structs.replace(report.facts, platform=platform, supplement=supplement)
    return msgspec.structs.replace(evidence, report=msgspec.structs.replace(report, facts=facts))


def _is_reachable_by_metadata(evidence: NodeEvidence) -> bool:
    """Whether metadata reported facts recently and the kubelet still reports to Kubernetes."""
    ready, event = evidence.node.find_condition("Ready"), evidence.machine_event
    is_on = ready is not None and ready.status != "Unknown"
    return is_on and isinstance(event, NodeEnriched) and evidence.at - event.facts.queried_at < _FRESH


def describe_fault(fault: MachineFault) -> str:
    """Return step, endpoint and message of a fault in one line."""
    where = f" at {fault.endpoint}" if fault.endpoint and fault.endpoint not in fault.message else ""
    return f"{fault.step}{where}: {fault.message}"
