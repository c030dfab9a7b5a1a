"""Which Nodes are ours to initialise: those of Talos machines, and of no other cloud controller manager."""

from libs.common.machine import PlatformMetadata, metadata_incomplete
from libs.common.node import Node
from services.labeler.provider_id import OUR_SCHEME, reported_provider_id, scheme_of


def why_not_ours(node: Node, platform: PlatformMetadata | None) -> str:
    """Why this Node is to be left alone, in words; "" when it is ours. `platform` None: nothing is known."""
    if node.metadata.deletion_timestamp is not None:
        return "the Node is being deleted"
    if not node.provided_node_ip:
        return (
            "it has no annotation alpha.kubernetes.io/provided-node-ip: its kubelet runs without "
            "--cloud-provider=external (Talos: cluster.externalCloudProvider.enabled) or without --node-ip"
        )
    return _why_foreign(node.spec.provider_id, platform)


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
    says = f"{reported!r}" if reported else "none"
    return f"its providerID {existing!r} belongs to another cloud controller manager (Talos reports {says})"
