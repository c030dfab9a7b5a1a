"""A planned change of a Node: of its shutdown taint, or of the record of its instance."""

from enum import StrEnum
from typing import Final

import msgspec

from libs.common.contract.node import Taint
from libs.common.contract.node_patch import NodeChanges

SHUTDOWN_TAINT: Final = Taint(key="node.cloudprovider.kubernetes.io/shutdown", effect="NoSchedule")


class ChangeKind(StrEnum):
    """What lifecycle changes, in words for the decision."""

    SET_TAINT = f"set taint {SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}"
    REMOVED_TAINT = f"removed taint {SHUTDOWN_TAINT.key}:{SHUTDOWN_TAINT.effect}"
    WROTE_RECORD = "wrote the record of its instance"
    VOIDED_RECORD = "voided the record of its instance"


class NodeChange(msgspec.Struct, frozen=True, kw_only=True):
    """A planned change, with the reason."""

    kind: ChangeKind
    changes: NodeChanges
    reason: str
