"""Which Nodes a controller looks after, where the operator says so: of all others it writes nothing."""

from libs.common.cloud_config.rule import Ownership
from libs.common.cloud_config.selectors import matches
from libs.common.node import Node

NODE_NAME = "metadata.name"  # in selectors of Nodes; no label is called so


def why_not_owned(ownership: Ownership, node: Node, *, provider_id: str = "") -> str:
    """Why this Node is to be left alone, in words; "" when it is the controller's.

    `provider_id` is what the Node would be given, "" where that is not known. A Node without a providerID of
    which nothing is known yet is the controller's: whoever knows more asks again before a providerID is
    written.
    """
    if ownership.selector:
        judged = matches(ownership.selector, {**node.labels, NODE_NAME: node.name}, whose="the Node")
        if not judged.matched:
            return f"ownership.nodeSelector does not select it: {judged.why}"
    schemes, shown = ownership.provider_id_schemes, node.spec.provider_id or provider_id
    if schemes and shown and shown.partition("://")[0] not in schemes:
        return f"its providerID {shown!r} is of none of ownership.providerIDSchemes ({', '.join(schemes)})"
    return ""
