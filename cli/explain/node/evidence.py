"""What is known of a Node: by Kubernetes, by its machine, and by what the services said last. Pure."""

from datetime import datetime

import msgspec

from cli.explain.node.around import Around
from cli.explain.node.last_words import LastWords, last_words
from cli.inside.seen import FlowSeen, Unknown
from cli.render.config_in_use import ConfigInUse
from cli.render.described import DescribedNode
from libs.common.cloud_config.model import OwnershipConfig
from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import ForeignMachine, MachineFault
from libs.common.node import Node
from services.labeler.plan import ClusterConfig
from services.lifecycle.evidence import MachineReport

Look = DescribedNode | MachineFault


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered."""

    node: Node
    nodes: tuple[Node, ...] = ()  # all there are, this one among them
    look: Look | None = None  # at its machine; None: it was not asked
    not_asked: str = ""  # why not
    withheld: bool = False  # the caller wanted it so
    answered_by: tuple[ForeignMachine, ...] = ()  # in its machine's place, as metadata would say it
    not_proven: str = ""  # why nobody does, where others answer
    others: tuple[DescribedNode, ...] = ()  # other Nodes, as far as their machines were asked, and answer
    file: ConfigInUse | None = None  # --cloud-config
    file_mistakes: str = ""  # of the one that the chart's ConfigMap holds
    heard: bool = False  # the look is metadata's, as it said it last
    around: Around = Around()
    flow: FlowSeen | Unknown | None = None  # None: nobody looked
    namespace: str = "kube-system"  # where our pods are
    at: datetime

    @property
    def last_words(self) -> LastWords | None:
        """What the services said last of it."""
        return last_words(self.flow, self.node.name)

    @property
    def config(self) -> ClusterConfig:
        """What holds for every Node, as the labeler has it."""
        return self.file.config if self.file else ClusterConfig()

    @property
    def ownership(self) -> OwnershipConfig:
        """What the file says of whose Nodes are whose."""
        return self.file.written.ownership if self.file else OwnershipConfig()

    @property
    def word(self) -> MachineReport | None:
        """What metadata would say, if it asked now; None if the machine was not asked."""
        return self._said(self.look) if isinstance(self.look, DescribedNode) else self.unreachable

    @property
    def words(self) -> tuple[MachineReport, ...]:
        """The same of every Node whose machine was asked."""
        own = (self.word,) if self.word is not None else ()
        return (*own, *map(self._said, self.others))

    def _said(self, look: DescribedNode) -> NodeEnriched:
        return NodeEnriched(
            stream_id="",
            observed_sequence=0,
            node=look.node,
            facts=look.facts,
            verified_by=look.recognized_by,
            observed_at=self.at,
            enriched_at=self.at,
        )

    @property
    def unreachable(self) -> NodeUnreachable | None:
        """As metadata would say it, if it asked now; None if the machine answers, or was not asked."""
        if not isinstance(self.look, MachineFault):
            return None
        said = self.last_words.machine_of(self.node) if self.last_words else None
        before = said.last_known if isinstance(said, NodeUnreachable) else said.facts if said else None
        return NodeUnreachable(
            stream_id="",
            observed_sequence=0,
            node=self.node,
            fault=self.look,
            last_known=before,
            attempt=1,
            retry_at=self.at,
            foreign_machines=self.answered_by,
            observed_at=self.at,
            enriched_at=self.at,
        )
