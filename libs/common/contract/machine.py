"""The facts that Talos returns about one machine, or the fault if it returns none."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from libs.common.contract.platforms import PLATFORMS_WITH_PROVIDER_ID, PLATFORMS_WITHOUT_PROVIDER_ID
from libs.common.contract.timestamp import Timestamp

# Some platforms may give no providerID: nocloud without meta-data, or platforms unknown to this version.
# There, metadata that is still empty this long after the kubelet's registration counts as complete.
SETTLING_PERIOD: Final = timedelta(minutes=5)


class PlatformMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """PlatformMetadatas.talos.dev; "" for fields that Talos does not report."""

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
    tags: Mapping[str, str] = {}


def why_metadata_incomplete(platform: PlatformMetadata) -> str:
    """Return why the metadata of this machine's cloud is incomplete, "" if it is complete.

    Talos >= 1.11.6 first creates the resource with only `platform`. It replaces the resource once, after the
    cloud has answered. A fallback providerID written before that would stay wrong permanently. On nocloud and
    on unknown platforms the providerID is optional. There, any field beside `platform` shows that the cloud
    has answered.
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
    """SystemInformations.hardware.talos.dev (SMBIOS); the resource does not exist in container mode."""

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
    """Processors.hardware.talos.dev, summed over all sockets; manufacturer and model of the first socket."""

    manufacturer: str = ""
    model: str = ""  # product_name
    sockets: int = 0
    cores: int = 0  # the enabled ones, if Talos reports their number
    threads: int = 0


class Inventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that metadata queries only if a rule or ipam needs them.

    None = not queried. An empty value = queried, but it does not exist (a container has no SMBIOS).
    """

    talos_version: str | None = None  # Versions.runtime.talos.dev, such as "v1.13.9"; "" before Talos 1.10
    machine_type: str | None = None  # MachineTypes.config.talos.dev: "controlplane" ("init" too) or "worker"
    extensions: Mapping[str, str] | None = None  # ExtensionStatuses: name -> version, "schematic" among them
    processors: Processors | None = None
    memory_mib: int | None = None  # MemoryModules.hardware.talos.dev, sum of sizes
    # Gateways of RouteStatuses.net.talos.dev, sorted; queried if ipam allocates pod CIDRs. Link-local ones
    # are left out: no pod CIDR can contain them.
    gateways: tuple[str, ...] | None = None


class ForeignNodeIP(msgspec.Struct, frozen=True, kw_only=True):
    """A provided node IP of a Node at which a machine with another node name answered."""

    address: str
    node_name: str  # the name under which its kubelet registers, according to its Talos; never ""


class Supplement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cloud account adds to the facts, where Talos does not know the cloud of its machine."""

    account: str = ""  # "" = none has added anything yet
    fields: tuple[str, ...] = ()  # of PlatformMetadata
    labels: Mapping[str, str] = {}
    why_awaited: str = ""  # why the metadata of the machine's instance is missing, now or yet


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one successful query of a machine; `addresses` in the order of Talos (by id)."""

    platform: PlatformMetadata
    # None = not queried: no rule names a field of it, and the Nodename identifies the machine. Empty in
    # container mode.
    system: SystemInformation | None = None
    addresses: tuple[AddressStatus, ...] = ()
    node_name: str = ""  # Nodename: the name under which its kubelet registers; "" if not known yet
    cluster_name: str = ""  # from the talosconfig; with --cluster-name-fallbacks also from cluster Info
    queried_at: Timestamp  # start of the query
    node_ip: str  # the provided node IP that answered
    inventory: Inventory | None = None  # None = no rule and no service needs any of it
    # MachineStatus.runtime.talos.dev, such as "running" or "shutting down"; queried if lifecycle runs. "" =
    # not queried, or not reported.
    stage: str = ""
    # Provided node IPs that the machine does not list. `answering_addresses`: the machine itself answered
    # there (address translation). `foreign_node_ips`: another machine did. Addresses without an answer are in
    # neither.
    answering_addresses: tuple[str, ...] = ()
    foreign_node_ips: tuple[ForeignNodeIP, ...] = ()
    supplement: Supplement | None = None  # of the labeler; no service publishes it

    @property
    def gateways(self) -> tuple[str, ...]:
        """The gateways of its routes; empty if not queried (then `inventory.gateways` is None)."""
        return (self.inventory.gateways or ()) if self.inventory is not None else ()


def has_same_facts(one: MachineFacts | None, other: MachineFacts | None) -> bool:
    """Return whether two queries returned the same facts, at whatever times; None without a result."""
    if one is None or other is None:
        return one is other
    return one is other or msgspec.structs.replace(one, queried_at=other.queried_at) == other


def may_stay_incomplete(facts: MachineFacts, node_created_at: datetime | None) -> bool:
    """Return whether incomplete metadata of this machine counts as complete: it was queried late enough.

    Platforms with a native format never get a fallback providerID, because it is immutable and the native
    controllers would not find their machine.
    """
    if facts.platform.platform in PLATFORMS_WITH_PROVIDER_ID:
        return False
    return node_created_at is not None and facts.queried_at - node_created_at >= SETTLING_PERIOD


class ForeignMachine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A machine that answers at an address of a Node, but has another node name according to its Talos."""

    address: str  # the dialed address
    node_name: str  # the name under which its kubelet registers, according to its Talos; never ""
    uuid: str = ""  # the unparsed UUID of its SMBIOS; "" if it has none
    queried_at: Timestamp  # start of the query


FaultKind = Literal[
    "not_found",  # the resource does not exist (yet) on a machine that answers
    "refused",  # connection refused, or the control plane could not dial the machine
    "timeout",
    "certificate",  # Talos rejected the client certificate, or its server certificate is not trusted
    "permission",  # the role of the client certificate may not read that resource
    "wrong_machine",  # another machine answers at that address
    "invalid",  # bytes or values that Talos never sends
    "no_endpoint",  # no Talos endpoint, or no credentials
    "bad_node_ip",  # provided-node-ip is not an address that metadata dials
    "internal",  # Talos answered with an error of its own
]


class FaultKindSpec(msgspec.Struct, frozen=True):
    """The properties of one kind of fault."""

    block_reason: str  # of the labeler's Node condition, which it rewrites only if the reason changes
    text: str  # key in FAULT_TEXTS
    is_unreachable: bool = False  # no machine was reached, possibly for a cause common to many machines
    is_silent: bool = False  # nothing answered: neither an answer nor a fault on the client's side
    depends_on_client: bool = False  # another certificate, role or endpoint may avoid it


FAULT_KINDS: Final[Mapping[FaultKind, FaultKindSpec]] = {
    "not_found": FaultKindSpec("TalosResourceMissing", "talos-starting"),
    "refused": FaultKindSpec("TalosUnreachable", "talos-silent", is_unreachable=True, is_silent=True),
    "timeout": FaultKindSpec("TalosTimeout", "talos-silent", is_unreachable=True, is_silent=True),
    "certificate": FaultKindSpec(
        "TalosCertificateRejected", "talos-certificate", is_unreachable=True, depends_on_client=True
    ),
    "permission": FaultKindSpec("TalosPermissionDenied", "talos-permission", depends_on_client=True),
    "wrong_machine": FaultKindSpec("WrongMachineAnswers", "another-machine"),
    "invalid": FaultKindSpec("TalosAnswerInvalid", "talos-error"),
    "no_endpoint": FaultKindSpec(
        "NoTalosEndpoint", "no-talos-endpoint", is_unreachable=True, depends_on_client=True
    ),
    "bad_node_ip": FaultKindSpec("ProvidedNodeIPInvalid", "bad-node-ip"),
    "internal": FaultKindSpec("TalosInternalError", "talos-error"),
}

CONNECT_STEP: Final = "connect"  # the connection to a Talos endpoint: without it, no machine is queried


class MachineFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reason why a machine returned no facts, in words on which an operator can act."""

    kind: FaultKind
    step: str  # the failed step of the query: "PlatformMetadata", "connect", ...
    endpoint: str = ""  # the queried Talos endpoint and the machine
    message: str


def is_access_fault(fault: MachineFault, *, has_facts: bool) -> bool:
    """Return whether the access to Talos failed, so that the fault proves nothing about the machine.

    `has_facts`: whether any machine has returned facts before. PERMISSION_DENIED comes from the queried
    machine, so one machine could always return it. It proves a wrong role only while no machine returns
    facts.
    """
    if fault.kind == "no_endpoint" or fault.step == CONNECT_STEP:
        return True
    return fault.kind == "permission" and not has_facts
