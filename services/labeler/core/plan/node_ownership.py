"""Decides which Nodes the labeler initializes: those of Talos machines without another cloud controller."""

import re
from typing import Final

import msgspec

from libs.common.bus.protocol import UnreadablePayload
from libs.common.cloud_config.file_keys import SCHEME
from libs.common.cloud_config.model import Ownership
from libs.common.cloud_config.ownership import NO_SCHEME, parse_scheme, why_not_owned, why_not_selected
from libs.common.contract.events import Event, NodeEnriched, NodeUnreachable
from libs.common.contract.machine import MachineFacts, PlatformMetadata, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.common.contract.platforms import NATIVE_SCHEMES, OUR_SCHEME, PLATFORMS_WITHOUT_PROVIDER_ID
from services.labeler.core.native_provider_id import derive_native_provider_id
from services.labeler.core.plan.ownership_record import read_ownership_record
from services.labeler.core.plan.plan import ClusterConfig
from services.labeler.core.plan.provider_id import find_provider_id_blocker
from services.labeler.core.rules import RuleEffects, apply_rules

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

IF_NO_OTHER_CONTROLLER: Final = (
    ". If no other controller manages the Node, set ownership.providerIDSchemes to the schemes of your Nodes"
)


class NotOurs(msgspec.Struct, frozen=True):
    """Why the labeler ignores a Node. It writes nothing at all to a Node that --cloud-config excludes."""

    reason: str
    is_excluded: bool = False


def check_ownership(
    node: Node, facts: MachineFacts | None, config: ClusterConfig, effects: RuleEffects | None = None
) -> NotOurs | None:
    """Return why the Node is not ours, by the facts that are known; None if it is.

    `effects` are those of the rules on the facts, if they have been applied.
    """
    if excluded := why_excluded(node, facts, config, effects):
        return NotOurs(excluded, is_excluded=True)
    if facts is None:
        foreign = why_not_managed(node, None, configured=config.ownership)
    else:
        foreign = why_not_managed_by_rules(node, facts, config, effects)
    return NotOurs(foreign) if foreign else None


def why_excluded(
    node: Node, facts: MachineFacts | None, config: ClusterConfig, effects: RuleEffects | None = None
) -> str:
    """Return why the ownership section of --cloud-config excludes this Node, or "".

    For a Node without a providerID, the future native one counts. While the labeler cannot derive it yet,
    configured schemes exclude the Node.
    """
    ownership = config.ownership
    if facts is None or node.spec.provider_id or not ownership.provider_id_schemes:
        return why_not_owned(ownership, node)
    effects = effects or apply_rules(config.rules, facts)
    if find_provider_id_blocker(node, facts, effects, config.rules):
        return why_not_owned(ownership, node)
    future = derive_native_provider_id(effects.platform)
    return why_not_owned(ownership, node, provider_id=future) if future else why_not_selected(ownership, node)


def why_not_managed_by_rules(
    node: Node, facts: MachineFacts, config: ClusterConfig, effects: RuleEffects | None = None
) -> str:
    """Return why the labeler ignores this Node, by the machine's facts and the rules, or "".

    A providerID that either the machine or the rules give is ours: rules change, a providerID does not.
    """
    effects = effects or apply_rules(config.rules, facts)
    foreign = why_not_managed(node, effects.platform, configured=config.ownership)
    if foreign and why_not_managed(node, facts.platform, configured=config.ownership):
        return foreign
    return ""


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


def is_managed(node: Node, enriched: Event | None, config: ClusterConfig) -> bool:
    """Return whether the labeler manages the Node, by the facts that are known now.

    This check runs once a second, so it does not derive the future providerID as a plan does.
    """
    facts = _known_facts(node, enriched)
    if (why_not_selected if facts else why_not_owned)(config.ownership, node):
        return False
    return not why_not_managed(node, facts.platform if facts else None, configured=config.ownership)


def may_be_excluded(node: Node, config: ClusterConfig) -> bool:
    """Return whether ownership may exclude the Node, judged without facts.

    The labeler writes nothing to such a Node when planning fails.
    """
    return bool(why_not_owned(config.ownership, node))


def is_excluded(node: Node, enriched: Event | UnreadablePayload | None, config: ClusterConfig) -> bool:
    """Return whether --cloud-config excludes the Node, by the facts that are known now."""
    return bool(why_excluded(node, _known_facts(node, enriched), config))


def _known_facts(node: Node, enriched: Event | UnreadablePayload | None) -> MachineFacts | None:
    match enriched:
        case NodeEnriched(node=of, facts=facts) if of.uid == node.uid:
            return facts
        case NodeUnreachable(node=of, last_known=facts) if of.uid == node.uid:
            return facts
        case _:
            return None


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
    own = (parse_scheme(reported) or NO_SCHEME) if reported else OUR_SCHEME
    can_be_listed = not scheme or re.fullmatch(SCHEME, scheme)
    example = f", such as [{own}, {scheme or NO_SCHEME}]" if can_be_listed else ""
    return (
        f"its providerID {existing!r} belongs to another cloud controller manager, or its kubelet has set it "
        f"(--provider-id); Talos reports {says}{IF_NO_OTHER_CONTROLLER}{example}"
    )
