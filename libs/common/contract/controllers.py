"""The controllers that --controllers and the --cloud-config file name: the reference's names for them."""

from collections.abc import Mapping
from typing import Final

CLOUD_NODE: Final = "cloud-node"
CSR_APPROVAL: Final = "certificatesigningrequest-approving-controller"
NODE_IPAM: Final = "node-ipam-controller"
NODE_LIFECYCLE: Final = "cloud-node-lifecycle-controller"
ALIASES: Final[Mapping[str, str]] = {
    "cloud-node-controller": CLOUD_NODE,
    "node-csr-approval": CSR_APPROVAL,
    "nodeipam": NODE_IPAM,
    "cloud-node-lifecycle": NODE_LIFECYCLE,
    "service": "service-lb-controller",
    "route": "node-route-controller",
}
_OF_NODES: Final = (CLOUD_NODE, CSR_APPROVAL, NODE_IPAM, NODE_LIFECYCLE)
# Whatever those are called that look after Nodes.
NODE_CONTROLLER_NAMES: Final = (
    *_OF_NODES,
    *(name for name, proper in ALIASES.items() if proper in _OF_NODES),
)


def canonical_name(name: str) -> str:
    """What a controller is called, by that name or by another one that it has."""
    return ALIASES.get(name, name)
