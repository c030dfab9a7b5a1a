"""Whose an object is: the tags of Octavia, and the description of a floating address.

Octavia accepts tags in the request that creates an object. Neutron does not, but accepts a description.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from libs.clouds.balancers import Owner

_CLUSTER: Final = "talos-ccm/cluster="
_SERVICE: Final = "talos-ccm/service-uid="
_ACCOUNT: Final = "talos-ccm/account="
PREPARED_TAG: Final = "talos-ccm/prepared"  # it existed before the Service, and stays
_OURS: Final = "talos-ccm/"
# The cloud's own controller tags a load balancer with the name that it gives to it.
_FOREIGN: Final = "kube_service_"
_PORT: Final = "talos-ccm/port="  # of a pool: the port of the listener that it is for
_RESERVED: Final = "talos-ccm/reserved"
_DESCRIPTION: Final = re.compile(
    rf"(?s:(?P<text>.*?) ?(?P<reserved>{_RESERVED} ))?"
    r"talos-ccm/cluster=(?P<cluster>[A-Za-z0-9-]{1,64}) talos-ccm/service-uid=(?P<service>[A-Za-z0-9-]{1,64})"
    r" talos-ccm/account=(?P<account>[a-z0-9-]{1,32})"
)
MAX_DESCRIPTION: Final = 255  # characters, in Neutron


class AddressOwner(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of a floating address tells. A reserved one existed before, and stays."""

    owner: Owner
    is_reserved: bool = False
    text: str = ""  # of the user


def build_tags(owner: Owner) -> tuple[str, ...]:
    """Return the tags of every object in Octavia."""
    return (
        build_cluster_tag(owner.cluster_uid),
        f"{_SERVICE}{owner.service_uid}",
        f"{_ACCOUNT}{owner.account}",
    )


def build_cluster_tag(cluster_uid: str) -> str:
    """Return the tag by which all objects of the cluster are listed."""
    return f"{_CLUSTER}{cluster_uid}"


def build_port_tag(key: str) -> str:
    """Return the further tag of the pool behind a port."""
    return f"{_PORT}{key}"


def build_description(owner: Owner, *, text: str = "", is_reserved: bool = False) -> str:
    """Return the description of a floating address; a reserved one keeps its text."""
    marks = [text, _RESERVED] if is_reserved else []
    return " ".join(filter(None, [*marks, *build_tags(owner)]))


def read_tags(tags: Iterable[str]) -> Owner | None:
    """Return the owner, None without exactly one tag of each kind."""
    listed = list(tags)
    found = []
    for kind in (_CLUSTER, _SERVICE, _ACCOUNT):
        values = [tag.removeprefix(kind) for tag in listed if tag.startswith(kind)]
        if len(values) != 1 or not values[0]:
            return None
        found += values
    return Owner(cluster_uid=found[0], service_uid=found[1], account=found[2])


def read_description(description: str) -> AddressOwner | None:
    """Return the owner of a floating address, None if it is not one of ours."""
    found = _DESCRIPTION.fullmatch(description)
    if found is None:
        return None
    return AddressOwner(
        owner=Owner(cluster_uid=found["cluster"], service_uid=found["service"], account=found["account"]),
        is_reserved=found["reserved"] is not None,
        text=found["text"] or "",
    )


def has_foreign_tags(tags: Iterable[str]) -> bool:
    """Whether another controller has it, or a part of our tags is left."""
    listed = list(tags)
    has_part = read_tags(listed) is None and any(tag.startswith(_OURS) for tag in listed)
    return has_part or any(tag.startswith(_FOREIGN) for tag in listed)


def remove_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the tags without ours."""
    return tuple(tag for tag in tags if not tag.startswith(_OURS))
