"""Decides which Nodes a controller manages by the operator's ownership settings; others are never written."""

from typing import Final

import msgspec

from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.selectors import match_selector
from libs.common.contract.node import Node
from libs.common.contract.platforms import parse_scheme

NODE_NAME: Final = "metadata.name"  # in selectors of Nodes; a label with that name is ignored
NO_SCHEME: Final = "none"  # in providerIDSchemes: selects providerIDs without a scheme
_SHOWN: Final = 200  # characters of a providerID, which a kubelet may choose


def why_not_owned(ownership: Ownership, node: Node, *, provider_id: str = "") -> str:
    """Return why the controller does not own this Node; "" if it does.

    `provider_id` is the one that the Node will get, "" if it has one or it is unknown. With schemes, a Node
    without a known providerID is not owned yet: it may belong to another controller.
    """
    labels = {**node.labels, NODE_NAME: node.name}
    judged = match_selector(ownership.selector, labels, subject_name="the Node", not_in_matches_absent=True)
    if not judged.is_match:
        return f"ownership.nodeSelector does not select it: {judged.reason}"
    schemes, shown = ownership.provider_id_schemes, node.spec.provider_id or provider_id
    if not schemes:
        return ""
    if not shown:
        return "it has no providerID yet, which ownership.providerIDSchemes requires"
    if (parse_scheme(shown) or NO_SCHEME) in schemes:
        return ""
    printable = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return f"its providerID {printable!r} has none of ownership.providerIDSchemes ({', '.join(schemes)})"


def ownership_labels(ownership: Ownership) -> tuple[str, ...]:
    """Return the labels that decide the ownership: a patch that tests them fails if one has changed."""
    keys = {requirement.key for term in ownership.selector for requirement in term.requirements}
    return tuple(sorted(keys - {NODE_NAME}))


def why_not_selected(ownership: Ownership, node: Node) -> str:
    """Return why the selector excludes this Node, whatever its providerID."""
    return why_not_owned(msgspec.structs.replace(ownership, provider_id_schemes=()), node)
