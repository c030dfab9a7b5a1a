"""Which addresses we dial to ask a Node's machine: the kubelet's provided-node-ip, read as hostile input.

A kubelet may write anything there, and a Talos control plane dials it for us with its own certificate.
"""

import ipaddress
from typing import Final

from libs.common.machine import MachineFault
from libs.common.node import PROVIDED_NODE_IP

STEP: Final = "provided-node-ip"
_LONGEST_TEXT: Final = 256  # two IPv6 addresses are 79 characters
_MOST_ENTRIES: Final = 8  # a kubelet writes one or two
_SHOWN: Final = 80  # characters of a refused value in a fault

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def dial_order(provided: str, *, prefer_ipv6: bool) -> tuple[str, ...] | MachineFault:
    """The first address of each family, IPv4 first unless `prefer_ipv6`; () for a Node without any.

    Such a Node is not ours (its kubelet runs without --cloud-provider=external): nobody is asked about it,
    and it is the labeler who says why. One refused entry refuses the whole: no kubelet writes that.
    """
    if not provided:
        return ()
    if len(provided) > _LONGEST_TEXT:
        return _fault(provided, f"is longer than {_LONGEST_TEXT} characters")
    entries = [entry.strip() for entry in provided.split(",")]
    if len(entries) > _MOST_ENTRIES:
        return _fault(provided, f"has more than {_MOST_ENTRIES} entries")
    addresses: list[IpAddress] = []
    for entry in entries:
        address = _parse(entry)
        if isinstance(address, str):
            return _fault(entry, address)
        addresses.append(address)
    first = {address.version: str(address) for address in reversed(addresses)}
    order = (6, 4) if prefer_ipv6 else (4, 6)
    return tuple(first[version] for version in order if version in first)


def _parse(entry: str) -> IpAddress | str:
    """The address, or why it is none that we dial."""
    if "%" in entry:
        return "has a zone"
    try:
        address = ipaddress.ip_address(entry)
    except ValueError:
        return "is not an IP address"
    return _why_not(address) or address


def _why_not(address: IpAddress) -> str:
    if address.is_unspecified:
        return "is the unspecified address"
    if address.is_loopback:
        return "is a loopback address"
    if address.is_link_local:
        return "is a link-local address"
    if address.is_multicast:
        return "is a multicast address"
    # 240.0.0.0/4 with broadcast; IPv6 blocks that embed IPv4 (mapped, compatible, NAT64) or are unassigned
    if address.is_reserved:
        return "is in a reserved range"
    if address.version == 4 and int(address) >> 24 == 0:
        return "is in 0.0.0.0/8, which a host dials as itself"
    return ""


def _fault(value: str, why: str) -> MachineFault:
    shown = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
    return MachineFault(
        kind="bad_node_ip",
        step=STEP,
        message=f"{shown!a} in annotation {PROVIDED_NODE_IP} {why}; it is written by the node's kubelet",
    )
