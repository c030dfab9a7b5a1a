"""The keys of the file: one table for parsing, messages and the JSON Schema."""

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
    "name",  # a text with its position, as the next two; its reader validates it
    "number",
    "networks",  # a list, as the next one
    "schemes",
    "controller",  # a text with its position
    "templates",  # a mapping of arbitrary keys to templates
    "mapping",
    "list",  # of mappings of `keys`
    "former",  # a former key of the reference, accepted without effect
]
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)


class FileKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key and its allowed value. Letter case is ignored."""

    name: str
    kind: KeyKind
    help: str
    keys: tuple["FileKey", ...] = ()
    is_required: bool = False
    bounds: tuple[int, int] = (0, 0)  # for numbers, inclusive
    requires_one: bool = False  # an empty list is a mistake


GLOBAL: Final = (
    FileKey(
        name="clusterName",
        kind="label value",
        help="Name of the cluster, for the label node.cloudprovider.kubernetes.io/clustername.",
    ),
    FileKey(name="preferIPv6", kind="boolean", help="Prefer IPv6 to IPv4 where both are possible."),
    FileKey(
        name="endpoints", kind="former", help="Without effect: see --talos-endpoints and TALOS_ENDPOINTS."
    ),
    FileKey(
        name="approveNodeCSR",
        kind="former",
        help="Without effect: select node-csr-approval in --controllers.",
    ),
    FileKey(
        name="skipForeignNode",
        kind="former",
        help="Without effect: Nodes of other controllers are never written.",
    ),
)
REQUIREMENT: Final = (
    FileKey(
        name="key",
        kind="text",
        is_required=True,
        help="Name of a machine fact, in any letter case.",
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
    FileKey(name="name", kind="text", help="A comment, without effect."),
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
        help="Search for public addresses on the machine's links, whatever its platform.",
    ),
    FileKey(
        name="publicIPPredict",
        kind="former",
        help="Without effect, as in the reference: publicIPDiscovery looks for public addresses.",
    ),
)
RULE: Final = (
    FileKey(name="name", kind="text", help="Name of the rule in messages."),
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Machines to which the rule applies: one matching term is enough. Default: every machine.",
    ),
    FileKey(name="annotations", kind="templates", help="Annotations of the Node."),
    FileKey(name="labels", kind="templates", help="Labels of the Node."),
    FileKey(name="taints", kind="templates", help="Taints of the Node: value:Effect or Effect."),
    FileKey(
        name="platformMetadata",
        kind="templates",
        help="Overrides metadata of the platform: Region, Zone, InstanceType, InstanceID, ProviderID, Spot, "
        "InternalDNS or ExternalDNS, in any letter case.",
    ),
    FileKey(name="features", kind="mapping", keys=FEATURES, help="Optional behavior for these machines."),
    FileKey(
        name="sanitize",
        kind="boolean",
        help="Not in the reference: an invalid label value is replaced by the nearest valid one. "
        "Without it, such a label is skipped.",
    ),
)
POOL_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# Prefix lengths of a node's block: a block is smaller than a page of claims, so it is in one page only.
MASK_SIZES: Final[Mapping[int, tuple[int, int]]] = {4: (12, 32), 6: (48, 128)}
POOL: Final = (
    FileKey(name="name", kind="name", is_required=True, help="Name of the pool in messages and metrics."),
    FileKey(
        name="cidrs",
        kind="networks",
        is_required=True,
        requires_one=True,
        help="Networks of IPv4, IPv6 or both, used in this order. The networks of a file must not overlap.",
    ),
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=TERM,
        help="Machines that the pool serves: one matching term is enough. Default: every machine.",
    ),
    FileKey(
        name="maskSizeIPv4",
        kind="number",
        bounds=MASK_SIZES[4],
        help="Prefix length of a node's IPv4 block. Default: the cluster's.",
    ),
    FileKey(
        name="maskSizeIPv6",
        kind="number",
        bounds=MASK_SIZES[6],
        help="Prefix length of a node's IPv6 block. Default: the cluster's.",
    ),
)
IPAM: Final = (
    FileKey(
        name="pools",
        kind="list",
        keys=POOL,
        help="For each family, a node gets its block from the first pool that selects its machine.",
    ),
)
SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*$"  # a URL scheme (RFC 3986)
NODE_REQUIREMENT: Final = (
    FileKey(
        name="key",
        kind="label key",
        is_required=True,
        help="Name of a Node label, case-sensitive, or metadata.name, the name of the Node.",
    ),
    *REQUIREMENT[1:],
)
NODE_TERM: Final = (
    TERM[0],
    FileKey(
        name="matchExpressions",
        kind="list",
        keys=NODE_REQUIREMENT,
        help="All of them must be met, as in Kubernetes: an absent label also meets NotIn. An "
        "empty list matches nothing.",
    ),
)
_OWNERSHIP: Final = (
    FileKey(
        name="nodeSelector",
        kind="list",
        keys=NODE_TERM,
        requires_one=True,
        help="Nodes to manage, by labels and names: one matching term is enough. Default: all.",
    ),
    FileKey(
        name="providerIDSchemes",
        kind="schemes",
        requires_one=True,
        help="Nodes to manage, by the scheme of their providerID: talos, hcloud, aws, ... "
        "Default: each controller decides.",
    ),
)
OWNERSHIP_OF_CONTROLLER: Final = (
    FileKey(
        name="name",
        kind="controller",
        is_required=True,
        help="Name of the controller, as in --controllers.",
    ),
    *_OWNERSHIP,
)
OWNERSHIP: Final = (
    *_OWNERSHIP,
    FileKey(
        name="controllers",
        kind="list",
        keys=OWNERSHIP_OF_CONTROLLER,
        help="Settings of single controllers, which replace the above as a whole.",
    ),
)
FILE_KEYS: Final = (
    FileKey(name="global", kind="mapping", keys=GLOBAL, help="Settings of the whole cluster."),
    FileKey(
        name="transformations",
        kind="list",
        keys=RULE,
        help="Rules, in order: every matching rule applies, and later ones override earlier keys.",
    ),
    FileKey(
        name="ipam",
        kind="mapping",
        keys=IPAM,
        help="Not in the reference: networks for the pod CIDRs of nodes, if ipam allocates them. Without "
        "pools: the cluster's own CIDRs.",
    ),
    FileKey(
        name="ownership",
        kind="mapping",
        keys=OWNERSHIP,
        help="Not in the reference: the Nodes to manage. All others are never written. Default: "
        "all with a Talos machine whose providerID belongs to no other cloud controller manager.",
    ),
)
