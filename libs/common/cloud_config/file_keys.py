"""The keys of the file: one table for parsing, messages and the JSON Schema."""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from libs.common.cloud_config.model import Operator

KeyKind = Literal[
    "text",
    "operator",
    "fact key",
    "label key",
    "label value",
    "boolean",
    "texts",  # a list of texts
    "name",  # with its position, as the next two
    "number",
    "controller",
    "networks",  # a list of items with their positions, as the next two
    "pod networks",
    "schemes",
    "templates",  # a mapping of arbitrary keys to templates
    "mapping",
    "list",  # of mappings of `keys`
    "former",  # a former key of the reference, accepted without effect
]
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)


class FileKey(msgspec.Struct, frozen=True):
    """A key and its allowed value. Letter case is ignored."""

    name: str
    kind: KeyKind
    help: str
    keys: tuple["FileKey", ...] = ()
    is_required: bool = False
    bounds: tuple[int, int] = (0, 0)  # for numbers, inclusive
    requires_one: bool = False  # an empty list is a mistake


EXTERNAL_IPS: Final = (
    FileKey(
        "discovery",
        "boolean",
        "false: no address of a machine's links becomes an ExternalIP, whatever its platform and its "
        "publicIPDiscovery. Default: true.",
    ),
    FileKey(
        "includeCIDRs",
        "networks",
        "Only addresses in these networks become ExternalIPs. A family without a network is not restricted. "
        "A network within a private range, or within 100.64.0.0/10, also selects its addresses on links.",
        requires_one=True,
    ),
    FileKey(
        "excludeCIDRs",
        "networks",
        "Addresses in these networks never become ExternalIPs; ::/0 excludes IPv6.",
        requires_one=True,
    ),
)
GLOBAL: Final = (
    FileKey(
        "clusterName",
        "label value",
        "Name of the cluster, for the label node.cloudprovider.kubernetes.io/clustername.",
    ),
    FileKey("preferIPv6", "boolean", "Prefer IPv6 to IPv4 where both are possible."),
    FileKey(
        "externalIPs",
        "mapping",
        "Not in the reference: which addresses become ExternalIPs, on every platform. Default: public ones, "
        "so none of a private range or of 100.64.0.0/10.",
        keys=EXTERNAL_IPS,
    ),
    FileKey("endpoints", "former", "Without effect: see --talos-endpoints and TALOS_ENDPOINTS."),
    FileKey("approveNodeCSR", "former", "Without effect: select node-csr-approval in --controllers."),
    FileKey("skipForeignNode", "former", "Without effect: Nodes of other controllers are never written."),
)
REQUIREMENT: Final = (
    FileKey("key", "fact key", "Name of a machine fact, in any letter case.", is_required=True),
    FileKey("operator", "operator", f"One of {', '.join(OPERATORS)}.", is_required=True),
    FileKey(
        "values",
        "texts",
        "At least one for In and NotIn; none for Exists and DoesNotExist; one integer for Gt and Lt; "
        "one pattern (RE2, unanchored) for Regexp.",
    ),
)
TERM: Final = (
    FileKey("name", "text", "A comment, without effect."),
    FileKey(
        "matchExpressions",
        "list",
        "All of them must be met; an empty list matches nothing.",
        keys=REQUIREMENT,
    ),
)
FEATURES: Final = (
    FileKey(
        "publicIPDiscovery",
        "boolean",
        "Search for public addresses on the machine's links, whatever its platform.",
    ),
    FileKey(
        "publicIPPredict",
        "former",
        "Without effect, as in the reference: publicIPDiscovery looks for public addresses.",
    ),
)
RULE: Final = (
    FileKey("name", "text", "Name of the rule in messages."),
    FileKey(
        "nodeSelector",
        "list",
        "Machines to which the rule applies: one matching term is enough. Default: every machine.",
        keys=TERM,
    ),
    FileKey("annotations", "templates", "Annotations of the Node."),
    FileKey("labels", "templates", "Labels of the Node."),
    FileKey("taints", "templates", "Taints of the Node: value:Effect or Effect."),
    FileKey(
        "platformMetadata",
        "templates",
        "Overrides metadata of the platform: Region, Zone, InstanceType, InstanceID, ProviderID, Spot, "
        "InternalDNS or ExternalDNS, in any letter case.",
    ),
    FileKey("features", "mapping", "Optional behavior for these machines.", keys=FEATURES),
    FileKey(
        "sanitize",
        "boolean",
        "Not in the reference: an invalid label value is replaced by the nearest valid one. "
        "Without it, such a label is skipped.",
    ),
)
POOL_NAME: Final = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
# Prefix lengths of a node's block: a block is smaller than a page of claims, so it is in one page only.
MASK_SIZES: Final[Mapping[int, tuple[int, int]]] = {4: (12, 32), 6: (48, 128)}
POOL: Final = (
    FileKey("name", "name", "Name of the pool in messages and metrics.", is_required=True),
    FileKey(
        "cidrs",
        "pod networks",
        "Networks of IPv4, IPv6 or both, used in this order. The networks of a file must not overlap.",
        is_required=True,
        requires_one=True,
    ),
    FileKey(
        "nodeSelector",
        "list",
        "Machines that the pool serves: one matching term is enough. Default: every machine.",
        keys=TERM,
    ),
    FileKey(
        "maskSizeIPv4",
        "number",
        "Prefix length of a node's IPv4 block. Default: the cluster's.",
        bounds=MASK_SIZES[4],
    ),
    FileKey(
        "maskSizeIPv6",
        "number",
        "Prefix length of a node's IPv6 block. Default: the cluster's.",
        bounds=MASK_SIZES[6],
    ),
)
IPAM: Final = (
    FileKey(
        "pools",
        "list",
        "For each family, a node gets its block from the first pool that selects its machine.",
        keys=POOL,
    ),
)
SCHEME: Final = "^[A-Za-z][A-Za-z0-9+.-]*$"  # a URL scheme (RFC 3986)
NODE_REQUIREMENT: Final = (
    FileKey(
        "key",
        "label key",
        "Name of a Node label, case-sensitive, or metadata.name, the name of the Node.",
        is_required=True,
    ),
    *REQUIREMENT[1:],
)
NODE_TERM: Final = (
    TERM[0],
    FileKey(
        "matchExpressions",
        "list",
        "All of them must be met, as in Kubernetes: an absent label also meets NotIn. An "
        "empty list matches nothing.",
        keys=NODE_REQUIREMENT,
    ),
)
_OWNERSHIP: Final = (
    FileKey(
        "nodeSelector",
        "list",
        "Nodes to manage, by labels and names: one matching term is enough. Default: all.",
        keys=NODE_TERM,
        requires_one=True,
    ),
    FileKey(
        "providerIDSchemes",
        "schemes",
        "Nodes to manage, by the scheme of their providerID: talos, hcloud, aws, ..., or none. "
        "Default: each controller decides.",
        requires_one=True,
    ),
)
OWNERSHIP_OF_CONTROLLER: Final = (
    FileKey("name", "controller", "Name of the controller, as in --controllers.", is_required=True),
    *_OWNERSHIP,
)
OWNERSHIP: Final = (
    *_OWNERSHIP,
    FileKey(
        "controllers",
        "list",
        "Settings of single controllers, which replace the above as a whole.",
        keys=OWNERSHIP_OF_CONTROLLER,
    ),
)
FILE_KEYS: Final = (
    FileKey("global", "mapping", "Settings of the whole cluster.", keys=GLOBAL),
    FileKey(
        "transformations",
        "list",
        "Rules, in order: every matching rule applies, and later ones override earlier keys.",
        keys=RULE,
    ),
    FileKey(
        "ipam",
        "mapping",
        "Not in the reference: networks for the pod CIDRs of nodes, if ipam allocates them. Without "
        "pools: the cluster's own CIDRs.",
        keys=IPAM,
    ),
    FileKey(
        "ownership",
        "mapping",
        "Not in the reference: the Nodes to manage. All others are never written. Default: "
        "all with a Talos machine whose providerID belongs to no other cloud controller manager.",
        keys=OWNERSHIP,
    ),
)
