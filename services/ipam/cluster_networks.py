"""Which networks pods and services have: what the flags say, and else what a control plane says."""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.events import ClusterNetworksObserved
from services.ipam.networks import Family, read_network, why_no_blocks
from services.ipam.outcomes import Unserved, Wait
from services.ipam.pages import PAGE_LENGTHS
from services.ipam.pools import PodNetworks, cluster_cidrs_mistake
from services.ipam.spans import readable

_DEFAULT_IPV4: Final = 24
_DEFAULT_IPV6: Final = 80  # the reference's; kube-controller-manager has 64
_BITS: Final[dict[Family, int]] = {4: 32, 6: 128}
_UNKNOWN: Final = (
    "the cluster's {} networks are not known yet: no control plane has told them to metadata, and --{} is "
    "not given"
)


class SaidNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags say; empty or 0 = nothing."""

    cluster_cidrs: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    mask_size: int = 0
    mask_size_ipv4: int = 0
    mask_size_ipv6: int = 0


class ClusterNetworks(msgspec.Struct, frozen=True, kw_only=True):
    """Where pods may be, and where they must not."""

    pods: PodNetworks
    services: tuple[str, ...]


def cluster_networks(
    said: SaidNetworks, observed: ClusterNetworksObserved | None
) -> ClusterNetworks | Wait | Unserved:
    """The flags go before; service networks of either are spared. `observed` = None: nobody has told."""
    if observed is None and not said.service_cidrs:
        return Wait(_UNKNOWN.format("service", "service-cluster-ip-range"))
    if observed is None and not said.cluster_cidrs:
        return Wait(_UNKNOWN.format("pod", "cluster-cidr"))
    cidrs = said.cluster_cidrs or (observed.pod_cidrs if observed else ())
    services = (*said.service_cidrs, *(observed.service_cidrs if observed else ()))
    unreadable = _unreadable(services)
    if unreadable:  # spared by nobody, if it were passed over
        return Unserved(f"the cluster's service networks cannot be used: {unreadable}")
    why = masks_mistake(said, cidrs)
    if why:
        return Unserved(why)
    families = {network.family for network in map(readable, cidrs) if network is not None}
    of_one = {family: said.mask_size if family in families else 0 for family in _BITS}
    ipv4 = (
        said.mask_size_ipv4 or of_one[4] or (observed and observed.node_cidr_mask_size_ipv4) or _DEFAULT_IPV4
    )
    ipv6 = (
        said.mask_size_ipv6 or of_one[6] or (observed and observed.node_cidr_mask_size_ipv6) or _DEFAULT_IPV6
    )
    for why in (_mask_mistake(4, ipv4), _mask_mistake(6, ipv6)):
        if why:
            return Unserved(why)
    return ClusterNetworks(
        pods=PodNetworks(cidrs=cidrs, mask_size_ipv4=ipv4, mask_size_ipv6=ipv6), services=services
    )


def _mask_mistake(family: Family, mask: int) -> str:
    least, most = PAGE_LENGTHS[family], _BITS[family]
    if least <= mask <= most:
        return ""
    return f"/{mask} is no prefix length of a Node's IPv{family} block: it is of {least} to {most} bits"


def _of_no_family(mask: int) -> str:
    lengths = (f"{PAGE_LENGTHS[family]} to {_BITS[family]} bits (IPv{family})" for family in _BITS)
    return f"/{mask} is no prefix length of a Node's block: it is of {' or '.join(lengths)}"


def said_mistakes(said: SaidNetworks) -> tuple[str, ...]:
    """What is wrong with the flags whatever a control plane says, a sentence each."""
    found = []
    for name, cidrs in (
        ("cluster-cidr", said.cluster_cidrs),
        ("service-cluster-ip-range", said.service_cidrs),
    ):
        why = cluster_cidrs_mistake(cidrs) if cidrs and name == "cluster-cidr" else _unreadable(cidrs)
        if why:
            found.append(f"--{name}: {why}")
    for name, mistake in (
        ("ipv4", said.mask_size_ipv4 and _mask_mistake(4, said.mask_size_ipv4)),
        ("ipv6", said.mask_size_ipv6 and _mask_mistake(6, said.mask_size_ipv6)),
    ):
        if mistake:
            found.append(f"--node-cidr-mask-size-{name}: {mistake}")
    if said.mask_size and all(_mask_mistake(family, said.mask_size) for family in _BITS):
        found.append(f"--node-cidr-mask-size: {_of_no_family(said.mask_size)}")
    if not found:
        why = masks_mistake(said, said.cluster_cidrs) or _no_blocks(said)
        found += [why] if why else []
    return tuple(found)


def masks_mistake(said: SaidNetworks, cidrs: Sequence[str]) -> str:
    """Why the mask flags cannot be obeyed with these pod networks: the reference's rules; "" if they can."""
    families = {network.family for network in map(readable, cidrs) if network is not None}
    if len(cidrs) > 1:
        alone = "--node-cidr-mask-size cannot be used with dual-stack networks: say -ipv4 and -ipv6"
        return alone if said.mask_size else ""
    if said.mask_size and (said.mask_size_ipv4 or said.mask_size_ipv6):
        return "--node-cidr-mask-size cannot be used together with --node-cidr-mask-size-ipv4 and -ipv6"
    if said.mask_size_ipv4 and families == {6}:
        return "--node-cidr-mask-size-ipv4 cannot be used with a single-stack IPv6 network"
    if said.mask_size_ipv6 and families == {4}:
        return "--node-cidr-mask-size-ipv6 cannot be used with a single-stack IPv4 network"
    return ""


def _no_blocks(said: SaidNetworks) -> str:
    for network in map(read_network, said.cluster_cidrs):
        own = said.mask_size_ipv4 if network.family == 4 else said.mask_size_ipv6
        mask = own or said.mask_size
        if not mask:
            continue
        why = why_no_blocks(network, mask) or _mask_mistake(network.family, mask)
        if why:
            return f"--cluster-cidr: {why}"
    return ""


def _unreadable(cidrs: Sequence[str]) -> str:
    for cidr in cidrs:
        try:
            read_network(cidr)
        except ValueError as error:
            return str(error)
    return ""
