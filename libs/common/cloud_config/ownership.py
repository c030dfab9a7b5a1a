"""Which Nodes a controller looks after, where the operator says so: of all others it writes nothing."""

from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.node import Node

NODE_NAME: Final = "metadata.name"  # in selectors of Nodes; a label that is called so does not count
_SHOWN: Final = 200  # characters of a providerID: its kubelet may have said any


def why_not_owned(ownership: Ownership, node: Node, *, provider_id: str = "") -> str:
    """Why this Node is to be left alone, in words; "" when it is the controller's.

    `provider_id` is what the Node will be given, "" where it has one or that is not known. Where schemes are
    said, a Node of which neither is known is nobody's yet: it may turn out to be another's.
    """
    if ownership.selector:
        labels = {**node.labels, NODE_NAME: node.name}
        judged = match_selector(
            ownership.selector, labels, subject_name="the Node", not_in_matches_absent=True
        )
        if not judged.is_match:
            return f"ownership.nodeSelector does not select it: {judged.reason}"
    schemes, shown = ownership.provider_id_schemes, node.spec.provider_id or provider_id
    if not schemes:
        return ""
    if not shown:
        return "it has no providerID yet, and by that ownership.providerIDSchemes says whose it is"
    scheme, separator, _ = shown.partition("://")
    if separator and scheme in schemes:
        return ""
    said = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"its providerID {said!r} is of none of ownership.providerIDSchemes ({', '.join(schemes)})"


def ownership_labels(ownership: Ownership) -> tuple[str, ...]:
    """The labels that say whose a Node is: a patch that holds them fails where one was changed meanwhile."""
    keys = {requirement.key for term in ownership.selector for requirement in term.requirements}
    return tuple(sorted(keys - {NODE_NAME}))


def why_not_selected(ownership: Ownership, node: Node) -> str:
    """The same, whatever its providerID is or will be."""
    return why_not_owned(msgspec.structs.replace(ownership, provider_id_schemes=()), node)
