"""What follows from an answer about the cluster's networks: which one stands, and what is said of it."""

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
    """What is known from now on. It was asked for after all that was known then, whatever the clocks say."""
    after_all = queried_at if known is None else max(queried_at, known.observed_at + _MIN_STEP)
    return ClusterNetworksObserved(
        stream_id=_NO_STREAM_ID,
        pod_cidrs=networks.pod_cidrs,
        service_cidrs=networks.service_cidrs,
        node_cidr_mask_size_ipv4=networks.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6=networks.node_cidr_mask_size_ipv6,
        observed_at=after_all,
    )


def select_later(
    known: ClusterNetworksObserved | None, stored: ClusterNetworksObserved | None
) -> ClusterNetworksObserved | None:
    """The one that was asked for later; what is known already, where neither was."""
    if known is None or stored is None:
        return known or stored
    return stored if stored.observed_at > known.observed_at else known


def build_publication(
    known: ClusterNetworksObserved | None, stream_id: str
) -> ClusterNetworksObserved | None:
    """That, to the present stream; None while nothing is known, or no stream is."""
    if known is None or not stream_id:
        return None
    return msgspec.structs.replace(known, stream_id=stream_id)


def has_same_networks(one: ClusterNetworksObserved, other: ClusterNetworksObserved) -> bool:
    """Whether they tell consumers the same: stream and time apart."""
    when_and_where = {"stream_id": other.stream_id, "observed_at": other.observed_at}
    return msgspec.structs.replace(one, **when_and_where) == other
