"""Selects the addresses at which a Node's machine is dialled, from the kubelet's provided-node-ip."""

from typing import Final

from libs.common.contract.ip_addresses import InvalidNodeIP, parse_node_ips, pick_one_per_family
from libs.common.contract.machine import MachineFault
from libs.common.contract.node import PROVIDED_NODE_IP_ANNOTATION

STEP: Final = "provided-node-ip"


def order_dial_targets(provided_node_ip: str, *, prefer_ipv6: bool) -> tuple[str, ...] | MachineFault:
    """Return one address per family, IPv4 first unless `prefer_ipv6`; () for a Node without the annotation.

    Such a Node is not ours: its kubelet runs without --cloud-provider=external. metadata queries no machine
    for it, and the labeler reports the reason. An invalid annotation returns a fault.
    """
    if not provided_node_ip:
        return ()
    ips = parse_node_ips(provided_node_ip)
    if isinstance(ips, InvalidNodeIP):
        return MachineFault(
            kind="bad_node_ip",
            step=STEP,
            message=f"annotation {PROVIDED_NODE_IP_ANNOTATION}: {ips.reason}; the node's kubelet writes it",
        )
    return tuple(map(str, pick_one_per_family(ips, prefer_ipv6=prefer_ipv6)))
