"""Which Nodes are ours to initialise: those of Talos machines, and of no other cloud controller manager."""

from typing import Final

from libs.common.cloud_config.model import Ownership
from libs.common.contract.machine import PlatformMetadata, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.common.contract.platforms import OUR_SCHEME, PLATFORMS_WITHOUT_PROVIDER_ID
from services.labeler.ownership_record import read_ownership_record
from services.labeler.provider_id import derive_native_provider_id, parse_scheme

_NOT_CONFIGURED: Final = Ownership()
# providerID schemes that cloud controller managers write. On a machine whose platform has none of its own,
# any other scheme is what its kubelet was told (--provider-id=metal3://..., sidero://...): kept, and ours.
FOREIGN_SCHEMES: Final = frozenset(
    {
        "alicloud",
        "aws",
        "azure",
        "baremetal",
        "brightbox",
        "civo",
        "cloudstack",
        "digitalocean",
        "equinixmetal",
        "exoscale",
        "external-cloudstack",
        "gce",
        "harvester",
        "hcloud",
        "hrobot",
        "huaweicloud",
        "ibm",
        "k3s",
        "kind",
        "kubevirt",
        "linode",
        "nutanix",
        "oci",
        "openstack",
        "ovirt",
        "proxmox",
        "rke2",
        "scaleway",
        "tencentcloud",
        "upcloud",
        "vsphere",
        "vultr",
        "yandex",
    }
)


def why_not_managed(
    node: Node, platform: PlatformMetadata | None, *, configured: Ownership = _NOT_CONFIGURED
) -> str:
    """Why this Node is to be left alone, in words; "" when it is ours. `platform` None: nothing is known.

    Where the file says schemes, `configured`, they say whose providerID is whose, and nothing here does.
    """
    if node.metadata.deletion_timestamp is not None:
        return "the Node is being deleted"
    if not node.provided_node_ip:
        return (
            "it has no annotation alpha.kubernetes.io/provided-node-ip: its kubelet runs without "
            "--cloud-provider=external (Talos: cluster.externalCloudProvider.enabled) or without --node-ip"
        )
    foreign = _why_foreign_scheme(node.spec.provider_id, platform)
    if not foreign or configured.provider_id_schemes:
        return ""
    record = read_ownership_record(node)
    if record.managed_fields.provider_id == node.spec.provider_id:
        return ""  # a rule of ours has given it, whether there is still such a rule or not
    if platform is None and record.state == "read":
        return ""  # its machine has said so, or there were no record: silence does not take that back
    # Our label is there, so the Node was ours: whoever destroys the record does not make it another's.
    return "" if record.state == "unreadable" else foreign


def _why_foreign_scheme(existing: str, platform: PlatformMetadata | None) -> str:
    if not existing or parse_scheme(existing) == OUR_SCHEME:
        return ""
    if platform is None:
        return f"its providerID {existing!r} is not one of ours, and no machine has said that it is its own"
    reported = derive_native_provider_id(platform)
    if parse_scheme(existing) == parse_scheme(reported) and reported:
        return ""
    if not reported and why_metadata_incomplete(platform):
        return ""  # a machine that has just booted: nothing is written before its cloud has answered
    scheme = parse_scheme(existing)
    if platform.platform in PLATFORMS_WITHOUT_PROVIDER_ID and scheme and scheme not in FOREIGN_SCHEMES:
        return ""  # nobody but its kubelet can have said so
    says = f"{reported!r}" if reported else "none"
    return f"its providerID {existing!r} belongs to another cloud controller manager (Talos reports {says})"
