"""What keys the file may have: the one table that reads it, explains it and makes its JSON Schema."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.rule import Operator

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


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key, and what may stand under it. Its letter case does not matter."""

    name: str
    kind: KeyKind
    help: str
    keys: tuple["Key", ...] = ()
    required: bool = False
    bounds: tuple[int, int] = (0, 0)  # of a number, both included
    at_least_one: bool = False  # an empty list is a mistake


GLOBAL: Final = (
    Key(
        name="clusterName",
        kind="label value",
        help="Name of the cluster, for the label node.cloudprovider.kubernetes.io/clustername.",
    ),
    Key(name="preferIPv6", kind="boolean", help="IPv6 before IPv4 where both are possible."),
    Key(name="endpoints", kind="former", help="Without effect: see --talos-endpoints and TALOS_ENDPOINTS."),
    Key(name="approveNodeCSR", kind="former", help="Without effect: node-csr-approval is of --controllers."),
    Key(name="skipForeignNode", kind="former", help="Without effect: what is not ours is never touched."),
)
REQUIREMENT: Final = (
    Key(name="key", kind="text", required=True, help="Name of a fact about the machine, in any letter case."),
    Key(name="operator", kind="text", required=True, help=f"One of {', '.join(OPERATORS)}."),
    Key(
        name="values",
        kind="texts",
        help="At least one for In and NotIn; none for Exists and DoesNotExist; one integer for Gt and Lt; "
        "one pattern (RE2, unanchored) for Regexp.",
    ),
)
TERM: Final = (
    Key(name="name", kind="text", help="For the reader; without effect."),
    Key(
        name="matchExpressions",
        kind="list",
        keys=REQUIREMENT,
        help="All of them must be met; an empty list matches nothing.",
    ),
)
FEATURES: Final = (
    Key(
        name="publicIPDiscovery",
        kind="boolean",
        help="Look for public addresses on the machine's links, whatever its platform.",
    ),
    Key(
        name="publicIPPredict",
        kind="former",
        help="Without effect, as in the reference: publicIPDiscovery looks for public addresses.",
    ),
)
RULE: Final = (
    Key(name="name", kind="text", help="What messages call the rule."),
    Key(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Which machines the rule is about: any of these suffices. Without it, or empty: every machine.",
    ),
    Key(name="annotations", kind="templates", help="Annotations of the Node."),
    Key(name="labels", kind="templates", help="Labels of the Node."),
    Key(name="taints", kind="templates", help="Taints of the Node: value:Effect or Effect."),
    Key(
        name="platformMetadata",
        kind="templates",
        help="Overrides what the platform says: Region, Zone, InstanceType, InstanceID, ProviderID, Spot, "
        "InternalDNS or ExternalDNS, in any letter case.",
    ),
    Key(name="features", kind="mapping", keys=FEATURES, help="What else to do for these machines."),
    Key(
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
    Key(name="name", kind="name", required=True, help="What messages and metrics call the pool."),
    Key(
        name="cidrs",
        kind="networks",
        required=True,
        at_least_one=True,
        help="Its networks, IPv4, IPv6 or both; no two of a file may overlap. They are used in this order.",
    ),
    Key(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Which machines the pool is for: any of these suffices. Without it, or empty: every machine.",
    ),
    Key(
        name="maskSizeIPv4",
        kind="number",
        bounds=MASK_SIZES[4],
        help="Prefix length of a node's IPv4 block. Without it: the cluster's.",
    ),
    Key(
        name="maskSizeIPv6",
        kind="number",
        bounds=MASK_SIZES[6],
        help="Prefix length of a node's IPv6 block. Without it: the cluster's.",
    ),
)
IPAM: Final = (
    Key(
        name="pools",
        kind="list",
        keys=POOL,
        help="Of each family, a node gets its block from the first pool that is for its machine.",
    ),
)
SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*$"  # of a URL (RFC 3986)
NODE_REQUIREMENT: Final = (
    Key(
        name="key",
        kind="label key",
        required=True,
        help="Name of a label of the Node, in its own letter case, or metadata.name: the Node's own name.",
    ),
    *REQUIREMENT[1:],
)
NODE_TERM: Final = (
    TERM[0],
    Key(
        name="matchExpressions",
        kind="list",
        keys=NODE_REQUIREMENT,
        help="All of them must be met, as in Kubernetes: NotIn is met, too, where the label is absent. An "
        "empty list matches nothing.",
    ),
)
_OWNERSHIP: Final = (
    Key(
        name="nodeSelector",
        kind="list",
        keys=NODE_TERM,
        at_least_one=True,
        help="Which Nodes are ours, by their labels and names: any of these suffices. Without it: all.",
    ),
    Key(
        name="providerIDSchemes",
        kind="schemes",
        at_least_one=True,
        help="Which Nodes are ours, by what stands before :// in their providerID: talos, hcloud, aws, ... "
        "Without it: as each controller judges for itself.",
    ),
)
OWNERSHIP_OF_CONTROLLER: Final = (
    Key(
        name="name",
        kind="controller",
        required=True,
        help="The controller that it is about, by a name that --controllers takes.",
    ),
    *_OWNERSHIP,
)
OWNERSHIP: Final = (
    *_OWNERSHIP,
    Key(
        name="controllers",
        kind="list",
        keys=OWNERSHIP_OF_CONTROLLER,
        help="What counts for single controllers instead of the above, as a whole.",
    ),
)
FILE: Final = (
    Key(name="global", kind="mapping", keys=GLOBAL, help="What is true for the whole cluster."),
    Key(
        name="transformations",
        kind="list",
        keys=RULE,
        help="Rules, in order: every one that matches applies, and later ones override earlier keys.",
    ),
    Key(
        name="ipam",
        kind="mapping",
        keys=IPAM,
        help="Not in the reference: from where nodes get their pod CIDRs, where that is done at all. Without "
        "pools: from the cluster's own CIDRs.",
    ),
    Key(
        name="ownership",
        kind="mapping",
        keys=OWNERSHIP,
        help="Not in the reference: which Nodes are ours. Of all others nothing is ever written. Without it: "
        "all whose machines are Talos's and whose providerID is no other cloud controller manager's.",
    ),
)
