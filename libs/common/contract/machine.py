"""What Talos says of one machine: facts, and why there are none."""

from typing import Final, Literal

import msgspec

from libs.common.contract.platforms import PLATFORMS_WITH_PROVIDER_ID, PLATFORMS_WITHOUT_PROVIDER_ID
from libs.common.contract.timestamp import Timestamp


class PlatformMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PlatformMetadatas.talos.dev; "" where Talos reports nothing."""

    platform: str = ""
    hostname: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    instance_id: str = ""
    provider_id: str = ""
    spot: bool = False
    internal_dns: str = ""
    external_dns: str = ""
    tags: dict[str, str] = {}


def why_metadata_incomplete(platform: PlatformMetadata) -> str:
    """Why more is to come from this machine's cloud, in words; "" when what it says is all there is.

    Talos >= 1.11.6 creates the resource with only `platform` filled in and replaces it once, when the cloud
    has answered; a fallback providerID written in between would be wrong for ever. On nocloud and on
    platforms unknown to us a providerID is the user's choice: there, all beyond `platform` means answered.
    """
    name = platform.platform
    if not name:
        return "Talos does not know its platform yet"
    if name in PLATFORMS_WITHOUT_PROVIDER_ID or platform.provider_id:
        return ""
    if name in PLATFORMS_WITH_PROVIDER_ID:
        return f"Talos has no providerID from platform {name} yet"
    if platform == PlatformMetadata(platform=name):
        return f"Talos has no metadata from platform {name} yet"
    return ""


class SystemInformation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SystemInformations.hardware.talos.dev (SMBIOS); absent as a whole in container mode."""

    manufacturer: str = ""
    product_name: str = ""
    version: str = ""
    serial_number: str = ""
    uuid: str = ""
    wake_up_type: str = ""
    sku_number: str = ""


class AddressStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One AddressStatuses.net.talos.dev; `address` is a prefix such as "10.0.0.5/24"."""

    address: str
    link: str
    scope: int = 0  # rtnetlink: 0 global, 200 site, 253 link, 254 host
    flags: int = 0  # IFA_F_*: 1 temporary, 128 permanent


class Processors(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Processors.hardware.talos.dev, all sockets together; manufacturer and model are the first one's."""

    manufacturer: str = ""
    model: str = ""  # product_name
    sockets: int = 0
    cores: int = 0  # enabled ones, where Talos says how many are
    threads: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a machine is, beyond what every look asks for: each part only if a rule or ipam needs it.

    None = not asked for. Asked for and not there (a container has no SMBIOS) is an empty value.
    """

    talos_version: str | None = None  # Versions.runtime.talos.dev, such as "v1.13.9"; "" before Talos 1.10
    machine_type: str | None = None  # MachineTypes.config.talos.dev: "controlplane" ("init" too) or "worker"
    extensions: dict[str, str] | None = None  # ExtensionStatuses: name -> version, "schematic" among them
    processors: Processors | None = None
    memory_mib: int | None = None  # MemoryModules.hardware.talos.dev, sum of sizes
    # RouteStatuses.net.talos.dev, sorted, where pod CIDRs are allocated; without link-local ones, which no
    # pod CIDR could hold.
    gateways: tuple[str, ...] | None = None


class ForeignNodeIP(msgspec.Struct, frozen=True, kw_only=True):
    """A provided node IP of a Node at which a machine answered that bears another node's name."""

    address: str
    node_name: str  # what the Talos of that machine says its kubelet registers as, never ""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that one look at a machine gave; `addresses` in Talos's own order (by id)."""

    platform: PlatformMetadata
    system: SystemInformation | None = None
    addresses: tuple[AddressStatus, ...] = ()
    node_name: str = ""  # Nodename: what Talos says its kubelet registers as; "" when not known yet
    cluster_name: str = ""  # of the talosconfig; with --cluster-name-fallbacks also of cluster Info
    queried_at: Timestamp = msgspec.field(name="looked_at")  # when the look began
    node_ip: str  # which of the provided node IPs answered
    inventory: Inventory | None = None  # None = nobody needs any of it
    # MachineStatus.runtime.talos.dev, such as "running" or "shutting down", where Nodes' lifecycle is looked
    # after; "" = not asked for, or not told.
    stage: str = ""
    # Of the provided node IPs that the machine does not list: where the machine itself answered when it was
    # dialled (address translation), and where another machine did. An address with no answer is in neither.
    answering_addresses: tuple[str, ...] = msgspec.field(default=(), name="answers_at")
    foreign_node_ips: tuple[ForeignNodeIP, ...] = msgspec.field(default=(), name="foreign_answers")

    @property
    def gateways(self) -> tuple[str, ...]:
        """Of its routes, where they were asked for and told; `inventory.gateways` says whether they were."""
        return (self.inventory.gateways or ()) if self.inventory is not None else ()


class ForeignMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who answers at an address of a Node, and is attested by Talos to bear another node's name."""

    address: str  # that was dialled
    node_name: str  # what its Talos says its kubelet registers as, never ""
    uuid: str = ""  # of its SMBIOS, as it says it; "" where it has none
    queried_at: Timestamp = msgspec.field(name="looked_at")  # when the look began


FaultKind = Literal[
    "not_found",  # the resource does not exist (yet) on a machine that answers
    "refused",  # nobody listens, or the control plane could not dial the machine
    "timeout",
    "certificate",  # ours was not accepted, or theirs is not trusted
    "permission",  # our role may not read that resource
    "wrong_machine",  # another machine answers at that address
    "invalid",  # bytes or values that no Talos would send
    "no_endpoint",  # no Talos endpoint or no credentials to ask with
    "bad_node_ip",  # provided-node-ip is not an address that we dial
    "internal",  # Talos answered with an error of its own
]


CONNECT_STEP: Final = "connect"  # the connection to a Talos endpoint: without it, no machine is queried


class MachineFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a machine gave no facts, in words that an operator can act on."""

    kind: FaultKind
    step: str  # what was being asked: "PlatformMetadata", "connect", ...
    endpoint: str = ""  # which Talos endpoint was asked, and for which machine
    message: str


def is_access_fault(fault: MachineFault, *, has_facts: bool) -> bool:
    """Whether our access to Talos failed, so that the fault proves nothing about the machine.

    `has_facts`: whether a machine has given facts before. PERMISSION_DENIED comes from the queried machine,
    so one machine could return it for ever. It is about our role only while no machine gives facts.
    """
    if fault.kind == "no_endpoint" or fault.step == CONNECT_STEP:
        return True
    return fault.kind == "permission" and not has_facts
