"""Decides when spec.providerID is final: it is immutable, so the labeler writes no preliminary value."""

from datetime import timedelta
from typing import Final

from libs.common.contract.machine import MachineFacts, PlatformMetadata, why_metadata_incomplete
from libs.common.contract.node import Node
from libs.common.contract.platforms import PLATFORMS_THAT_IGNORE_CASE, PLATFORMS_WITH_PROVIDER_ID
from services.labeler.native_provider_id import build_provider_id, derive_native_provider_id

__all__ = [
    "SETTLING_PERIOD",
    "build_provider_id",
    "derive_native_provider_id",
    "describe_mismatch",
    "parse_scheme",
    "why_pending",
]

# Some platforms may give no providerID: nocloud without meta-data, or platforms unknown to this version.
# There, metadata that is still empty this long after the kubelet's registration counts as complete.
SETTLING_PERIOD: Final = timedelta(minutes=5)


def why_pending(node: Node, facts: MachineFacts, *, is_set_by_rule: bool = False) -> str:
    """Return why the providerID is not known yet; "" if the result of `build_provider_id` is final.

    Platforms with a native format never get the fallback, because it is immutable and the native controllers
    would not find their machine. `is_set_by_rule`: a rule gives it and reads no missing field.
    """
    reason = why_metadata_incomplete(facts.platform)
    platform = facts.platform.platform
    if not reason or not platform:
        return reason
    if is_set_by_rule:
        return ""
    if platform in PLATFORMS_WITH_PROVIDER_ID:
        return reason
    created = node.metadata.creation_timestamp
    return "" if created is not None and facts.queried_at - created >= SETTLING_PERIOD else reason


def parse_scheme(provider_id: str) -> str:
    """Return the scheme before "://", or ""."""
    scheme, separator, _ = provider_id.partition("://")
    return scheme if separator else ""


def describe_mismatch(node: Node, platform: PlatformMetadata, *, source: str = "the machine reports") -> str:
    """Describe how the Node's providerID differs from the one that `source` gives; "" if it does not."""
    existing, reported = node.spec.provider_id, derive_native_provider_id(platform)
    if not existing or not reported or existing == reported:
        return ""
    if platform.platform in PLATFORMS_THAT_IGNORE_CASE and existing.lower() == reported.lower():
        return ""
    return (
        f"providerID is {existing!r}, but {source} {reported!r}; Kubernetes cannot change it: "
        "controllers that look for the machine by it will not find it until the Node is deleted and its "
        "kubelet restarted"
    )
