"""The one taint that the labeler takes away: a Node's own sign that nobody has initialised it."""

from typing import Final

from libs.common.node import TAINT_UNINITIALIZED, Node, Taint
from services.labeler.labels import names_in

_OWNED_BY_TALOS: Final = "talos.dev/owned-taints"  # JSON list of keys from machine.nodeTaints


def taints_to_remove(node: Node) -> tuple[Taint, ...]:
    """The uninitialized taint, of whatever effect."""
    return tuple(taint for taint in node.spec.taints if taint.key == TAINT_UNINITIALIZED)


def put_back_by_talos(node: Node) -> bool:
    """Whether the machine config itself sets the uninitialized taint: removing it would start a fight."""
    return TAINT_UNINITIALIZED in names_in(node.annotations.get(_OWNED_BY_TALOS, ""))
