"""Decides which Nodes the labeler initializes: those of Talos machines without another cloud controller."""

from typing import Final

from libs.common.cloud_config.model import Ownership
from libs.common.contract.machine import PlatformMetadata, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.common.contract.platforms import NATIVE_SCHEMES, OUR_SCHEME, PLATFORMS_WITHOUT_PROVIDER_ID
from services.labeler.ownership_record import read_ownership_record
from services.labeler.provider_id import derive_native_provider_id, parse_scheme

_NOT_CONFIGURED: Final = Ownership()
# providerID schemes that cloud controller managers write. On a platform without a native format, any other
# scheme comes from the kubelet's --provider-id (metal3://..., sidero://...): the Node is ours and keeps it.
FOREIGN_SCHEMES: Final = NATIVE_SCHEMES | frozenset(
    {
        "alicloud",
        "baremetal",
        "brightbox",
        "civo",
        "external-cloudstack",
        "harvester",
        "hrobot",
        "huaweicloud",
        "ibm",
        "k3s",
        "kind",
        "kubevirt",
        "nutanix",
        "ovirt",
        "proxmox",
        "rke2",
        "tencentcloud",
        "vsphere",
        "yandex",
    }
)


def why_not_managed(
    node: Node, platform: PlatformMetadata | None, *, configured: Ownership = _NOT_CONFIGURED
) -> str:
    """Return why the labeler ignores this Node, or "". `platform` None: the machine gave no facts.

    `configured` is the ownership section of --cloud-config. If it names providerID schemes, `why_excluded`
    has checked the providerID, and this function does not check it again.
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
        return ""  # a rule set it; this holds even if the rule is gone
    if platform is None and record.state == "read":
        return ""  # the record proves that the machine reported it earlier; missing facts do not change that
    # The label of the digest is there, so the Node was ours; destroying the record does not change that.
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
        return ""  # the machine has just booted; a blocker prevents writes until its metadata is complete
    scheme = parse_scheme(existing)
    if platform.platform in PLATFORMS_WITHOUT_PROVIDER_ID and scheme and scheme not in FOREIGN_SCHEMES:
        return ""  # only the kubelet can have set it
    says = f"{reported!r}" if reported else "none"
    return f"its providerID {existing!r} belongs to another cloud controller manager (Talos reports {says})"
