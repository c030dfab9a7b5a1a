"""What keys the file may have: the one table that reads it, explains it and makes its JSON Schema."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.model import Operator

KeyKind = Literal[
    "text",
    "label key",
    "label value",
    "boolean",
    "texts",  # a list of texts
    "name",  # a text; like the next two it is told with its place, and judged by its reader
    "number",
    "networks",  # a list, as is the next one
    "schemes",
    "controller",  # a text, told with its place
    "templates",  # a mapping of keys of the author's own to templates
    "mapping",  # of `keys`
    "list",  # of mappings of `keys`
    "former",  # the reference had it once, and takes it without effect
]
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)


class FileKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and what may stand under it. Its letter case does not matter."""

    name: str
    kind: KeyKind
    help: str
    keys: tuple["FileKey", ...] = ()
    is_required: bool = False
    bounds: tuple[int, int] = (0, 0)  # of a number, both included
    requires_one: bool = False  # an empty list is a mistake


GLOBAL: Final = (
    FileKey(
        name="clusterName",
        kind="label value",
        help="Name of the cluster, for the label node.cloudprovider.kubernetes.io/clustername.",
    ),
    FileKey(name="preferIPv6", kind="boolean", help="IPv6 before IPv4 where both are possible."),
    FileKey(
        name="endpoints", kind="former", help="Without effect: see --talos-endpoints and TALOS_ENDPOINTS."
    ),
    FileKey(
        name="approveNodeCSR", kind="former", help="Without effect: node-csr-approval is of --controllers."
    ),
    FileKey(name="skipForeignNode", kind="former", help="Without effect: what is not ours is never touched."),
)
REQUIREMENT: Final = (
    FileKey(
        name="key",
        kind="text",
        is_required=True,
        help="Name of a fact about the machine, in any letter case.",
    ),
    FileKey(name="operator", kind="text", is_required=True, help=f"One of {', '.join(OPERATORS)}."),
    FileKey(
        name="values",
        kind="texts",
        help="At least one for In and NotIn; none for Exists and DoesNotExist; one integer for Gt and Lt; "
        "one pattern (RE2, unanchored) for Regexp.",
    ),
)
TERM: Final = (
    FileKey(name="name", kind="text", help="For the reader; without effect."),
    FileKey(
        name="matchExpressions",
        kind="list",
        keys=REQUIREMENT,
        help="All of them must be met; an empty list matches nothing.",
    ),
)
FEATURES: Final = (
    FileKey(
        name="publicIPDiscovery",
        kind="boolean",
        help="Look for public addresses on the machine's links, whatever its platform.",
    ),
    FileKey(
        name="publicIPPredict",
        kind="former",
        help="Without effect, as in the reference: publicIPDiscovery looks for public addresses.",
    ),
)
RULE: Final = (
    FileKey(name="name", kind="text", help="What messages call the rule."),
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Which machines the rule is about: any of these suffices. Without it, or empty: every machine.",
    ),
    FileKey(name="annotations", kind="templates", help="Annotations of the Node."),
    FileKey(name="labels", kind="templates", help="Labels of the Node."),
    FileKey(name="taints", kind="templates", help="Taints of the Node: value:Effect or Effect."),
    FileKey(
        name="platformMetadata",
        kind="templates",
        help="Overrides what the platform says: Region, Zone, InstanceType, InstanceID, ProviderID, Spot, "
        "InternalDNS or ExternalDNS, in any letter case.",
    ),
    FileKey(name="features", kind="mapping", keys=FEATURES, help="What else to do for these machines."),
    FileKey(
        name="sanitize",
        kind="boolean",
        help="Not in the reference: a label value that Kubernetes does not take becomes the nearest one that "
        "it takes. Without it, such a label is skipped.",
    ),
)
POOL_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# Of a node's block: smaller than a claim's page of addresses, so that no block is in two of them.
MASK_SIZES: Final[Mapping[int, tuple[int, int]]] = {4: (12, 32), 6: (48, 128)}
POOL: Final = (
    FileKey(name="name", kind="name", is_required=True, help="What messages and metrics call the pool."),
    FileKey(
        name="cidrs",
        kind="networks",
        is_required=True,
        requires_one=True,
        help="Its networks, IPv4, IPv6 or both; no two of a file may overlap. They are used in this order.",
    ),
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Which machines the pool is for: any of these suffices. Without it, or empty: every machine.",
    ),
    FileKey(
        name="maskSizeIPv4",
        kind="number",
        bounds=MASK_SIZES[4],
        help="Prefix length of a node's IPv4 block. Without it: the cluster's.",
    ),
    FileKey(
        name="maskSizeIPv6",
        kind="number",
        bounds=MASK_SIZES[6],
        help="Prefix length of a node's IPv6 block. Without it: the cluster's.",
    ),
)
IPAM: Final = (
    FileKey(
        name="pools",
        kind="list",
        keys=POOL,
        help="Of each family, a node gets its block from the first pool that is for its machine.",
    ),
)
SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*$"  # of a URL (RFC 3986)
NODE_REQUIREMENT: Final = (
    FileKey(
        name="key",
        kind="label key",
        is_required=True,
        help="Name of a label of the Node, in its own letter case, or metadata.name: the Node's own name.",
    ),
    *REQUIREMENT[1:],
)
NODE_TERM: Final = (
    TERM[0],
    FileKey(
        name="matchExpressions",
        kind="list",
        keys=NODE_REQUIREMENT,
        help="All of them must be met, as in Kubernetes: NotIn is met, too, where the label is absent. An "
        "empty list matches nothing.",
    ),
)
_OWNERSHIP: Final = (
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=NODE_TERM,
        requires_one=True,
        help="Which Nodes are ours, by their labels and names: any of these suffices. Without it: all.",
    ),
    FileKey(
        name="providerIDSchemes",
        kind="schemes",
        requires_one=True,
        help="Which Nodes are ours, by what stands before :// in their providerID: talos, hcloud, aws, ... "
        "Without it: as each controller judges for itself.",
    ),
)
OWNERSHIP_OF_CONTROLLER: Final = (
    FileKey(
        name="name",
        kind="controller",
        is_required=True,
        help="The controller that it is about, by a name that --controllers takes.",
    ),
    *_OWNERSHIP,
)
OWNERSHIP: Final = (
    *_OWNERSHIP,
    FileKey(
        name="controllers",
        kind="list",
        keys=OWNERSHIP_OF_CONTROLLER,
        help="What counts for single controllers instead of the above, as a whole.",
    ),
)
FILE_KEYS: Final = (
    FileKey(name="global", kind="mapping", keys=GLOBAL, help="What is true for the whole cluster."),
    FileKey(
        name="transformations",
        kind="list",
        keys=RULE,
        help="Rules, in order: every one that matches applies, and later ones override earlier keys.",
    ),
    FileKey(
        name="ipam",
        kind="mapping",
        keys=IPAM,
        help="Not in the reference: from where nodes get their pod CIDRs, where that is done at all. Without "
        "pools: from the cluster's own CIDRs.",
    ),
    FileKey(
        name="ownership",
        kind="mapping",
        keys=OWNERSHIP,
        help="Not in the reference: which Nodes are ours. Of all others nothing is ever written. Without it: "
        "all whose machines are Talos's and whose providerID is no other cloud controller manager's.",
    ),
)
