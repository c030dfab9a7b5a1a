"""spec.providerID: immutable once written, so only what will still be right tomorrow may be written."""

import re
from datetime import timedelta
from typing import Final

from libs.common.machine import NATIVE_PROVIDER_ID, MachineFacts, PlatformMetadata, metadata_incomplete
from libs.common.node import Node

OUR_SCHEME: Final = "talos"  # written to existing nodes, immutable: change it and they look unknown

# Where nobody promises a providerID (nocloud without meta-data, a platform newer than we are), metadata that
# stay empty for that long after the kubelet has registered are complete: nothing more will come.
SETTLED_AFTER: Final = timedelta(minutes=5)

_AZURE_GROUP: Final = re.compile(r"/subscriptions/[^/]+/resourcegroups/([^/]+)/providers/", re.IGNORECASE)


def why_not_yet(node: Node, facts: MachineFacts) -> str:
    """Why no providerID can be told yet, in words; "" when `provider_id_of` is final.

    Platforms that have a native format never get the fallback: it could not be taken back when the cloud
    answers, and the native controllers would not find their machine.
    """
    reason = metadata_incomplete(facts.platform)
    platform = facts.platform.platform
    if not reason or not platform or platform in NATIVE_PROVIDER_ID:
        return reason
    created = node.metadata.creation_timestamp
    return "" if created is not None and facts.looked_at - created >= SETTLED_AFTER else reason


def provider_id_of(platform: PlatformMetadata, node_ip: str) -> str:
    """What Talos reports, or `talos://<platform>/<node IP>` where there is no native one."""
    reported = reported_provider_id(platform)
    return reported or f"{OUR_SCHEME}://{platform.platform}/{node_ip}"


def reported_provider_id(platform: PlatformMetadata) -> str:
    """The machine's own providerID in the form that its native controllers write, "" if it has none."""
    if platform.platform != "azure":
        return platform.provider_id
    found = _AZURE_GROUP.search(platform.provider_id)
    if found is None:
        return platform.provider_id
    start, end = found.span(1)
    return platform.provider_id[:start] + found.group(1).lower() + platform.provider_id[end:]


def scheme_of(provider_id: str) -> str:
    """What stands before "://", "" when nothing does."""
    scheme, separator, _ = provider_id.partition("://")
    return scheme if separator else ""


def mismatch(node: Node, platform: PlatformMetadata) -> str:
    """How the Node's providerID contradicts what its machine reports, in words; "" when it does not."""
    existing, reported = node.spec.provider_id, reported_provider_id(platform)
    if not existing or not reported or existing == reported:
        return ""
    if platform.platform == "azure" and existing.lower() == reported.lower():
        return ""  # Azure's own controllers do not agree on the case of a resource ID
    return (
        f"providerID is {existing!r}, but the machine reports {reported!r}; Kubernetes cannot change it: "
        "controllers that look for the machine by it will not find it until the Node is deleted and its "
        "kubelet restarted"
    )
