"""What ipam wrote, by the audit log: claims in ConfigMaps, and pod CIDRs on Nodes by name."""

from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec import field

from libs.common.service_spec import IPAM
from libs.testbed.control_plane.cluster import ControlPlane
from libs.testbed.control_plane.node_history import Write
from libs.testbed.service_rights import user_of

_RESOURCES: Final = ("configmaps", "nodes")


class Writes(msgspec.Struct, frozen=True, kw_only=True):
    """How many. A patch that is cut off may have been made or not: nobody waited for its answer."""

    claims: int = 0
    claims_refused: int = 0  # another replica was quicker
    patched: Counter[str] = field(default_factory=Counter)  # by node
    patches_refused: Counter[str] = field(default_factory=Counter)
    patches_cut_off: Counter[str] = field(default_factory=Counter)


def writes_of_ipam(control_plane: ControlPlane, since: int) -> Writes:
    """From a mark in the audit log on. Only where ipam is a process of its own, it has a user of its own."""
    return counted(control_plane.writes(_RESOURCES, since))


def counted(writes: Iterable[Write]) -> Writes:
    """The same of writes of anybody."""
    claims: Counter[bool] = Counter()
    patched: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    cut_off: Counter[str] = Counter()
    for write in writes:
        if write.user != user_of(IPAM):
            continue
        succeeded = write.code < HTTPStatus.BAD_REQUEST
        if write.resource == "configmaps":
            claims[succeeded] += 1
        elif (write.verb, write.resource) == ("patch", "nodes"):
            into = patched if succeeded else cut_off if write.code == HTTPStatus.GATEWAY_TIMEOUT else refused
            into[write.about] += 1
    return Writes(
        claims=claims[True],
        claims_refused=claims[False],
        patched=patched,
        patches_refused=refused,
        patches_cut_off=cut_off,
    )
