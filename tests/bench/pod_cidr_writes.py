"""The writes of ipam in the audit log: claims in ConfigMaps, and pod CIDRs on Nodes by name."""

from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import field

from libs.common.contract.services import IPAM
from libs.testbed.control_plane.control_plane import ControlPlane
from libs.testbed.control_plane.node_history import WriteRequest
from libs.testbed.service_permissions import get_user_name

_RESOURCES: Final = ("configmaps", "nodes")


class IpamWrites(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of writes. A patch that was cut off may have been applied; its sender got no response."""

    claims: int = 0
    claims_refused: int = 0  # another replica was faster
    patched: Counter[str] = field(default_factory=Counter)  # by node
    patches_refused: Counter[str] = field(default_factory=Counter)
    patches_cut_off: Counter[str] = field(default_factory=Counter)


def count_ipam_writes(control_plane: ControlPlane, since: int) -> IpamWrites:
    """Count the writes since a mark in the audit log; ipam must be a separate process, with its own user."""
    return count_writes(control_plane.list_writes(_RESOURCES, since))


def count_writes(writes: Iterable[WriteRequest]) -> IpamWrites:
    """Count the writes of ipam among writes of all users."""
    claims: Counter[bool] = Counter()
    patched: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    cut_off: Counter[str] = Counter()
    for write in writes:
        if write.user != get_user_name(IPAM):
            continue
        succeeded = write.code < HTTPStatus.BAD_REQUEST
        if write.resource == "configmaps":
            claims[succeeded] += 1
        elif (write.verb, write.resource) == ("patch", "nodes"):
            into = patched if succeeded else cut_off if write.code == HTTPStatus.GATEWAY_TIMEOUT else refused
            into[write.about] += 1
    return IpamWrites(
        claims=claims[True],
        claims_refused=claims[False],
        patched=patched,
        patches_refused=refused,
        patches_cut_off=cut_off,
    )
