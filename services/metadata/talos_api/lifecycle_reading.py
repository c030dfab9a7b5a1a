"""Bytes from a machine -> its stage, and the members of its cluster. Read by hand, like the envelopes."""

from collections.abc import Sequence
from typing import Final

from services.metadata.talos_api.checked import Unreadable, checked_id, number, resource_in
from services.metadata.talos_api.envelopes import Resource
from services.metadata.talos_api.proto.strict import Malformed, fields
from services.metadata.talos_api.resources import MACHINE_STATUS, MEMBERS

MOST_MEMBERS: Final = 2048  # the discovery service takes 1024 of a cluster
_STAGE: Final = 1  # field number in MachineStatusSpec
_LARGEST: Final = 2**32 - 1
_STAGES: Final = {
    1: "booting",
    2: "installing",
    3: "maintenance",
    4: "running",
    5: "rebooting",
    6: "shutting down",
    7: "resetting",
    8: "upgrading",
}


def read_stage(answer: bytes) -> str:
    """The stage from a GetResponse; "" for one that nobody knows. Raises Unreadable, as all here."""
    return stage_in(resource_in(answer))


def stage_in(resource: Resource) -> str:
    """The stage, from its resource."""
    checked_id(resource, MACHINE_STATUS)
    return stage_of(resource.spec)


def stage_of(spec: bytes) -> str:
    """The stage, from the bytes of a MachineStatusSpec; whether the machine is ready is left out."""
    try:
        told = dict(fields(spec)).get(_STAGE, 0)
    except Malformed as error:
        raise Unreadable(str(error)) from error
    return _STAGES.get(number(told, "stage", 0, _LARGEST), "")


def read_member_names(answers: Sequence[bytes]) -> frozenset[str]:
    """The node names of all members, from ListResponses: Talos has a member under its node's name."""
    if len(answers) > MOST_MEMBERS:
        raise Unreadable(f"more than {MOST_MEMBERS} members")
    return frozenset(checked_id(resource_in(answer), MEMBERS) for answer in answers)
