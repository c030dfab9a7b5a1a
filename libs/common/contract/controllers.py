"""The controllers that --controllers and the --cloud-config file name, as in the reference controller."""

from collections.abc import Mapping
from typing import Final

from libs.common.contract.services import CSR, IPAM, LABELER, LIFECYCLE, SERVICES

CLOUD_NODE: Final = LABELER.controller.name
CSR_APPROVAL: Final = CSR.controller.name
NODE_IPAM: Final = IPAM.controller.name
NODE_LIFECYCLE: Final = LIFECYCLE.controller.name
SELECTABLE: Final = tuple(spec.controller for spec in SERVICES if spec.controller.name)
# Controllers of the reference that do nothing here, and their aliases.
NEVER_HERE: Final[Mapping[str, str]] = {"service-lb-controller": "service", "node-route-controller": "route"}
ALIASES: Final[Mapping[str, str]] = {
    **{alias: each.name for each in SELECTABLE for alias in each.aliases},
    **{alias: name for name, alias in NEVER_HERE.items()},
}
# All names of the controllers that work on Nodes.
NODE_CONTROLLER_NAMES: Final = (
    *(each.name for each in SELECTABLE),
    *(alias for each in SELECTABLE for alias in each.aliases),
)


def canonical_name(name: str) -> str:
    """Return the name of a controller, for that name or an alias."""
    return ALIASES.get(name, name)
