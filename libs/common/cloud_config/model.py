"""What the file says, rules and pools, after everything that can be judged without a machine was judged."""

from typing import Literal

import msgspec

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Regexp"]
Kind = Literal["annotations", "labels", "taints", "platformMetadata"]


class RuleEntry(msgspec.Struct, frozen=True):
    """One key that a rule sets, and the template of its value.

    Under platformMetadata the key is the name of a field of `libs.common.contract.machine.PlatformMetadata`.
    """

    key: str
    template: str
    line: int


class NodeSelectorRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """One matchExpression; its values are such as the operator takes."""

    key: str  # in the spelling of `fields.canonical_key`
    operator: Operator
    values: tuple[str, ...] = ()
    line: int = 0


class NodeSelectorTerm(msgspec.Struct, frozen=True, kw_only=True):
    """Requirements that must all be met; none at all are never met."""

    requirements: tuple[NodeSelectorRequirement, ...] = ()
    line: int = 0


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One of the file's transformations."""

    name: str = ""
    index: int  # in the file's list, from 0
    line: int = 0
    selector: tuple[NodeSelectorTerm, ...] = ()  # any of them; none at all = every machine
    annotations: tuple[RuleEntry, ...] = ()
    labels: tuple[RuleEntry, ...] = ()
    taints: tuple[RuleEntry, ...] = ()
    platform_metadata: tuple[RuleEntry, ...] = ()
    public_ip_discovery: bool | None = None
    sanitize: bool = False  # ours: a label value that is none becomes the nearest one

    @property
    def title(self) -> str:
        """What messages call it: its name, or its place in the file."""
        return self.name or f"transformations[{self.index}]"

    def entries(self) -> tuple[tuple[Kind, RuleEntry], ...]:
        """All that it sets, in the order in which it is applied."""
        return (
            *(("annotations", entry) for entry in self.annotations),
            *(("labels", entry) for entry in self.labels),
            *(("taints", entry) for entry in self.taints),
            *(("platformMetadata", entry) for entry in self.platform_metadata),
        )


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One of `ipam.pools`: of each family, the first that is for a machine serves it.

    No two networks of a file overlap; each is written as `ipaddress` does, without host bits.
    """

    name: str
    index: int  # in the file's list, from 0
    line: int = 0
    selector: tuple[NodeSelectorTerm, ...] = ()  # any of them; none at all = every machine
    cidrs: tuple[str, ...] = ()  # of either family, in the file's order
    mask_size_ipv4: int | None = None  # prefix length of a node's block; None = the cluster's
    mask_size_ipv6: int | None = None


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """Which Nodes a controller looks after: those that the selector and the schemes both let through."""

    selector: tuple[
        NodeSelectorTerm, ...
    ] = ()  # of Node labels and `metadata.name`; none at all = every Node
    # Of providerIDs, such as "hcloud"; none at all = as each controller judges for itself. A Node without a
    # providerID counts by the one that it would be given.
    provider_id_schemes: tuple[str, ...] = ()

    @property
    def is_restricted(self) -> bool:
        """Whether there may be Nodes that are not the controller's."""
        return bool(self.selector or self.provider_id_schemes)


class OwnershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What `ownership` of the file says."""

    default: Ownership = Ownership()
    by_controller: dict[str, Ownership] = {}  # by their proper names; each stands instead of `of_all`

    def for_controller(self, controller: str) -> Ownership:
        """That controller's; `controller` is its proper name (`reference_flags.CLOUD_NODE`, ...)."""
        return self.by_controller.get(controller, self.default)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something about a file that its author should know."""

    line: int = 0  # 0 = the file as a whole
    path: str = ""  # such as transformations[2].labels["zone"]
    problem: str

    def format(self, source: str) -> str:
        """In one line; `source` is the file's name."""
        where = f"{source}, line {self.line}" if self.line else source
        return f"{where}: {self.path} {self.problem}" if self.path else f"{where}: {self.problem}"


class CloudConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    cluster_name: str | None = None  # None = the file does not say
    prefer_ipv6: bool | None = None
    rules: tuple[Rule, ...] = ()
    pools: tuple[Pool, ...] = ()  # none at all = the cluster's own CIDRs
    ownership: OwnershipConfig = OwnershipConfig()
    warnings: tuple[Finding, ...] = ()  # what the reference takes without a word and has no effect
    differences: tuple[Finding, ...] = ()  # what acts here and would not in the reference

    @property
    def values(self) -> dict[str, str | bool]:
        """What settings may ask for by path, such as "global.clusterName"; only what the file says."""
        said = {"global.clusterName": self.cluster_name, "global.preferIPv6": self.prefer_ipv6}
        return {path: value for path, value in said.items() if value is not None}
