"""The contents of the file, with everything validated that needs no machine."""

from ipaddress import IPv4Network, IPv6Network
from typing import Literal

import msgspec

Network = IPv4Network | IPv6Network
Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Regexp"]
Kind = Literal["annotations", "labels", "taints", "platformMetadata"]


class RuleEntry(msgspec.Struct, frozen=True):
    """A key that a rule sets, and the template of its value.

    Under platformMetadata the key is the name of a field of `libs.common.contract.machine.PlatformMetadata`.
    """

    key: str
    template: str
    line: int


class NodeSelectorRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """One matchExpression; its values are valid for the operator."""

    key: str  # in the spelling of `fact_fields.canonical_key`
    operator: Operator
    values: tuple[str, ...] = ()
    line: int = 0


class NodeSelectorTerm(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that must all be met; an empty term matches nothing."""

    requirements: tuple[NodeSelectorRequirement, ...] = ()


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One of the file's transformations."""

    name: str = ""
    index: int  # in the file's list, from 0
    line: int = 0
    selector: tuple[NodeSelectorTerm, ...] = ()  # one matching term is enough; empty = every machine
    annotations: tuple[RuleEntry, ...] = ()
    labels: tuple[RuleEntry, ...] = ()
    taints: tuple[RuleEntry, ...] = ()
    platform_metadata: tuple[RuleEntry, ...] = ()
    public_ip_discovery: bool | None = None
    sanitize: bool = False  # not in the reference: replace an invalid label value

    @property
    def title(self) -> str:
        """The name in messages: its own, or its position in the file."""
        return self.name or f"transformations[{self.index}]"

    def entries(self) -> tuple[tuple[Kind, RuleEntry], ...]:
        """Return all keys that it sets, in the order of application."""
        return (
            *(("annotations", entry) for entry in self.annotations),
            *(("labels", entry) for entry in self.labels),
            *(("taints", entry) for entry in self.taints),
            *(("platformMetadata", entry) for entry in self.platform_metadata),
        )


class ExternalIPs(msgspec.Struct, frozen=True, kw_only=True):
    """The section `global.externalIPs` of the file: which addresses may become ExternalIPs."""

    discovery: bool = True  # False: no address of the machine's links, whatever its platform and its rules
    include_cidrs: tuple[Network, ...] = ()  # only these; a family without a network is not restricted
    exclude_cidrs: tuple[Network, ...] = ()  # none of these, even if `include_cidrs` has them


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One of `ipam.pools`. For each family, the first pool that selects a machine serves it.

    The networks of a file do not overlap; each has the format of `ipaddress`, without host bits.
    """

    name: str
    index: int  # in the file's list, from 0
    line: int = 0
    selector: tuple[NodeSelectorTerm, ...] = ()  # one matching term is enough; empty = every machine
    cidrs: tuple[str, ...] = ()  # of both families, in the file's order
    mask_size_ipv4: int | None = None  # prefix length of a node's block; None = the cluster's
    mask_size_ipv6: int | None = None


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """The Nodes that a controller manages: those that match both the selector and the schemes."""

    # Of Node labels and `metadata.name`; empty = every Node.
    selector: tuple[NodeSelectorTerm, ...] = ()
    # Schemes of providerIDs, such as "hcloud"; "none" = providerIDs without a scheme. Empty = each controller
    # decides. A Node without a providerID is matched by the one that it would get.
    provider_id_schemes: tuple[str, ...] = ()

    @property
    def is_restricted(self) -> bool:
        """Whether some Nodes may not be the controller's."""
        return bool(self.selector or self.provider_id_schemes)


class OwnershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The section `ownership` of the file."""

    default: Ownership = Ownership()
    by_controller: dict[str, Ownership] = {}  # by canonical name; each replaces `default`

    def for_controller(self, controller: str) -> Ownership:
        """Return the ownership of a controller, by its canonical name (`controllers.CLOUD_NODE`, ...)."""
        return self.by_controller.get(controller, self.default)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A mistake, a warning or a difference in a file."""

    line: int = 0  # 0 = the file as a whole
    path: str = ""  # such as transformations[2].labels["zone"]
    problem: str
    is_unknown_fact: bool = False  # a selector names a fact that no machine has; the reference accepts it

    def format(self, source: str) -> str:
        """Return it in one line; `source` is the file's name."""
        where = f"{source}, line {self.line}" if self.line else source
        return f"{where}: {self.path} {self.problem}" if self.path else f"{where}: {self.problem}"


class CloudConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the file."""

    cluster_name: str | None = None  # None = not in the file
    prefer_ipv6: bool | None = None
    external_ips: ExternalIPs = ExternalIPs()
    rules: tuple[Rule, ...] = ()
    pools: tuple[Pool, ...] = ()  # empty = the cluster's own CIDRs
    ownership: OwnershipConfig = OwnershipConfig()
    warnings: tuple[Finding, ...] = ()  # settings without effect, which the reference accepts silently
    differences: tuple[Finding, ...] = ()  # settings with an effect here, but not in the reference

    @property
    def values(self) -> dict[str, str | bool]:
        """Values for settings, by path such as "global.clusterName"; only those in the file."""
        values = {"global.clusterName": self.cluster_name, "global.preferIPv6": self.prefer_ipv6}
        return {path: value for path, value in values.items() if value is not None}
