"""What is known of a Node: by Kubernetes, by its machine, and by what the services said last. Pure."""

from datetime import datetime

import msgspec

from cli.explain.node.last_messages import LastMessages, select_last_messages
from cli.explain.node.node_context import NodeContext
from cli.inside.flow_snapshot import FlowSnapshot, FlowUnavailable
from cli.render.compiled_config import CompiledConfig
from cli.render.described_node import DescribedNode
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.contract.events import NodeEnriched, NodeUnreachable
from libs.common.contract.machine import ForeignMachine, MachineFault
from libs.common.contract.node import Node
from services.labeler.plan import ClusterConfig
from services.lifecycle.evidence import MachineReport

MachineResult = DescribedNode | MachineFault


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered."""

    node: Node
    nodes: tuple[Node, ...] = ()  # all there are, this one among them
    machine_result: MachineResult | None = None  # at its machine; None: it was not asked
    not_queried_reason: str = ""  # why not
    is_query_skipped: bool = False  # the caller wanted it so
    answered_by: tuple[ForeignMachine, ...] = ()  # in its machine's place, as metadata would say it
    inconclusive_reason: str = ""  # why nobody does, where others answer
    # other Nodes, as far as their machines were asked, and answer
    other_machines: tuple[DescribedNode, ...] = ()
    config_file: CompiledConfig | None = None  # --cloud-config
    file_mistakes: str = ""  # of the one that the chart's ConfigMap holds
    is_from_bus: bool = False  # the look is metadata's, as it said it last
    context: NodeContext = NodeContext()
    flow: FlowSnapshot | FlowUnavailable | None = None  # None: nobody looked
    namespace: str = "kube-system"  # where our pods are
    at: datetime

    @property
    def last_messages(self) -> LastMessages | None:
        """What the services said last of it."""
        return select_last_messages(self.flow, self.node.name)

    @property
    def config(self) -> ClusterConfig:
        """What holds for every Node, as the labeler has it."""
        return self.config_file.config if self.config_file else ClusterConfig()

    @property
    def ownership(self) -> OwnershipConfig:
        """What the file says of whose Nodes are whose."""
        return self.config_file.document.ownership if self.config_file else OwnershipConfig()

    @property
    def machine_report(self) -> MachineReport | None:
        """What metadata would say, if it asked now; None if the machine was not asked."""
        return (
            self._make_enriched_event(self.machine_result)
            if isinstance(self.machine_result, DescribedNode)
            else self.unreachable
        )

    @property
    def machine_reports(self) -> tuple[MachineReport, ...]:
        """The same of every Node whose machine was asked."""
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
        """As metadata would say it, if it asked now; None if the machine answers, or was not asked."""
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
