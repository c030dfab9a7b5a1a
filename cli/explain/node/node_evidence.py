"""The evidence about a Node: Kubernetes objects, its machine, and the last messages of the services. Pure."""

from datetime import datetime

import msgspec

from cli.cluster.described_node import DescribedNode
from cli.cluster.kept_keys import NO_MANAGERS
from cli.explain.node.last_messages import LastMessages, select_last_messages
from cli.explain.node.node_context import NodeContext
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from cli.render.compiled_config import CompiledConfig
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.node import Node
from services.labeler.plan import ClusterConfig
from services.lifecycle.evidence import MachineReport

MachineResult = DescribedNode | MachineFault


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered about one Node."""

    node: Node
    nodes: tuple[Node, ...] = ()  # all Nodes, including this one
    managed_fields: msgspec.Raw = NO_MANAGERS  # of the Node
    machine_result: MachineResult | None = None  # None: the machine was not queried
    not_queried_reason: str = ""  # why it was not queried
    is_query_skipped: bool = False  # the caller disabled the query, or metadata does not query it either
    # machines that answered in its place, as metadata would report them
    answered_by: tuple[ForeignMachine, ...] = ()
    inconclusive_reason: str = ""  # why other answers prove no replacement
    # other Nodes whose machines were queried and answered
    other_machines: tuple[DescribedNode, ...] = ()
    config_file: CompiledConfig | None = None  # the --cloud-config file
    file_mistakes: str = ""  # mistakes in the file of the chart's ConfigMap
    is_from_bus: bool = False  # `machine_result` is from metadata's last message
    context: NodeContext = NodeContext()
    flow: FlowSnapshot | FlowUnavailable | None = None  # None: not queried
    namespace: str = "kube-system"  # of the chart's pods
    at: datetime

    @property
    def last_messages(self) -> LastMessages | None:
        """Return the last message of each service about the Node."""
        return select_last_messages(self.flow, self.node.name)

    @property
    def config(self) -> ClusterConfig:
        """Return the settings that apply to every Node, as the labeler uses them."""
        return self.config_file.config if self.config_file else ClusterConfig()

    @property
    def ownership(self) -> OwnershipConfig:
        """Return the ownership section of the file."""
        return self.config_file.document.ownership if self.config_file else OwnershipConfig()

    @property
    def machine_report(self) -> MachineReport | None:
        """Return the event that metadata would publish now; None if the machine was not queried."""
        return (
            self._make_enriched_event(self.machine_result)
            if isinstance(self.machine_result, DescribedNode)
            else self.unreachable
        )

    @property
    def machine_reports(self) -> tuple[MachineReport, ...]:
        """Return these events for every Node whose machine was queried and answered."""
        own = (self.machine_report,) if self.machine_report is not None else ()
        return (*own, *map(self._make_enriched_event, self.other_machines))

    def _make_enriched_event(self, look: DescribedNode) -> NodeEnriched:
        return NodeEnriched(
            stream_id="",
            observed_sequence=0,
            node=look.node,
            facts=look.facts,
            verified_by=look.verified_by,
            observed_at=self.at,
            enriched_at=self.at,
        )

    @property
    def unreachable(self) -> NodeUnreachable | None:
        """Return the NodeUnreachable event that metadata would publish now; None without a fault."""
        if not isinstance(self.machine_result, MachineFault):
            return None
        said = self.last_messages.find_machine_event(self.node) if self.last_messages else None
        before = said.last_known if isinstance(said, NodeUnreachable) else said.facts if said else None
        return NodeUnreachable(
            stream_id="",
            observed_sequence=0,
            node=self.node,
            fault=self.machine_result,
            last_known=before,
            attempt=1,
            retry_at=self.at,
            foreign_machines=self.answered_by,
            observed_at=self.at,
            enriched_at=self.at,
        )
