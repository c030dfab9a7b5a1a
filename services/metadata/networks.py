"""What follows from an answer about the cluster's networks: which one stands, and what is said of it."""

from datetime import datetime, timedelta
from typing import Final

import msgspec

from libs.common.events import ClusterNetworksObserved
from services.metadata.talos_api.machine_reading import ClusterNetworks

_LEAST: Final = timedelta(microseconds=1)
_OF_NO_STREAM: Final = ""


def observed(
    networks: ClusterNetworks, *, asked_at: datetime, known: ClusterNetworksObserved | None
) -> ClusterNetworksObserved:
    """What is known from now on. It was asked for after all that was known then, whatever the clocks say."""
    after_all = asked_at if known is None else max(asked_at, known.observed_at + _LEAST)
    return ClusterNetworksObserved(
        incarnation=_OF_NO_STREAM,
        pod_cidrs=networks.pod_cidrs,
        service_cidrs=networks.service_cidrs,
        node_cidr_mask_size_ipv4=networks.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6=networks.node_cidr_mask_size_ipv6,
        observed_at=after_all,
    )


def later(
    known: ClusterNetworksObserved | None, heard: ClusterNetworksObserved | None
) -> ClusterNetworksObserved | None:
    """The one that was asked for later; what is known already, where neither was."""
    if known is None or heard is None:
        return known or heard
    return heard if heard.observed_at > known.observed_at else known


def to_say(known: ClusterNetworksObserved | None, incarnation: str) -> ClusterNetworksObserved | None:
    """That, to the present stream; None while nothing is known, or no stream is."""
    if known is None or not incarnation:
        return None
    return msgspec.structs.replace(known, incarnation=incarnation)


def same_networks(one: ClusterNetworksObserved, other: ClusterNetworksObserved) -> bool:
    """Whether they tell consumers the same: stream and time apart."""
    when_and_where = {"incarnation": other.incarnation, "observed_at": other.observed_at}
    return msgspec.structs.replace(one, **when_and_where) == other
