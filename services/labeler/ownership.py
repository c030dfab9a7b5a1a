"""Which Nodes are ours to initialise: those of Talos machines, and of no other cloud controller manager."""

from typing import Final

from libs.common.cloud_config.rule import Ownership
from libs.common.machine import PlatformMetadata, metadata_incomplete
from libs.common.node import Node
from libs.common.platforms import NO_PROVIDER_ID, OUR_SCHEME
from services.labeler.owned import record_of
from services.labeler.provider_id import reported_provider_id, scheme_of

_NOT_SAID: Final = Ownership()
# providerID schemes that cloud controller managers write. On a machine whose platform has none of its own,
# any other scheme is what its kubelet was told (--provider-id=metal3://..., sidero://...): kept, and ours.
SCHEMES_OF_OTHERS: Final = frozenset(
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


def why_not_ours(node: Node, platform: PlatformMetadata | None, *, by_file: Ownership = _NOT_SAID) -> str:
    """Why this Node is to be left alone, in words; "" when it is ours. `platform` None: nothing is known.

    Where the file says schemes, `by_file`, they say whose providerID is whose, and nothing here does.
    """
    if node.metadata.deletion_timestamp is not None:
        return "the Node is being deleted"
    if not node.provided_node_ip:
        return (
            "it has no annotation alpha.kubernetes.io/provided-node-ip: its kubelet runs without "
            "--cloud-provider=external (Talos: cluster.externalCloudProvider.enabled) or without --node-ip"
        )
    foreign = _why_foreign(node.spec.provider_id, platform)
    if not foreign or by_file.provider_id_schemes:
        return ""
    record = record_of(node)
    if record.owned.provider_id == node.spec.provider_id:
        return ""  # a rule of ours has given it, whether there is still such a rule or not
    if platform is None and record.state == "read":
        return ""  # its machine has said so, or there were no record: silence does not take that back
    # Our label is there, so the Node was ours: whoever destroys the record does not make it another's.
    return "" if record.state == "unreadable" else foreign


def _why_foreign(existing: str, platform: PlatformMetadata | None) -> str:
    if not existing or scheme_of(existing) == OUR_SCHEME:
        return ""
    if platform is None:
        return f"its providerID {existing!r} is not one of ours, and no machine has said that it is its own"
    reported = reported_provider_id(platform)
    if scheme_of(existing) == scheme_of(reported) and reported:
        return ""
    if not reported and metadata_incomplete(platform):
        return ""  # a machine that has just booted: nothing is written before its cloud has answered
    scheme = scheme_of(existing)
    if platform.platform in NO_PROVIDER_ID and scheme and scheme not in SCHEMES_OF_OTHERS:
        return ""  # nobody but its kubelet can have said so
    says = f"{reported!r}" if reported else "none"
    return f"its providerID {existing!r} belongs to another cloud controller manager (Talos reports {says})"
