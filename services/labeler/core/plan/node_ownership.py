"""Decides which Nodes the labeler initializes: those of Talos machines without another cloud controller."""

import re
from typing import Final

from libs.common.bus.protocol import UnreadablePayload
from libs.common.cloud_config.file_keys import SCHEME
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import NO_SCHEME, why_not_owned, why_not_selected
from libs.common.contract.events import Event, NodeEnriched, NodeUnreachable
from libs.common.contract.instances import derive_native_provider_id
from libs.common.contract.machine import MachineFacts, PlatformMetadata, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.common.contract.platforms import (
    NATIVE_SCHEMES,
    OUR_SCHEME,
    PLATFORMS_WITHOUT_PROVIDER_ID,
    parse_scheme,
)
from services.labeler.core.blocker import Notice
from services.labeler.core.plan.ownership_record import read_ownership_record
from services.labeler.core.plan.plan import ClusterConfig, NotOurs
from services.labeler.core.plan.provider_id import find_native_provider_id
from services.labeler.core.rules.application import apply_rules
from services.labeler.core.rules.effects import RuleEffects

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

_NO_NODE_IP: Final = (
    "it has no annotation alpha.kubernetes.io/provided-node-ip: its kubelet runs without "
    "--cloud-provider=external (Talos: cluster.externalCloudProvider.enabled) or without --node-ip"
)
IF_NO_OTHER_CONTROLLER: Final = (
    ". If no other controller manages the Node, set ownership.providerIDSchemes to the schemes of your Nodes"
)


def check_ownership(
    node: Node, facts: MachineFacts | None, config: ClusterConfig, effects: RuleEffects | None = None
) -> NotOurs | None:
    """Return why the Node is not ours, by the facts that are known; None if it is.

    `effects` are those of the rules on the facts, if they have been applied. A providerID that either the
    machine or the rules give is ours: rules change, a providerID does not.
    """
    if excluded := find_exclusion(node, facts, config, effects):
        return excluded
    if facts is None:
        return find_foreign(node, None, config.ownership)
    effects = effects or apply_rules(config.rules, facts)
    foreign = find_foreign(node, effects.platform, config.ownership)
    return foreign if foreign and find_foreign(node, facts.platform, config.ownership) else None


def find_exclusion(
    node: Node, facts: MachineFacts | None, config: ClusterConfig, effects: RuleEffects | None = None
) -> NotOurs | None:
    """Return why the ownership section of --cloud-config excludes this Node; None if it does not.

    For a Node without a providerID, the future native one counts. While the labeler cannot derive it yet,
    configured schemes exclude the Node.
    """
    ownership = config.ownership
    if not ownership.is_restricted:
        return None
    reason = why_not_owned(ownership, node)
    if facts is not None and not node.spec.provider_id and ownership.provider_id_schemes:
        effects = effects or apply_rules(config.rules, facts)
        future = find_native_provider_id(node, facts, effects, config.rules)
        if future == "":
            reason = why_not_selected(ownership, node)
        elif isinstance(future, str):
            reason = why_not_owned(ownership, node, provider_id=future)
    return NotOurs(reason, is_excluded=True) if reason else None


def is_excluded(node: Node, enriched: Event | UnreadablePayload | None, config: ClusterConfig) -> bool:
    """Return whether --cloud-config excludes the Node, by the facts that are known now."""
    return find_exclusion(node, _known_facts(node, enriched), config) is not None


def find_foreign(
    node: Node, platform: PlatformMetadata | None, configured: Ownership = _NOT_CONFIGURED
) -> NotOurs | None:
    """Return why the labeler ignores this Node; None if it does not.

    `platform` None: the machine gave no facts. `configured` is the ownership section of --cloud-config. If it
    names providerID schemes, `find_exclusion` has checked the providerID, and this function does not check it
    again.
    """
    if node.metadata.deletion_timestamp is not None:
        return NotOurs("the Node is being deleted")
    if not node.provided_node_ip:
        return NotOurs(_NO_NODE_IP, notice=Notice(reason="ProvidedNodeIPMissing", message=_NO_NODE_IP))
    foreign = _find_foreign_scheme(node.spec.provider_id, platform)
    if foreign is None or configured.provider_id_schemes:
        return None
    record = read_ownership_record(node)
    if record.managed_fields.provider_id == node.spec.provider_id:
        return None  # a rule or an account set it; this holds even if that is gone
    if platform is None and record.state == "read":
        return (
            None  # the record proves that the machine reported it earlier; missing facts do not change that
        )
    # The label of the digest is there, so the Node was ours; destroying the record does not change that.
    return None if record.state == "unreadable" else foreign


def _known_facts(node: Node, enriched: Event | UnreadablePayload | None) -> MachineFacts | None:
    match enriched:
        case NodeEnriched(node=of, facts=facts) if of.uid == node.uid:
            return facts
        case NodeUnreachable(node=of, last_known=facts) if of.uid == node.uid:
            return facts
        case _:
            return None


def _find_foreign_scheme(existing: str, platform: PlatformMetadata | None) -> NotOurs | None:
    scheme = parse_scheme(existing)
    if not existing or scheme == OUR_SCHEME:
        return None
    if platform is None:
        text = f"its providerID {existing!r} is not one of ours, and no machine has said that it is its own"
        return NotOurs(text)
    reported = derive_native_provider_id(platform)
    if reported and scheme == parse_scheme(reported):
        return None
    if not reported and why_metadata_incomplete(platform):
        return None  # the machine has just booted; a blocker prevents writes until its metadata is complete
    if platform.platform in PLATFORMS_WITHOUT_PROVIDER_ID and scheme and scheme not in FOREIGN_SCHEMES:
        return None  # only the kubelet can have set it
    says = f"{reported!r}" if reported else "none"
    own = (parse_scheme(reported) or NO_SCHEME) if reported else OUR_SCHEME
    can_be_listed = not scheme or re.fullmatch(SCHEME, scheme)
    example = f", such as [{own}, {scheme or NO_SCHEME}]" if can_be_listed else ""
    text = (
        f"its providerID {existing!r} belongs to another cloud controller manager, or its kubelet has set it "
        f"(--provider-id); Talos reports {says}{IF_NO_OTHER_CONTROLLER}{example}"
    )
    return NotOurs(text, notice=Notice(reason="ProviderIDOfAnother", message=f"not managed: {text}"))
