"""Resolves the pod and service networks from the flags, or from a control plane's machine config."""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.contract.events import SERVICE_CIDRS_UNKNOWN, ClusterNetworksObserved
from libs.common.contract.networks import Family, explain_no_blocks, parse_foreign_network, parse_network
from services.ipam.core.pages import PAGE_LENGTHS
from services.ipam.core.pools import CannotAllocate, EffectiveNetworks, NotReady, validate_cluster_cidrs

_DEFAULT_IPV4: Final = 24
_DEFAULT_IPV6: Final = 80  # as the reference controller; kube-controller-manager uses 64
_BITS: Final[dict[Family, int]] = {4: 32, 6: 128}
_NETWORKS_UNKNOWN: Final = (
    "the cluster's {} networks are not known yet: no control plane has reported them to metadata, and --{} "
    "is not given"
)


class NetworkFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags; empty or 0 means not given."""

    cluster_cidrs: tuple[str, ...] = ()
    service_cidrs: tuple[str, ...] = ()
    mask_size: int = 0
    mask_size_ipv4: int = 0
    mask_size_ipv6: int = 0


def resolve_networks(
    flags: NetworkFlags, observed: ClusterNetworksObserved | None, added: Sequence[str] | None
) -> EffectiveNetworks | NotReady | CannotAllocate:
    """Resolve the networks; flags override the report, and the service networks of both are excluded.

    `observed` is None while no control plane has reported, `added` while the ranges of ServiceCIDR objects
    are unknown.
    """
    if added is None:
        return NotReady(SERVICE_CIDRS_UNKNOWN)
    if observed is None and not flags.service_cidrs:
        return NotReady(_NETWORKS_UNKNOWN.format("service", "service-cluster-ip-range"))
    if observed is None and not flags.cluster_cidrs:
        return NotReady(_NETWORKS_UNKNOWN.format("pod", "cluster-cidr"))
    cidrs = flags.cluster_cidrs or (observed.pod_cidrs if observed else ())
    services = (*flags.service_cidrs, *(observed.service_cidrs if observed else ()), *added)
    if unreadable := _explain_unreadable(services):
        # ignored, it would not be excluded, and pods could get its addresses
        return CannotAllocate(f"the cluster's service networks are invalid: {unreadable}")
    if why := validate_mask_flags(flags, cidrs):
        return CannotAllocate(why)
    families = {network.family for network in map(parse_foreign_network, cidrs) if network is not None}
    of_one = {family: flags.mask_size if family in families else 0 for family in _BITS}
    ipv4 = (
        flags.mask_size_ipv4 or of_one[4] or (observed and observed.node_cidr_mask_size_ipv4) or _DEFAULT_IPV4
    )
    ipv6 = (
        flags.mask_size_ipv6 or of_one[6] or (observed and observed.node_cidr_mask_size_ipv6) or _DEFAULT_IPV6
    )
    if why := _validate_mask(4, ipv4) or _validate_mask(6, ipv6):
        return CannotAllocate(why)
    return EffectiveNetworks(cidrs=cidrs, services=services, mask_size_ipv4=ipv4, mask_size_ipv6=ipv6)


def _validate_mask(family: Family, mask: int) -> str:
    least, most = PAGE_LENGTHS[family], _BITS[family]
    if least <= mask <= most:
        return ""
    return f"/{mask} is no prefix length of a Node's IPv{family} block: allowed are {least} to {most} bits"


def _explain_wrong_family(mask: int) -> str:
    lengths = (f"{PAGE_LENGTHS[family]} to {_BITS[family]} bits (IPv{family})" for family in _BITS)
    return f"/{mask} is no prefix length of a Node's block: allowed are {' or '.join(lengths)}"


def validate_network_flags(flags: NetworkFlags) -> tuple[str, ...]:
    """Return the mistakes in the flags that no report of a control plane can correct, a sentence each."""
    fits_no_family = flags.mask_size and all(_validate_mask(family, flags.mask_size) for family in _BITS)
    mistakes = {
        "cluster-cidr": flags.cluster_cidrs and validate_cluster_cidrs(flags.cluster_cidrs),
        "service-cluster-ip-range": _explain_unreadable(flags.service_cidrs),
        "node-cidr-mask-size-ipv4": flags.mask_size_ipv4 and _validate_mask(4, flags.mask_size_ipv4),
        "node-cidr-mask-size-ipv6": flags.mask_size_ipv6 and _validate_mask(6, flags.mask_size_ipv6),
        "node-cidr-mask-size": fits_no_family and _explain_wrong_family(flags.mask_size),
    }
    found = tuple(f"--{name}: {mistake}" for name, mistake in mistakes.items() if mistake)
    why = "" if found else validate_mask_flags(flags, flags.cluster_cidrs) or _explain_no_blocks(flags)
    return (why,) if why else found


def validate_mask_flags(flags: NetworkFlags, cidrs: Sequence[str]) -> str:
    """Return why the mask flags contradict these pod networks, by the reference's rules; "" if they agree."""
    families = {network.family for network in map(parse_foreign_network, cidrs) if network is not None}
    if len(cidrs) > 1:
        alone = "--node-cidr-mask-size cannot be used with dual-stack networks: use -ipv4 and -ipv6"
        return alone if flags.mask_size else ""
    if flags.mask_size and (flags.mask_size_ipv4 or flags.mask_size_ipv6):
        return "--node-cidr-mask-size cannot be used together with --node-cidr-mask-size-ipv4 and -ipv6"
    if flags.mask_size_ipv4 and families == {6}:
        return "--node-cidr-mask-size-ipv4 cannot be used with a single-stack IPv6 network"
    if flags.mask_size_ipv6 and families == {4}:
        return "--node-cidr-mask-size-ipv6 cannot be used with a single-stack IPv4 network"
    return ""


def _explain_no_blocks(flags: NetworkFlags) -> str:
    for network in map(parse_network, flags.cluster_cidrs):
        own = flags.mask_size_ipv4 if network.family == 4 else flags.mask_size_ipv6
        mask = own or flags.mask_size
        if not mask:
            continue
        why = explain_no_blocks(network, mask) or _validate_mask(network.family, mask)
        if why:
            return f"--cluster-cidr: {why}"
    return ""


def _explain_unreadable(cidrs: Sequence[str]) -> str:
    for cidr in cidrs:
        try:
            parse_network(cidr)
        except ValueError as error:
            return str(error)
    return ""
