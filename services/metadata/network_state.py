"""Selects the current networks of the cluster and builds the event about them."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.contract.events import ClusterNetworksObserved
from libs.talos.machine_reading import MachineConfigNetworks

_MIN_STEP: Final = timedelta(microseconds=1)
_NO_STREAM_ID: Final = ""


def build_observed(
    networks: MachineConfigNetworks, *, queried_at: datetime, known: ClusterNetworksObserved | None
) -> ClusterNetworksObserved:
    """Return the event for a new response. It is always later than `known`, even if the clock went back."""
    observed_at = queried_at if known is None else max(queried_at, known.observed_at + _MIN_STEP)
    return ClusterNetworksObserved(
        stream_id=_NO_STREAM_ID,
        pod_cidrs=networks.pod_cidrs,
        service_cidrs=networks.service_cidrs,
        node_cidr_mask_size_ipv4=networks.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6=networks.node_cidr_mask_size_ipv6,
        observed_at=observed_at,
    )


def select_later(
    known: ClusterNetworksObserved | None, stored: ClusterNetworksObserved | None
) -> ClusterNetworksObserved | None:
    """Return the event that was queried later; `known` if both are from the same time."""
    if known is None or stored is None:
        return known or stored
    return stored if stored.observed_at > known.observed_at else known


def build_publication(
    known: ClusterNetworksObserved | None, stream_id: str
) -> ClusterNetworksObserved | None:
    """Return the event for the present stream; None without networks or without a stream."""
    if known is None or not stream_id:
        return None
    return msgspec.structs.replace(known, stream_id=stream_id)


def has_same_networks(one: ClusterNetworksObserved, other: ClusterNetworksObserved) -> bool:
    """Return whether two events mean the same to consumers, apart from stream and time."""
    when_and_where = {"stream_id": other.stream_id, "observed_at": other.observed_at}
    return msgspec.structs.replace(one, **when_and_where) == other
