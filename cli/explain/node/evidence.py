"""What is known of a Node: by Kubernetes, by its machine, and by what the services said last. Pure."""

from datetime import datetime

import msgspec

from cli.explain.node.last_words import LastWords
from cli.render.config_in_use import ConfigInUse
from cli.render.described import DescribedNode
from libs.common.cloud_config.rule import OwnershipOfNodes
from libs.common.events import NodeEnriched, NodeUnreachable
from libs.common.machine import AnotherMachine, MachineFault
from libs.common.node import Node
from services.labeler.plan import Global
from services.lifecycle.evidence import Word

Look = DescribedNode | MachineFault


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was gathered."""

    node: Node
    nodes: tuple[Node, ...] = ()  # all there are, this one among them
    look: Look | None = None  # at its machine; None: it was not asked
    not_asked: str = ""  # why not
    withheld: bool = False  # the caller wanted it so
    answered_by: tuple[AnotherMachine, ...] = ()  # as metadata would say it
    file: ConfigInUse | None = None  # --cloud-config
    last_words: LastWords | None = None  # None: nobody looked
    at: datetime

    @property
    def config(self) -> Global:
        """What holds for every Node, as the labeler has it."""
        return self.file.config if self.file else Global()

    @property
    def ownership(self) -> OwnershipOfNodes:
        """What the file says of whose Nodes are whose."""
        return self.file.written.ownership if self.file else OwnershipOfNodes()

    @property
    def word(self) -> Word | None:
        """What metadata would say, if it asked now; None if the machine was not asked."""
        if not isinstance(self.look, DescribedNode):
            return self.unreachable
        return NodeEnriched(
            incarnation="",
            observed_sequence=0,
            node=self.node,
            facts=self.look.facts,
            recognized_by=self.look.recognized_by,
            observed_at=self.at,
            enriched_at=self.at,
        )

    @property
    def unreachable(self) -> NodeUnreachable | None:
        """As metadata would say it, if it asked now; None if the machine answers, or was not asked."""
        if not isinstance(self.look, MachineFault):
            return None
        said = self.last_words.of_machine if self.last_words else None
        same = said is not None and said.node.uid == self.node.uid
        before = said.last_known if isinstance(said, NodeUnreachable) else said.facts if said else None
        return NodeUnreachable(
            incarnation="",
            observed_sequence=0,
            node=self.node,
            fault=self.look,
            last_known=before if same else None,
            attempt=1,
            retry_at=self.at,
            answered_by=self.answered_by,
            observed_at=self.at,
            enriched_at=self.at,
        )
